"""The nouns of the service: frozen values that every part takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

Metadata = Mapping[str, Any]
Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition on one metadata key: `kind` is eq, ne, gt, gte, lt, lte, in or nin.

    A chunk without the key, or with a value of another type, fits only `ne` and `nin`.
    """

    kind: str
    key: str
    value: Scalar | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Junction:
    """Conditions joined: `kind` is and, or, not (not all of them)."""

    kind: str
    parts: tuple[Condition, ...]


Condition = Compare | Junction
"""A metadata filter."""


@dataclass(frozen=True, slots=True)
class Block:
    """One stretch of a loaded document that belongs together: a paragraph, a table, a code fence, a row.

    `page` counts from 1 (page, slide or sheet). `headings` is the path of titles above the block,
    outermost first. A `whole` block (a table row group, a code fence) should not be cut while it
    fits into one chunk.
    """

    text: str
    page: int | None = None
    headings: tuple[str, ...] = ()
    whole: bool = False
    metadata: Metadata = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadedDocument:
    """What a loader made of a file: its blocks in reading order, and what it could not read.

    `warnings` are for people ("pages 3-7 have no text layer; OCR is not installed").
    """

    blocks: tuple[Block, ...]
    loader: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage that is indexed and cited.

    `start` and `end` are character offsets into the canonical text of the file version, which is the
    texts of its blocks joined by two newlines; they are None for chunks that a client supplied.
    """

    text: str
    start: int | None = None
    end: int | None = None
    page: int | None = None
    headings: tuple[str, ...] = ()
    metadata: Metadata = field(default_factory=dict)
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Mention:
    """An entity as one chunk names it.

    `type` is person, organization, location, event, time, product, concept …, and empty when it is not known.
    `aliases` are other names that the chunk gives it.
    """

    name: str
    type: str = ""
    description: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Relation:
    """Two entities that a chunk connects, in the direction in which it does; `label` is what is between them."""

    source: str
    target: str
    label: str = ""
    description: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Claim:
    """What one chunk asserts of an entity: a covariate, as GraphRAG calls it.

    `subject` and `object` are names of mentions, the object may be empty; `status` is true, false or suspected; `start`
    and `end` are dates as far as the text gives them; `quote` are the words of the chunk that say it.
    """

    subject: str
    object: str = ""
    type: str = ""
    status: str = "true"
    description: str = ""
    start: str = ""
    end: str = ""
    quote: str = ""


@dataclass(frozen=True, slots=True)
class Extraction:
    """What one chunk adds to the graph."""

    mentions: tuple[Mention, ...] = ()
    relations: tuple[Relation, ...] = ()
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class Edits:
    """What people have changed in a graph, beside what chunks say, by the keys of entities.

    `merged` tells which key belongs to which; `apart` are keys that are never folded into others by themselves;
    `hidden` entities and `hidden_pairs` are left out. `entities` and `relations` are added, or shown as given here.
    """

    merged: Mapping[str, str] = field(default_factory=dict)
    apart: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()
    hidden_pairs: frozenset[tuple[str, str]] = frozenset()
    entities: Mapping[str, Mention] = field(default_factory=dict)
    relations: Mapping[tuple[str, str], Relation] = field(default_factory=dict)

    @property
    def extraction(self) -> Extraction:
        """What people have added, as if a chunk had said it; types and descriptions are shown from here."""
        ends = [name for one in self.relations.values() for name in (one.source, one.target)]
        names = dict.fromkeys([*(one.name for one in self.entities.values()), *ends])
        return Extraction(tuple(map(Mention, names)), tuple(self.relations.values()))


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """How the chunks of a knowledge base are read for its graph.

    `extractor` is `nlp` or the name of a language model; `gleanings` tells how often a model is asked for what it has
    missed; `budget` is the number of tokens that all its chunks may take, None = any number. `readings` counts how
    often all was read anew. `reports` tells who writes reports of communities: `nlp`, a language model, nobody (empty).
    With `claims` a model is also asked for what is asserted of entities.
    """

    extractor: str
    entity_types: tuple[str, ...] = ()
    gleanings: int = 0
    budget: int | None = None
    readings: int = 0
    reports: str = "nlp"
    claims: bool = False

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> GraphOptions:
        """What `as_dict` made."""
        return cls(**{**stored, "entity_types": tuple(stored.get("entity_types", ()))})

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "entity_types": list(self.entity_types)}

    def changed(self, **given: Any) -> GraphOptions:
        """The same with what is given; None counts as not given."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a report tells, and the chunks that bear it out, the best first."""

    summary: str
    explanation: str
    chunk_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What there is to know about a community of entities. `rating` is its weight from 0 to 10; one that is `degraded`
    was put together without the language model that should have written it."""

    community: str
    level: int
    parent: str
    children: tuple[str, ...]
    keys: tuple[str, ...]
    title: str
    summary: str
    rating: float
    rating_explanation: str = ""
    findings: tuple[Finding, ...] = ()
    degraded: bool = False

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join([self.title, self.summary, *(f"{one.summary}: {one.explanation}" for one in self.findings)])


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result.

    `relevance` is what hybrid search ranks by: comparable between passages and knowledge bases, for one question.
    `score` is the squared L2 distance of unit vectors (0 = same, lower is better, at most 4), scaled as
    the embedding model's transform says; `similarity` is the same on a scale from 0 to 1, higher is
    better. A hit has no score while its vector is not in yet. `ranks` tells the place in each ranking
    that found it, counted from 1 (`dense`, `keyword`, `fused`).
    """

    id: str
    text: str
    file_name: str
    score: float | None
    similarity: float | None
    page: int | None = None
    headings: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None
    metadata: Metadata = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    kb_name: str = ""
    relevance: float | None = None
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Keywords:
    """What a question is about: `low` are names of entities, `high` themes. Empty where nobody said: the question
    stands for itself then."""

    low: tuple[str, ...] = ()
    high: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    """What a graph says of an entity or a relation, and the chunks that bear it out."""

    kind: str
    text: str
    chunk_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What is wanted of a search; None = as configured. `rerank` False leaves the order that retrieval gave; `mode`
    follows the graph of knowledge bases that have one, with `keywords` if somebody gave any. With `dynamic_selection` a
    language model chooses among reports, from the widest down to `community_level`."""

    top_k: int | None = None
    score_threshold: float | None = None
    search_type: str | None = None
    where: Condition | None = None
    rerank: bool = True
    mode: str | None = None
    keywords: Keywords = Keywords()
    community_level: int = 2
    dynamic_selection: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Hits, best first, what a graph says beside them, and what went wrong without spoiling them."""

    hits: list[Hit]
    warnings: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """One way in which a knowledge base is split, embedded and stored.

    `dimension` is None until the first vector is in. `options` are the splitter's. `transform_no` grows with
    every fit of the embedding transform (0 = the model's own), `transform_size` is the number of vectors
    that there were at the last one. `kb_uid` is the uid of its knowledge base.
    """

    id: int
    kb_id: int
    vs_type: str
    embed_model: str
    dimension: int | None
    options: Mapping[str, Any]
    transform_no: int = 0
    transform_size: int = 0
    kb_uid: str = ""

    @property
    def has_graph(self) -> bool:
        """Whether its chunks are read for a graph as well."""
        return self.vs_type == "graph"


@dataclass(frozen=True, slots=True)
class KnowledgeBase:
    """A knowledge base and the generation that searchers see; `version` grows with every change.

    `kind` is empty for those that people made and see. Hidden ones are `temp` (the files of one conversation,
    until the time `expires`), `library` (files that wait to be put somewhere) and `summary` (of a parent's files).
    `uid` is an id that nobody can guess.
    """

    id: int
    name: str
    info: str
    version: int
    generation: Generation
    create_time: datetime
    uid: str = ""
    kind: str = ""
    expires: float | None = None
    attributes: Metadata = field(default_factory=dict)
    graph_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a knowledge base holds.

    States: `stored` (bytes only), `pending` (waits or is being read), `keyword` (found by keyword, its
    vectors are on the way), `ready`, `partial` (some chunks have no vector), `failed` (see `reason`).
    `attributes` are the client's own, for filters; `uid` is an id that nobody can guess. The `password` opens the
    bytes; it is for their reader only, and never shown.
    """

    id: int
    kb_id: int
    name: str
    storage: str | None
    sha256: str
    size: int
    file_version: int
    custom_docs: bool
    state: str
    reason: str
    create_time: datetime
    update_time: datetime
    uid: str = ""
    attributes: Metadata = field(default_factory=dict)
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ChangedRange:
    """Chunks with ids from `lo` to `hi` may have come, changed or gone; `vectors_only` spares their text."""

    version: int
    lo: int
    hi: int
    vectors_only: bool


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk as it lies in SQL, with the name of its file."""

    id: int
    document_id: int
    ordinal: int
    text: str
    file_name: str
    lang: str
    page: int | None
    headings: tuple[str, ...]
    start: int | None
    end: int | None
    metadata: Metadata
    enabled: bool = True
    vector: bytes | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """Work in the background. States: `queued`, `running`, `done`, `failed`, `cancelled`."""

    id: int
    kind: str
    kb_id: int
    file_id: int | None
    payload: Mapping[str, Any]
    state: str
    reason: str
    total: int
    finished: int
    attempts: int
    create_time: datetime
    update_time: datetime

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self.state in ("done", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Reached:
    """How many pages of a file were read, while none of its text can be handed on yet."""

    page: int
    pages: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far long work is; `event` is what watchers are told, if anything."""

    finished: int
    total: int
    event: Mapping[str, Any] | None = None
