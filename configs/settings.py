"""Every setting of the service: its type, its default, and a line on what it does."""

from __future__ import annotations

import os
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

CONFIG_DIR = Path(__file__).resolve().parent
PROJECT_ROOT = CONFIG_DIR.parent
EXTRACTIVE = "extractive"
EMBEDDED = "multilingual-e5-small"


class _YamlFile(YamlConfigSettingsSource):
    """A settings file, read by the parser in C where there is one: every command reads all files."""

    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        found: dict[str, Any] | None = yaml.load(file_path.read_bytes(), loader)
        return found or {}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Endpoint(_Section):
    """A model behind an API."""

    name: str = Field(description="the name that clients send")
    provider: str = Field(default="openai", description="LangChain's name of the provider: openai, ollama, deepseek …")
    model: str = Field(default="", description="the provider's name of the model; empty = same as name")
    base_url: str | None = Field(default=None, description="endpoint of an OpenAI-compatible server")
    api_key_env: str | None = Field(default=None, description="environment variable that holds the key")
    max_retries: int = Field(default=3, ge=0, description="tries after a rate limit or a broken connection")
    options: dict[str, Any] = Field(default_factory=dict, description="further arguments of the provider's class")

    @property
    def api_key(self) -> SecretStr | None:
        """The key from the environment, if the model names a variable."""
        value = os.environ.get(self.api_key_env, "") if self.api_key_env else ""
        return SecretStr(value) if value else None

    def arguments(self) -> dict[str, Any]:
        """What a provider's class in LangChain is made with."""
        given = {"base_url": self.base_url, "api_key": self.api_key}
        return {**self.options, **{name: value for name, value in given.items() if value}}


class ChatModelSettings(_Endpoint):
    """One language model, as LangChain's `init_chat_model` takes it."""

    context_size: int = Field(default=8192, ge=512, description="tokens that prompt and answer share")
    max_output_tokens: int = Field(default=1024, ge=1, description="answer length when the client sets none")
    concurrency: int = Field(default=32, ge=1, description="requests to this model at the same time")
    timeout: float = Field(default=120, gt=0, description="seconds without a byte until a request fails")
    price_in: float = Field(default=0, ge=0, description="price of a million tokens of prompts, for estimates")
    price_out: float = Field(default=0, ge=0, description="price of a million tokens of replies, for estimates")
    begins_thinking: bool = Field(
        default=False, description="replies begin inside <think> without the tag, as the model's template opens it"
    )


class EmbeddingModelSettings(_Endpoint):
    """One embedding model besides the embedded one, as LangChain's `init_embeddings` takes it; `fake` for tests."""

    batch_size: int = Field(default=32, ge=1, description="texts in one request")
    concurrency: int = Field(default=2, ge=1, description="requests at the same time")
    timeout: float = Field(default=60, gt=0, description="seconds until a request fails")


class RerankerSettings(_Section):
    """Which reranker to use, if any."""

    provider: Literal["none", "http", "tei", "cross-encoder"] = Field(
        default="none",
        description="none; http = an endpoint as Jina, Cohere and vLLM have it; tei = Text Embeddings Inference; "
        "cross-encoder = a model in this process",
    )
    model: str = Field(default="", description="the provider's name of the model; a name or path for cross-encoder")
    base_url: str | None = Field(default=None, description="the endpoint's address without /rerank")
    api_key_env: str | None = Field(default=None, description="environment variable that holds the key")
    timeout: float = Field(default=10, gt=0, description="seconds until a request fails")
    max_retries: int = Field(default=2, ge=0, description="tries after a rate limit or a broken connection")

    @property
    def api_key(self) -> SecretStr | None:
        """The key from the environment, if the settings name a variable."""
        value = os.environ.get(self.api_key_env, "") if self.api_key_env else ""
        return SecretStr(value) if value else None


class SearchEngineSettings(_Section):
    """Where the search engines are, and the keys that they want."""

    duckduckgo_url: str = Field(default="https://html.duckduckgo.com/html/", description="DuckDuckGo's plain page")
    bing_url: str = Field(default="https://api.bing.microsoft.com/v7.0/search", description="Bing's search API")
    bing_key_env: str = Field(
        default="BING_SUBSCRIPTION_KEY", description="environment variable that holds the key for Bing"
    )
    metaphor_url: str = Field(default="https://api.exa.ai/search", description="search API of Exa, once Metaphor")
    metaphor_key_env: str = Field(
        default="METAPHOR_API_KEY", description="environment variable that holds the key for Exa"
    )
    searxng_url: str | None = Field(default=None, description="address of your SearXNG, which must allow format=json")
    timeout: float = Field(default=15, gt=0, description="seconds until a search fails")
    allow: tuple[str, ...] = Field(
        default=(), description="hosts, host:port or networks inside your network that may be fetched from"
    )
    proxy: str | None = Field(
        default=None, description="proxy for requests to the web; those of the environment are not used"
    )


class PgSettings(_Section):
    """The PostgreSQL that holds vectors."""

    url: SecretStr | None = Field(
        default=None, description="postgresql://… ; default: the one of database_url, if that is PostgreSQL"
    )
    schema_name: str = Field(
        default="zhiku", pattern="^[a-z_][a-z0-9_]{0,39}$", description="schema that the tables of vectors lie in"
    )
    timeout: float = Field(default=10, gt=0, description="seconds until a connection counts as broken")


class MilvusSettings(_Section):
    """The Milvus that holds vectors."""

    uri: str = Field(default="", description="http://host:19530; empty = Milvus Lite in the data root")
    token: SecretStr | None = Field(default=None, description="user:password or an API key")
    timeout: float = Field(default=30, gt=0, description="seconds until a request fails")


class ChromaSettings(_Section):
    """The Chroma that holds vectors."""

    url: str = Field(default="", description="http://host:8000; empty = files in the data root, for one process")
    token: SecretStr | None = Field(default=None, description="sent as `Authorization: Bearer …`")
    timeout: float = Field(default=30, gt=0, description="seconds until a request fails")


PromptTemplates = dict[str, dict[str, str]]


class Settings(BaseSettings):
    """All settings. An unknown key in a file or an impossible value stops the start with a clear message."""

    model_config = SettingsConfigDict(
        env_prefix="ZHIKU_", env_nested_delimiter="__", extra="forbid", frozen=True, populate_by_name=True
    )

    # the server
    host: str = Field(default="127.0.0.1", description="address to listen on; loopback unless you say otherwise")
    port: int = Field(default=7861, ge=0, le=65535, description="port to listen on")
    public_url: str | None = Field(default=None, description="base of citation links; default: as called")
    trusted_proxies: list[str] = Field(
        default_factory=lambda: ["127.0.0.1", "::1"], description="proxies whose X-Forwarded headers are believed"
    )
    cors_origins: list[str] = Field(default_factory=list, description="origins of browser front ends; ['*'] = any")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="DEBUG, INFO, WARNING or ERROR"
    )
    max_upload_mb: int = Field(default=200, ge=1, description="largest file that may be uploaded, in MiB")

    # data
    data_dir: Path = Field(default=PROJECT_ROOT / "knowledge_base", description="the data root; all else lives in it")
    database_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices("database_url", "ZHIKU_DATABASE_URL", "DATABASE_URL"),
        description="SQLAlchemy URL, such as postgresql://user:password@host/name; default: SQLite in the data root",
    )
    database_connections: int = Field(
        default=40, ge=2, description="connections to the database that this process opens at the most"
    )
    index_dir: Path | None = Field(
        default=None, description="where local indexes lie, a folder for each replica; default: index in the data root"
    )

    # knowledge bases
    default_vs_type: str = Field(default="faiss", description="vector store of new knowledge bases")
    default_embed_model: str = Field(default=EMBEDDED, description="embedding model of new knowledge bases")
    default_knowledge_base: str = Field(default="samples", description="the knowledge base shown to clients first")
    graph_vector_store: str = Field(
        default="faiss", description="where knowledge bases with a graph keep their vectors"
    )
    graph_extractor: str = Field(
        default="nlp", description="who reads chunks for a graph: nlp (no language model), or a model of llm_models"
    )
    graph_entity_types: list[str] = Field(
        default_factory=list, description="what entities may be; default: person, organization, location, event …"
    )
    graph_gleanings: int = Field(
        default=0, ge=0, le=5, description="how often a model is asked for what it missed in a chunk"
    )
    graph_token_budget: int | None = Field(
        default=None, ge=1, description="tokens that the graph of a knowledge base may take; default: any number"
    )
    graph_reports: str = Field(
        default="nlp",
        description="who writes reports of communities: nlp (no language model), a model of llm_models, empty = nobody",
    )
    graph_community_size: int = Field(
        default=10, ge=2, le=100, description="entities of a narrowest community, and parts of a wider one, at most"
    )
    graph_keyword_model: str = Field(
        default="",
        description="a model of llm_models that names what a question is about before a graph search; "
        "default: none, the question's own words count",
    )
    graph_entity_tokens: int = Field(
        default=2000, ge=0, description="tokens that a prompt gives to what the graph says of entities"
    )
    graph_relation_tokens: int = Field(
        default=2000, ge=0, description="tokens that a prompt gives to what the graph says of relations"
    )
    graph_claims: bool = Field(
        default=False, description="also ask a model for what is asserted of entities, with the words that say so"
    )
    graph_claim_tokens: int = Field(
        default=1000, ge=0, description="tokens that a prompt gives to what is asserted of entities"
    )
    graph_report_tokens: int = Field(
        default=2000, ge=0, description="tokens that a prompt gives to findings of reports"
    )
    graph_concurrency: int = Field(default=8, ge=1, description="calls at the same time while a graph is built")
    chunk_size: int = Field(default=250, ge=1, description="longest chunk, in tokens of the embedding model")
    chunk_overlap: int = Field(default=50, ge=0, description="tokens that neighbouring chunks share")
    zh_title_enhance: bool = Field(default=False, description="mark Chinese titles and name them in what follows")
    text_splitter: str = Field(default="ChineseRecursiveTextSplitter", description="splitter of new documents")
    top_k: int = Field(default=3, ge=1, description="hits per search when the client sets no top_k")
    score_threshold: float = Field(default=1.0, ge=0, le=4, description="largest score that still counts as relevant")
    search_type: Literal["hybrid", "similarity", "keyword"] = Field(
        default="hybrid", description="hybrid, similarity or keyword"
    )
    rewrite_questions: bool = Field(
        default=True, description="let the model rewrite follow-up questions before the search; else a rule does"
    )
    temp_kb_hours: float = Field(default=24, gt=0, description="hours that the files of a conversation are kept")
    search_engine_top_k: int = Field(default=3, ge=1, description="web results when the client sets no top_k")
    default_search_engine: str = Field(default="duckduckgo", description="the search engine shown to clients first")
    history_len: int = Field(default=3, ge=0, description="turns of a stored conversation that the model sees")
    cached_vs_num: int = Field(default=16, ge=1, description="knowledge bases whose indexes stay in memory")
    ingest_workers: int = Field(default=4, ge=1, description="files that are worked on at the same time")
    embed_threads: int = Field(default=0, ge=0, description="threads of the embedded model; 0 = one per core")

    # vector stores
    pg: PgSettings = Field(default_factory=PgSettings, description="PostgreSQL with pgvector")
    milvus: MilvusSettings = Field(default_factory=MilvusSettings, description="Milvus, or Milvus Lite")
    zilliz: MilvusSettings = Field(default_factory=MilvusSettings, description="Zilliz Cloud: its URI and token")
    chroma: ChromaSettings = Field(default_factory=ChromaSettings, description="Chroma, in this process or a server")

    # models
    llm_models: list[ChatModelSettings] = Field(default_factory=list, description="language models, the default first")
    embedding_models: list[EmbeddingModelSettings] = Field(
        default_factory=list, description="embedding models besides the embedded one"
    )
    reranker: RerankerSettings = Field(default_factory=RerankerSettings, description="a second look at what was found")
    rerank_candidates: int = Field(default=30, ge=1, description="passages that the reranker looks at")
    search_engines: SearchEngineSettings = Field(
        default_factory=SearchEngineSettings, description="where web search goes, and the keys for it"
    )
    agent_web_search: bool = Field(
        default=False, description="let the agent search the web, with default_search_engine"
    )
    temperature: float = Field(default=0.7, ge=0, le=2, description="sampling temperature when the client sets none")
    extractive_fallback: bool = Field(
        default=False, description="answer by quoting passages when the language model fails, and say so"
    )
    agent_steps: int = Field(default=8, ge=1, description="calls of the model that an agent may make for one answer")
    prompt_templates: PromptTemplates = Field(
        default_factory=dict, description="prompts by kind of chat and name that replace those in configs/prompts/"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.chunk_overlap >= self.chunk_size:
            raise ValueError(f"chunk_overlap ({self.chunk_overlap}) must be below chunk_size ({self.chunk_size})")
        for field, names in (
            ("llm_models", [EXTRACTIVE, *(model.name for model in self.llm_models)]),
            ("embedding_models", [EMBEDDED, *(model.name for model in self.embedding_models)]),
        ):
            if len(names) != len(set(names)):
                raise ValueError(f"{field}: two models have the same name (or that of a built-in one)")
        if self.graph_extractor not in ("nlp", *(model.name for model in self.llm_models)):
            raise ValueError(f"graph_extractor: {self.graph_extractor} is neither nlp nor one of llm_models")
        if self.graph_reports not in ("", "nlp", *(model.name for model in self.llm_models)):
            raise ValueError(f"graph_reports: {self.graph_reports} is neither nlp nor one of llm_models")
        if self.graph_keyword_model not in ("", *(model.name for model in self.llm_models)):
            raise ValueError(f"graph_keyword_model: {self.graph_keyword_model} is not one of llm_models")
        if self.default_embed_model not in names:
            raise ValueError(f"default_embed_model: {self.default_embed_model} is not one of {', '.join(names)}")
        return self

    @property
    def sql_url(self) -> str:
        """The database to use."""
        return self.database_url or f"sqlite:///{self.data_dir.resolve() / 'zhiku.db'}"

    @property
    def default_llm(self) -> str:
        """Name of the model that answers when the client names none."""
        return self.llm_models[0].name if self.llm_models else EXTRACTIVE

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments win over the environment, the environment over files."""
        folder = Path(os.environ.get("ZHIKU_CONFIG_DIR", CONFIG_DIR))
        files = [_YamlFile(settings_cls, yaml_file=path) for path in sorted(folder.glob("*.yaml"))]
        return init_settings, env_settings, *files
