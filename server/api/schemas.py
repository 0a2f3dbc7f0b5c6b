"""Bodies and answers of the HTTP API.

Rules of the contract: `null` means "use the default", values are coerced laxly ("false", "3"), and fields
that a route does not know are ignored.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from server.api.text import whole


def _blank_is_none(value: Any) -> Any:
    return None if value in ("", "null", "undefined") else value


FormInt = Annotated[int | None, BeforeValidator(_blank_is_none)]
FormBool = Annotated[bool | None, BeforeValidator(_blank_is_none)]
SearchKind = Annotated[Literal["hybrid", "similarity", "keyword"] | None, BeforeValidator(_blank_is_none)]
LONGEST_QUESTION = 1_000_000


class Body(BaseModel):
    """Parent of request bodies."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: whole(value) for key, value in data.items() if value is not None}
        return data


class BaseResponse(BaseModel):
    """What most routes answer; the HTTP status stays 200 and `code` tells how it went."""

    code: int = Field(default=200, description="200 = done; 403, 404, 422, 500 … = not done, see msg")
    msg: str = Field(default="success", description="what happened, for people")
    data: Any = Field(default=None, description="the result, if there is one")


class ListResponse(BaseResponse):
    """A list of names."""

    data: list[str] = Field(default_factory=list, description="the names")


class CreateKB(Body):
    """A new knowledge base."""

    knowledge_base_name: str = Field(description="any name without path separators", examples=["手册 handbook"])
    vector_store_type: str | None = Field(default=None, description="faiss …; default as configured")
    embed_model: str | None = Field(default=None, description="a configured embedding model")
    kb_info: str | None = Field(default=None, description="what the knowledge base is about")


class KBName(Body):
    """A knowledge base."""

    knowledge_base_name: str = Field(description="its name", examples=["samples"])


class SearchDocs(KBName):
    """A search, or with an empty query a listing of chunks."""

    query: str = Field(
        default="",
        max_length=LONGEST_QUESTION,
        description="what to look for; empty = list chunks",
        examples=["如何开始", "how to start"],
    )
    top_k: int | None = Field(default=None, ge=1, le=1000, description="most hits to return")
    score_threshold: float | None = Field(
        default=None,
        ge=0,
        le=4,
        description="keep hits with score <= this. The score is the squared distance of unit vectors: 0 = same, "
        "lower is better, 4 = no limit. The same for every vector store.",
    )
    file_name: str = Field(default="", description="with an empty query: list the chunks of this file")
    metadata: dict[str, Any] = Field(default_factory=dict, description="with an empty query: values chunks must have")
    search_type: SearchKind = Field(default=None, description="hybrid (default), similarity or keyword")


class DocItem(Body):
    """A chunk as a client writes it."""

    page_content: str = Field(default="", description="the text; empty = delete this chunk")
    metadata: dict[str, Any] = Field(default_factory=dict, description="anything in JSON")


class UpdateDocsById(KBName):
    """Edits of single chunks."""

    docs: dict[str, DocItem | None] = Field(description="by chunk id; null or an empty text deletes the chunk")


class SplitFields(Body):
    """How files are cut."""

    chunk_size: int | None = Field(default=None, description="longest chunk, in characters")
    chunk_overlap: int | None = Field(default=None, description="characters that neighbouring chunks share")
    zh_title_enhance: bool | None = Field(default=None, description="mark Chinese titles")


class DeleteDocs(KBName):
    """Files to take out."""

    file_names: list[str] = Field(description="names as list_files shows them")
    delete_content: bool = Field(default=False, description="also delete the file from the server")
    not_refresh_vs_cache: bool = Field(default=False, description="accepted and without effect: nothing is lost")


class UpdateInfo(KBName):
    """A new description."""

    kb_info: str = Field(description="what the knowledge base is about")


class UpdateDocs(KBName, SplitFields):
    """Files to split and embed anew."""

    file_names: list[str] = Field(description="files that are on the server already")
    override_custom_docs: bool = Field(default=False, description="also those whose chunks a client supplied")
    docs: str = Field(default="{}", description='own chunks as a JSON string: {"file": [{"page_content": "…"}]}')
    not_refresh_vs_cache: bool = Field(default=False, description="accepted and without effect: nothing is lost")
    wait: bool = Field(default=True, description="false = answer at once with the ids of the jobs")


class RecreateVectorStore(KBName, SplitFields):
    """A rebuild."""

    allow_empty_kb: bool = Field(default=True, description="make a knowledge base that does not exist")
    vs_type: str | None = Field(default=None, description="another vector store; default: the one it has")
    embed_model: str | None = Field(default=None, description="another embedding model; default: the one it has")
    not_refresh_vs_cache: bool = Field(default=False, description="accepted and without effect: nothing is lost")


class HistoryItem(Body):
    """An earlier turn."""

    role: str = Field(description="user, assistant or system", pattern="^(user|assistant|system)$")
    content: str = Field(description="what was said")


class ChatFields(Body):
    """What all kinds of chat take."""

    query: str = Field(max_length=LONGEST_QUESTION, description="the question", examples=["知识库有什么功能？"])
    stream: bool = Field(default=False, description="true = an event per token; false = one event")
    model_name: str | None = Field(default=None, description="a configured model; default: the first one")
    temperature: float | None = Field(default=None, ge=0, le=2, description="0 = always the likeliest word")
    max_tokens: int | None = Field(default=None, description="longest answer; 0 or less = as configured")
    prompt_name: str = Field(default="default", description="a template from configs/prompts/")
    details: bool = Field(default=False, description="true = also send checked `citations`, and a model's `thinking`")


class Chat(ChatFields):
    """A chat with the model alone."""

    conversation_id: str = Field(default="", max_length=255, description="to keep and find the conversation")
    history_len: int = Field(default=-1, le=10_000, description="earlier turns of the conversation to show the model")
    history: Annotated[int, Field(le=10_000)] | list[HistoryItem] = Field(
        default_factory=list, description="earlier turns, or how many to load"
    )


class PassageFields(Body):
    """How passages are chosen."""

    top_k: int | None = Field(default=None, ge=1, le=1000, description="most passages to use")
    score_threshold: float | None = Field(
        default=None, ge=0, le=4, description="passages with score <= this are used; lower is stricter"
    )
    search_type: SearchKind = Field(default=None, description="hybrid (default), similarity or keyword")


class GroundedChat(ChatFields, PassageFields):
    """A question that is answered from passages."""

    history: list[HistoryItem] = Field(default_factory=list, description="earlier turns")


class KnowledgeBaseChat(GroundedChat, KBName):
    """A question to a knowledge base."""

    conversation_id: str = Field(default="", max_length=255, description="to keep and find the conversation")
    history_len: int | None = Field(default=None, le=10_000, description="turns of it to show the model")


class FileChat(GroundedChat):
    """A question to the files of a conversation."""

    knowledge_id: str = Field(description="the id that upload_temp_docs gave")


class SearchTempDocs(PassageFields):
    """A search in the files of a conversation."""

    knowledge_id: str = Field(description="the id that upload_temp_docs gave")
    query: str = Field(max_length=LONGEST_QUESTION, description="what to look for")


class SearchEngineChat(GroundedChat):
    """A question to the web."""

    search_engine_name: str = Field(description="duckduckgo, bing, metaphor or searxng", examples=["duckduckgo"])
    split_result: bool = Field(default=False, description="accepted and without effect: results are short")


class AgentChat(ChatFields):
    """A question to an agent."""

    history: list[HistoryItem] = Field(default_factory=list, description="earlier turns")
    tools: list[str] | None = Field(default=None, description="names of the tools it may use; default: all")


class KBChat03(GroundedChat):
    """A question as 0.3 clients ask it."""

    mode: Literal["local_kb", "temp_kb", "search_engine"] = Field(default="local_kb", description="where to look")
    kb_name: str = Field(default="", description="knowledge base, id of temporary files, or search engine")
    stream: bool = Field(default=True, description="false = one completion")
    model_name: str | None = Field(
        default=None, validation_alias=AliasChoices("model", "model_name"), description="a configured model"
    )
    return_direct: bool = Field(default=False, description="true = the sources alone")


class Feedback(Body):
    """What somebody thought of an answer."""

    message_id: str = Field(default="", max_length=32, description="the answer's message_id")
    score: int = Field(default=0, ge=-(2**31), le=2**31 - 1, description="0 to 100, higher is better")
    reason: str = Field(default="", max_length=10_000, description="why")


class SummaryFields(KBName):
    """How summaries are made."""

    allow_empty_kb: bool = Field(default=True, description="make a knowledge base that does not exist")
    vs_type: str | None = Field(default=None, description="vector store of a knowledge base that is made")
    embed_model: str | None = Field(default=None, description="embedding model of one that is made")
    file_description: str = Field(default="", max_length=10_000, description="kept with the summary")
    model_name: str | None = Field(default=None, description="a configured model; default: the first one")
    temperature: float | None = Field(default=None, ge=0, le=2, description="0 = always the likeliest word")
    max_tokens: int | None = Field(default=None, description="longest summary; 0 or less = as configured")


class SummarizeFile(SummaryFields):
    """A file to summarise."""

    file_name: str = Field(description="a name as list_files shows it")


class SummarizeKB(SummaryFields):
    """A knowledge base whose files are to be summarised."""


class SummarizeChunks(SummaryFields):
    """Chunks to summarise together."""

    doc_ids: list[str] = Field(default_factory=list, max_length=10_000, description="ids of chunks")


class ModelName(Body):
    """A model."""

    model_name: str = Field(description="its name")


class ChangeModel(ModelName):
    """One model for another."""

    new_model_name: str = Field(description="the model to use from now on")


class ListConfigModels(Body):
    """Types of models."""

    types: list[str] = Field(default_factory=lambda: ["local", "online"], description="local, online")


class Completion(ChatFields):
    """A text to continue."""

    echo: bool = Field(default=False, description="repeat the text before its continuation")
    max_tokens: int | None = Field(default=1024, description="longest continuation; 0 or less = as configured")


class EmbedTexts(Body):
    """Texts to embed."""

    texts: list[str] = Field(max_length=2048, description="the texts")
    embed_model: str | None = Field(default=None, description="a configured embedding model; default as configured")
    to_query: bool = Field(default=False, description="embed them as questions, not as passages")


class Retrieval(Body):
    """A search without a language model."""

    query: str = Field(
        min_length=1, max_length=LONGEST_QUESTION, description="what to look for", examples=["如何开始", "how to start"]
    )
    knowledge_base_names: Annotated[list[str], BeforeValidator(lambda it: [it] if isinstance(it, str) else it)] = Field(
        default_factory=list,
        max_length=100,
        validation_alias=AliasChoices("knowledge_base_names", "knowledge_base_name"),
        description="one or several knowledge bases",
        examples=[["samples"]],
    )
    top_k: int | None = Field(default=None, ge=1, le=1000, description="most hits to return")
    score_threshold: float | None = Field(default=None, ge=0, le=4, description="keep hits with score <= this")
    search_type: SearchKind = Field(default=None, description="hybrid (default), similarity or keyword")
    filters: dict[str, Any] | None = Field(
        default=None,
        description="by metadata",
        examples=[{"type": "and", "filters": [{"type": "gte", "key": "year", "value": 2024}]}],
    )
    rerank: bool | None = Field(default=None, description="false = without the configured reranker")
    scope: Literal["chunks", "summaries"] = Field(default="chunks", description="search chunks, or summaries of files")


class Turn(Body):
    """A message of a chat as OpenAI's clients send it."""

    role: str = Field(description="system, developer, user, assistant or tool")
    content: str | list[dict[str, Any]] = Field(default="", description="text, or parts of which the texts are read")

    @property
    def text(self) -> str:
        """What it says."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(str(part.get("text", "")) for part in self.content if part.get("type") == "text")


class ChatCompletion(Body):
    """A chat as OpenAI's clients ask for it; what is not OpenAI's goes into `extra_body`."""

    messages: list[Turn] = Field(min_length=1, max_length=10_000, description="the last one is the question")
    model: str | None = Field(
        default=None, description="`kb:<name>` or a language model; default: the first one", examples=["kb:samples"]
    )
    stream: bool = Field(default=False, description="true = chunks as they are written")
    stream_options: dict[str, Any] | None = Field(default=None, description="include_usage: a last chunk with usage")
    temperature: float | None = Field(default=None, ge=0, le=2, description="0 = always the likeliest word")
    max_tokens: int | None = Field(default=None, description="longest answer; 0 or less = as configured")
    max_completion_tokens: int | None = Field(default=None, description="the same by its newer name")
    n: int | None = Field(default=None, description="only 1")
    tools: list[Any] | None = Field(default=None, description="0.3 routes: names of tools for an agent")
    tool_choice: Any = Field(default=None, description="0.3 routes: the name of one tool")
    tool_input: dict[str, Any] | None = Field(default=None, description="0.3 routes: call the tool with this")
    llm: str | None = Field(default=None, description="with `kb:<name>`: the language model that writes the answer")
    knowledge_base_names: list[str] = Field(default_factory=list, max_length=100, description="further ones to search")
    top_k: int | None = Field(default=None, ge=1, le=1000, description="most passages to use")
    score_threshold: float | None = Field(default=None, ge=0, le=4, description="passages with score <= this are used")
    search_type: SearchKind = Field(default=None, description="hybrid (default), similarity or keyword")
    filters: dict[str, Any] | None = Field(default=None, description="by metadata, as in /retrieval/search")
    prompt_name: str = Field(default="default", description="a prompt template")
    conversation_id: str = Field(default="", max_length=255, description="to keep the conversation")
    return_direct: bool = Field(default=False, description="0.3 routes: the sources alone")


class Embeddings(Body):
    """Texts to embed, as OpenAI's clients send them."""

    input: str | Annotated[list[str], Field(min_length=1, max_length=2048)] = Field(description="one or more texts")
    model: str = Field(description="a configured embedding model")
    encoding_format: Literal["float", "base64"] = Field(default="float", description="float or base64")
    dimensions: int | None = Field(default=None, description="only the model's own")
    input_type: Literal["passage", "query"] = Field(default="passage", description="passage or query")


class ToolCall(Body):
    """A call of a tool."""

    name: str = Field(description="a name as GET /tools shows it", examples=["calculate"])
    tool_input: dict[str, Any] = Field(default_factory=dict, description="what it takes")


class _Static(Body):
    max_chunk_size_tokens: int = Field(
        default=250, ge=10, le=4096, description="longest chunk, about two characters each"
    )
    chunk_overlap_tokens: int = Field(default=25, ge=0, le=2048, description="shared by neighbouring chunks")


class ChunkingStrategy(Body):
    """How a file is cut."""

    type: str = Field(default="auto", description="auto (as configured) or static")
    static: _Static | None = Field(default=None, description="sizes in tokens")


class _ExpiresAfter(Body):
    anchor: str = Field(default="last_active_at", description="accepted")
    days: int = Field(ge=1, le=3650, description="days until it is deleted")


class ModifyVectorStore(Body):
    """What is to change of a vector store."""

    name: str | None = Field(default=None, description="the knowledge base's name")
    metadata: dict[str, Any] | None = Field(default=None, description="the client's own notes")
    expires_after: _ExpiresAfter | None = Field(default=None, description="when it is deleted")


class CreateVectorStore(ModifyVectorStore):
    """A new vector store."""

    file_ids: list[str] = Field(default_factory=list, max_length=500, description="uploaded files to put in")
    chunking_strategy: ChunkingStrategy | None = Field(default=None, description="how they are cut")


class Attributes(Body):
    """What searches can filter by."""

    attributes: dict[str, Any] = Field(description="the file's attributes, in place of the old")


class AttachFile(Body):
    """An uploaded file to put in."""

    file_id: str = Field(description="the id that POST /v1/files gave")
    attributes: dict[str, Any] | None = Field(default=None, description="what searches can filter by")
    chunking_strategy: ChunkingStrategy | None = Field(default=None, description="how it is cut")


class FileBatch(Body):
    """Several uploaded files to put in."""

    file_ids: list[str] = Field(default_factory=list, max_length=500, description="uploaded files")
    files: list[AttachFile] = Field(default_factory=list, max_length=500, description="or each with its own attributes")
    attributes: dict[str, Any] | None = Field(default=None, description="what searches can filter by")
    chunking_strategy: ChunkingStrategy | None = Field(default=None, description="how they are cut")


class _Ranking(Body):
    ranker: str = Field(default="auto", description="auto, or none = without the configured reranker")
    score_threshold: float | None = Field(
        default=None, ge=0, le=1, description="least similarity of a result; 0 = no limit; default as configured"
    )


class VectorStoreSearch(Body):
    """A search in a vector store."""

    query: (
        Annotated[str, Field(min_length=1, max_length=LONGEST_QUESTION)]
        | Annotated[list[str], Field(min_length=1, max_length=20)]
    ) = Field(description="what to look for")
    max_num_results: int = Field(default=10, ge=1, le=50, description="most results")
    filters: dict[str, Any] | None = Field(default=None, description="by attributes")
    ranking_options: _Ranking | None = Field(default=None, description="how results are ranked and cut off")
    rewrite_query: bool = Field(default=False, description="accepted; queries are searched for as they are")


class HitView(BaseModel):
    """A passage, its place in the source, and how it was found."""

    id: str
    knowledge_base_name: str
    file_name: str
    text: str
    score: float | None = Field(description="squared distance of unit vectors: 0 = same, lower is better, at most 4")
    similarity: float | None = Field(description="the same from 0 to 1, higher is better")
    relevance: float | None = Field(description="what hits are ordered by; comparable within one answer only")
    ranks: dict[str, int] = Field(description="place in each ranking, from 1: dense, keyword, fused, reranked")
    page: int | None
    headings: list[str]
    start: int | None = Field(description="first character in the file's text")
    end: int | None
    metadata: dict[str, Any]
    url: str | None = Field(description="the file's text with the passage marked")


class RetrievalResult(BaseModel):
    """Hits, best first."""

    hits: list[HitView]
    warnings: list[str] = Field(default_factory=list, description="what went wrong without spoiling the hits")


class ChunkView(BaseModel):
    """A chunk of a file."""

    id: str
    file_name: str
    text: str
    page: int | None
    headings: list[str]
    start: int | None
    end: int | None
    metadata: dict[str, Any]
    enabled: bool = Field(description="false = searches do not find it")


class EditChunk(Body):
    """What is to change of a chunk; what is not named stays."""

    text: str | None = Field(default=None, min_length=1, max_length=1_000_000, description="the new text")
    metadata: dict[str, Any] | None = Field(default=None, description="the new metadata, in place of the old")
    enabled: bool | None = Field(default=None, description="false = searches do not find it")


class ChunkIds(KBName):
    """Chunks of a knowledge base."""

    ids: list[int] = Field(min_length=1, max_length=10_000, description="ids of chunks")


class FileDetails(BaseModel):
    """A file of a knowledge base and how far it is."""

    file_name: str
    file_ext: str
    file_version: int
    file_size: int
    state: str = Field(description="stored, pending, keyword (found by keyword only so far), ready, partial or failed")
    reason: str = Field(description="why it is partial or failed, and what to do")
    warnings: list[str] = Field(description="what could not be read")
    document_loader: str
    text_splitter: str
    docs_count: int = Field(description="chunks that searches can find")
    vectors_count: int = Field(description="chunks that searches can find by meaning")
    custom_docs: bool
    create_time: datetime
    update_time: datetime


class KBDetails(BaseModel):
    """A knowledge base and its settings."""

    kb_name: str
    kb_info: str
    vs_type: str
    embed_model: str
    file_count: int
    create_time: datetime


class JobView(BaseModel):
    """Work in the background."""

    id: int
    kind: str = Field(description="ingest or rebuild")
    knowledge_base_name: str
    file_name: str | None
    state: str = Field(description="queued, running, done, failed or cancelled")
    reason: str = Field(description="why it failed, and what to do")
    finished: int = Field(description="chunks (ingest) or files (rebuild) done")
    total: int
    attempts: int
    create_time: datetime
    update_time: datetime
