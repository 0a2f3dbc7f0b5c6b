"""Bodies and answers of the HTTP API.

Rules of the contract: `null` means "use the default", values are coerced laxly ("false", "3"), and fields
that a route does not know are ignored.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from server.api.text import whole


def _blank_is_none(value: Any) -> Any:
    return None if value in ("", "null", "undefined") else value


FormInt = Annotated[int | None, BeforeValidator(_blank_is_none)]
FormBool = Annotated[bool | None, BeforeValidator(_blank_is_none)]
_Modes = Literal[
    "naive", "basic", "local", "global", "hybrid", "mix", "ppr", "graphrag_local", "graphrag_global", "drift"
]
Mode = Annotated[_Modes | None, BeforeValidator(_blank_is_none)]
MODE = (
    "with a graph: local, global, hybrid, mix or ppr; by reports of communities: graphrag_local, graphrag_global "
    "or drift; naive or basic (default) searches the text"
)
BYPASS = "bypass"
ChatMode = Annotated[_Modes | Literal["bypass"] | None, BeforeValidator(_blank_is_none)]
DYNAMIC = "with graphrag_global: let the language model choose reports, from the widest down to that level"
LEVEL = "with graphrag_global and drift: the level of communities, 0 = the widest"
SearchKind = Annotated[Literal["hybrid", "similarity", "keyword"] | None, BeforeValidator(_blank_is_none)]
PASSWORDS = 'passwords of encrypted files: {"file": "password"}; kept with the file and never shown'
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


class SplitFields(Body):
    """How files are cut."""

    chunk_size: int | None = Field(default=None, description="longest chunk, in tokens of the embedding model")
    chunk_overlap: int | None = Field(default=None, description="tokens that neighbouring chunks share")
    zh_title_enhance: bool | None = Field(default=None, description="mark Chinese titles")
    text_splitter: str | None = Field(default=None, description="a splitter by name; `/server/configs` lists them")


class CreateKB(SplitFields):
    """A new knowledge base. Sizes and splitter are those of its files unless an upload says otherwise."""

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


class DeleteDocs(KBName):
    """Files to take out."""

    file_names: list[str] = Field(description="names as list_files shows them")
    delete_content: bool = Field(default=False, description="also delete the file from the server")
    not_refresh_vs_cache: bool = Field(default=False, description="accepted and without effect: nothing is lost")


class FileDigest(Body):
    """A file that a client has."""

    name: str = Field(description="the name that it has, or would have, in the knowledge base")
    sha256: str = Field(pattern="^[0-9A-Fa-f]{64}$", description="SHA-256 of its bytes, in hex")


class Manifest(KBName):
    """The files that a client has."""

    files: list[FileDigest] = Field(max_length=200_000, description="all of them")


class UpdateInfo(KBName):
    """A new description."""

    kb_info: str = Field(description="what the knowledge base is about")


class SplitSettings(KBName, SplitFields):
    """How files of a knowledge base are cut from now on; what is not named stays as it is."""


class UpdateDocs(KBName, SplitFields):
    """Files to split and embed anew."""

    file_names: list[str] = Field(description="files that are on the server already")
    override_custom_docs: bool = Field(default=False, description="also those whose chunks a client supplied")
    docs: str = Field(default="{}", description='own chunks as a JSON string: {"file": [{"page_content": "…"}]}')
    passwords: str | dict[str, Any] = Field(default="{}", description=PASSWORDS)
    not_refresh_vs_cache: bool = Field(default=False, description="accepted and without effect: nothing is lost")
    wait: bool = Field(default=True, description="false = answer at once with the ids of the jobs")


class RecreateVectorStore(KBName, SplitFields):
    """A rebuild."""

    allow_empty_kb: bool = Field(default=True, description="make a knowledge base that does not exist")
    vs_type: str | None = Field(default=None, description="another vector store; default: the one it has")
    embed_model: str | None = Field(default=None, description="another embedding model; default: the one it has")
    not_refresh_vs_cache: bool = Field(default=False, description="accepted and without effect: nothing is lost")


class MigrateKnowledgeBase(KBName):
    """A move."""

    vs_type: str | None = Field(default=None, description="the vector store to go to; default: the one it has")
    embed_model: str | None = Field(default=None, description="the embedding model to go to; default: the one it has")
    back: bool = Field(default=False, description="go back to the embedding model before the last move")


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
