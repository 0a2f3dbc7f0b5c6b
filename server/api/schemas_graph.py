"""Bodies and answers of the graph's routes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from server.api.schemas import LEVEL, LONGEST_QUESTION, MODE, KBName, Mode
from server.api.schemas_retrieval import HitView

Word = Annotated[str, Field(max_length=200)]


class GraphQuery(KBName):
    """A search that follows the graph."""

    query: str = Field(min_length=1, max_length=LONGEST_QUESTION, description="what to look for")
    mode: Mode = Field(default=None, description=f"{MODE}; ppr when left out")
    community_level: int = Field(default=2, ge=0, le=20, description=LEVEL)
    top_k: int | None = Field(default=None, ge=1, le=50, description="most chunks to return")
    filters: dict[str, Any] | None = Field(default=None, description="by metadata, as in /retrieval/search")
    ll_keywords: list[Word] = Field(default_factory=list, max_length=50, description="names that the question is about")
    hl_keywords: list[Word] = Field(default_factory=list, max_length=50, description="themes that it is about")
    max_entity_tokens: int | None = Field(default=None, ge=0, description="most tokens of entities; default: no limit")
    max_relation_tokens: int | None = Field(default=None, ge=0, description="most tokens of relations")
    max_total_tokens: int | None = Field(default=None, ge=0, description="most tokens in all; chunks get what is left")


class BuildGraph(KBName):
    """Building a graph."""

    again: bool = Field(
        default=False, description="also read chunks again that were read in another way than the settings say now"
    )


class GraphSettings(KBName):
    """How chunks are read for the graph; what is left out stays as it is."""

    extractor: str | None = Field(default=None, description="nlp (no language model), or the name of a language model")
    entity_types: list[str] | None = Field(default=None, max_length=50, description="what entities may be; [] = usual")
    gleanings: int | None = Field(default=None, ge=0, le=5, description="how often a model is asked for what it missed")
    claims: bool | None = Field(default=None, description="also ask the model for what is asserted of entities")
    reports: str | None = Field(default=None, description="who writes reports: nlp, a language model, empty = nobody")
    token_budget: int | None = Field(default=None, ge=0, description="tokens that the graph may take; 0 = any number")


class CreateEntity(KBName):
    """An entity that no file names."""

    name: str = Field(min_length=1, max_length=120)
    type: str = Field(default="", max_length=40)
    description: str = Field(default="", max_length=2000)


class EditEntity(KBName):
    """Other words for an entity; what is left out stays as it is."""

    name: str = Field(min_length=1, max_length=200, description="a name or the id of the entity")
    new_name: str = Field(default="", max_length=120)
    type: str = Field(default="", max_length=40)
    description: str = Field(default="", max_length=2000)


class RelationEnds(KBName):
    """A relation by the entities that it connects."""

    source: str = Field(min_length=1, max_length=200, description="a name or the id of an entity")
    target: str = Field(min_length=1, max_length=200, description="a name or the id of an entity")


class PutRelation(RelationEnds):
    """A relation between two entities that are there."""

    label: str = Field(default="", max_length=120)
    description: str = Field(default="", max_length=2000)
    weight: float = Field(default=1.0, gt=0, le=100)


class MergeEntities(KBName):
    """Entities that are one."""

    names: list[str] = Field(min_length=1, max_length=100, description="names of the entities that go")
    into: str = Field(min_length=1, max_length=200, description="a name of the entity that they become")


class EntityName(KBName):
    """An entity."""

    name: str = Field(min_length=1, max_length=200, description="a name of the entity")


class ClaimView(BaseModel):
    """What a chunk asserts of an entity."""

    object: str = Field(description="the other entity that it is about, if any")
    type: str
    status: str = Field(description="true, false or suspected")
    description: str
    start: str = Field(description="from when, as far as the text says it")
    end: str
    quote: str = Field(description="the words of the chunk")
    chunk_id: str


class EntityView(BaseModel):
    """An entity, as the chunks that are searched now speak of it."""

    id: str = Field(description="for entities that share a name")
    name: str
    type: str
    names: list[str] = Field(description="all names, the most frequent first")
    description: str = Field(description="what chunks say of it, where a language model has read them")
    mentions: int
    chunk_ids: list[str] = Field(description="chunks that mention it, at most 100")
    claims: list[ClaimView] = Field(default_factory=list, description="at most 100, where a model was asked for them")
    value: float | None = Field(default=None, description="how near it is to the query")


class RelationView(BaseModel):
    """What connects two entities."""

    source: str
    target: str
    label: str
    description: str
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
    reports: list[CommunityView] = Field(default_factory=list, description="with modes that search by reports")
    low: list[str] = Field(default_factory=list, description="names that it was searched by beside its own words")
    high: list[str] = Field(default_factory=list, description="themes that it was searched by")


class FindingView(BaseModel):
    """One thing that a report tells."""

    summary: str
    explanation: str
    chunk_ids: list[str] = Field(description="chunks that bear it out, the best first")


class CommunityView(BaseModel):
    """Entities that belong together, and the report of them."""

    id: str = Field(description="follows from the entities alone")
    level: int = Field(description="0 = the widest")
    parent: str = Field(description="the community that it is a part of; empty at level 0")
    children: list[str]
    size: int = Field(description="number of entities")
    entities: list[str] = Field(description="their names, at most 100")
    title: str
    summary: str
    rating: float = Field(description="its weight, from 0 to 10")
    rating_explanation: str
    findings: list[FindingView]
    degraded: bool = Field(description="true = put together without the language model that should have written it")
    value: float | None = Field(default=None, description="how near it is to the query")


class CommunityPage(BaseModel):
    """A page of communities."""

    total: int
    offset: int
    communities: list[CommunityView]


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
    reason: str = Field(description="why the last build ended too early; it goes on by itself, or with /graph/build")
    extractor: str
    entities: int
    relations: int
    dropped: int = Field(description="mentions and relations that their text did not bear out")
    calls: int = Field(description="calls of a language model")
    tokens: int
    files: list[FileGraphState]


class GraphEstimate(BaseModel):
    """What is left to do for a graph, as far as can be told before."""

    chunks: int
    characters: int
    calls: int = Field(description="calls of the language model; 0 with the extractor nlp")
    tokens_in: int
    tokens_out: int
    cost: float | None = Field(description="by price_in and price_out of the model; null where they are not set")
