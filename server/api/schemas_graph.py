"""Bodies and answers of the graph's routes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from server.api.schemas import LONGEST_QUESTION, KBName, Mode
from server.api.schemas_retrieval import HitView


class GraphQuery(KBName):
    """A search that follows the graph."""

    query: str = Field(min_length=1, max_length=LONGEST_QUESTION, description="what to look for")
    mode: Mode = Field(default=None, description="local, global, hybrid, mix or ppr (default)")
    top_k: int | None = Field(default=None, ge=1, le=50, description="most chunks to return")
    filters: dict[str, Any] | None = Field(default=None, description="by metadata, as in /retrieval/search")


class MergeEntities(KBName):
    """Entities that are one."""

    names: list[str] = Field(min_length=1, max_length=100, description="names of the entities that go")
    into: str = Field(min_length=1, max_length=200, description="a name of the entity that they become")


class EntityName(KBName):
    """An entity."""

    name: str = Field(min_length=1, max_length=200, description="a name of the entity")


class EntityView(BaseModel):
    """An entity, as the chunks that are searched now speak of it."""

    name: str
    type: str
    names: list[str] = Field(description="all names, the most frequent first")
    mentions: int
    chunk_ids: list[str] = Field(description="chunks that mention it, at most 100")
    value: float | None = Field(default=None, description="how near it is to the query")


class RelationView(BaseModel):
    """What connects two entities."""

    source: str
    target: str
    label: str
    weight: float
    chunk_ids: list[str] = Field(description="chunks that say it, at most 100")
    value: float | None = Field(default=None, description="how near it is to the query")


class Subgraph(BaseModel):
    """Entities and the relations between them."""

    entities: list[EntityView]
    relations: list[RelationView]


class GraphData(Subgraph):
    """What a question leads to, without an answer."""

    chunks: list[HitView]


class EntityPage(BaseModel):
    """A page of entities."""

    total: int
    offset: int
    entities: list[EntityView]


class RelationPage(BaseModel):
    """A page of relations."""

    total: int
    offset: int
    relations: list[RelationView]


class FileGraphState(BaseModel):
    """How far the chunks of a file are."""

    file_name: str
    chunks: int
    done: int
    failed: int


class GraphState(BaseModel):
    """How far a graph is, and what it took."""

    chunks: int
    done: int
    failed: int = Field(description="chunks that could not be read; /graph/retry tries them again")
    building: bool
    entities: int
    relations: int
    dropped: int = Field(description="mentions and relations that their text did not bear out")
    calls: int = Field(description="calls of a language model")
    tokens: int
    files: list[FileGraphState]
