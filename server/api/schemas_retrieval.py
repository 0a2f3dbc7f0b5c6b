"""Bodies and answers of retrieval and of chunk routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field

from server.api.schemas import LEVEL, LONGEST_QUESTION, MODE, Body, KBName, Mode, SearchKind


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
    mode: Mode = Field(default=None, description=MODE)
    community_level: int = Field(default=2, ge=0, le=20, description=LEVEL)
    filters: dict[str, Any] | None = Field(
        default=None,
        description="by metadata",
        examples=[{"type": "and", "filters": [{"type": "gte", "key": "year", "value": 2024}]}],
    )
    rerank: bool | None = Field(default=None, description="false = without the configured reranker")
    scope: Literal["chunks", "summaries"] = Field(default="chunks", description="search chunks, or summaries of files")


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

    ids: list[Annotated[int, Field(ge=0, le=2**62)]] = Field(
        min_length=1, max_length=10_000, description="ids of chunks"
    )
