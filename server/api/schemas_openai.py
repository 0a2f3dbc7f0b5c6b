"""Bodies of OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from server.api.schemas import DYNAMIC, LEVEL, LONGEST_QUESTION, MODE, Body, Mode, SearchKind


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

    @property
    def has_more_than_text(self) -> bool:
        """Whether there is something in it that cannot be read."""
        return not isinstance(self.content, str) and any(part.get("type") != "text" for part in self.content)


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
    stop: str | list[str] | None = Field(default=None, description="for the language model, as are those below")
    seed: int | None = Field(default=None, description="the same answer again, where the model can")
    top_p: float | None = Field(default=None, gt=0, le=1, description="nucleus sampling")
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, description="less of what was said")
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, description="less of what was said often")
    response_format: dict[str, Any] | None = Field(default=None, description="JSON, where the model can")
    tools: list[Any] | None = Field(default=None, description="0.3 routes: names of tools for an agent")
    tool_choice: Any = Field(default=None, description="0.3 routes: the name of one tool")
    tool_input: dict[str, Any] | None = Field(default=None, description="0.3 routes: call the tool with this")
    llm: str | None = Field(default=None, description="with `kb:<name>`: the language model that writes the answer")
    knowledge_base_names: list[str] = Field(default_factory=list, max_length=100, description="further ones to search")
    top_k: int | None = Field(default=None, ge=1, le=1000, description="most passages to use")
    score_threshold: float | None = Field(default=None, ge=0, le=4, description="passages with score <= this are used")
    search_type: SearchKind = Field(default=None, description="hybrid (default), similarity or keyword")
    mode: Mode = Field(default=None, description=MODE)
    community_level: int = Field(default=2, ge=0, le=20, description=LEVEL)
    dynamic_community_selection: bool = Field(default=False, description=DYNAMIC)
    filters: dict[str, Any] | None = Field(default=None, description="by metadata, as in /retrieval/search")
    prompt_name: str = Field(default="default", description="a prompt template")
    conversation_id: str = Field(default="", max_length=255, description="to keep the conversation")
    return_direct: bool = Field(default=False, description="0.3 routes: the sources alone")

    @property
    def provider_options(self) -> dict[str, Any]:
        """What goes to the language model as it is."""
        names = ("stop", "seed", "top_p", "presence_penalty", "frequency_penalty", "response_format")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class Embeddings(Body):
    """Texts to embed, as OpenAI's clients send them."""

    input: str | Annotated[list[str], Field(min_length=1, max_length=2048)] = Field(description="one or more texts")
    model: str = Field(description="a configured embedding model")
    encoding_format: Literal["float", "base64"] = Field(default="float", description="float or base64")
    dimensions: int | None = Field(default=None, description="only the model's own")
    input_type: Literal["passage", "query"] = Field(default="passage", description="passage or query")


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
