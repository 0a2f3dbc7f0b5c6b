"""What the chunks of a knowledge base say for its graph, and which entities people have merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, Select, bindparam, delete, func, insert, or_, select, true, update

from server.db.chunks import twins
from server.db.tables import (
    ChunkGraphRow,
    ChunkRow,
    DocumentRow,
    FileRow,
    GenerationRow,
    GraphEditRow,
    GraphSummaryRow,
)
from server.domain import Claim, Edits, Extraction, Generation, Mention, Relation

_PAGE = 1000
_IN_LIMIT = 500
MOST_ATTEMPTS = 3
"""How often a chunk is tried before it has to be asked for again."""
IMPORTED = "import"
"""The recipe of what came with a file of tables; no reading of the text would find it again."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """What became of one chunk, whose text had the hash `text_hash`; without `found` it failed for `reason`.

    `found` holds all that was found until now, in `rounds` answers of a model; while it is `open` more are to come.
    `dropped`, `calls` and `tokens` are those since the last time.
    """

    chunk_id: int
    text_hash: bytes
    found: Extraction | None
    dropped: int = 0
    calls: int = 0
    tokens: int = 0
    reason: str = ""
    rounds: int = 0
    open: bool = False


@dataclass(frozen=True, slots=True)
class BuildState:
    """How far the graph of a file is, or of many: chunks in all, done and failed, and what they took."""

    total: int = 0
    done: int = 0
    failed: int = 0
    dropped: int = 0
    calls: int = 0
    tokens: int = 0

    @classmethod
    def sum(cls, states: Iterable[BuildState]) -> BuildState:
        """The state of many files together."""
        return cls(*map(sum, zip(*map(astuple, states), strict=True)))


_FAILED = ChunkGraphRow.reason != ""
_READ = (ChunkGraphRow.reason == "") & ~ChunkGraphRow.open


def _live(generation_id: int) -> Any:
    return (DocumentRow.generation_id == generation_id) & DocumentRow.live & ChunkRow.enabled


def states(sql: Connection, generation_id: int) -> dict[str, BuildState]:
    """How far the graph of a generation is, by file."""
    rows = sql.execute(
        select(
            FileRow.name,
            func.count(ChunkRow.id),
            func.count(ChunkGraphRow.chunk_id).filter(_READ),
            func.count(ChunkGraphRow.chunk_id).filter(_FAILED),
            func.sum(ChunkGraphRow.dropped),
            func.sum(ChunkGraphRow.calls),
            func.sum(ChunkGraphRow.tokens),
        )
        .select_from(ChunkRow)
        .join(DocumentRow, DocumentRow.id == ChunkRow.document_id)
        .join(FileRow, FileRow.id == DocumentRow.file_id)
        .outerjoin(ChunkGraphRow, ChunkGraphRow.chunk_id == ChunkRow.id)
        .where(_live(generation_id))
        .group_by(FileRow.name)
        .order_by(FileRow.name)
    )
    return {name: BuildState(*(int(value or 0) for value in numbers)) for name, *numbers in rows}


@dataclass(frozen=True, slots=True)
class Unread:
    """A chunk that has nothing in the graph yet, or not all; `attempts` counts those that failed."""

    chunk_id: int
    text_hash: bytes
    text: str
    lang: str
    found: Extraction | None = None
    rounds: int = 0
    attempts: int = 0


_WAITING = or_(ChunkGraphRow.chunk_id.is_(None), ChunkGraphRow.open, _FAILED & (ChunkGraphRow.attempts < MOST_ATTEMPTS))
"""Failed chunks are tried again until their attempts are used."""


def waiting(sql: Connection, generation_id: int, limit: int, after: int = 0) -> list[Unread]:
    """Chunks that are to be read, with ids above `after`."""
    graph = ChunkGraphRow
    rows = sql.execute(
        select(
            ChunkRow.id, ChunkRow.text_hash, ChunkRow.text, ChunkRow.lang,
            graph.data, graph.rounds, graph.attempts,
        )
        .join(DocumentRow, DocumentRow.id == ChunkRow.document_id)
        .outerjoin(graph, graph.chunk_id == ChunkRow.id)
        .where(_live(generation_id), ChunkRow.id > after, _WAITING)
        .order_by(ChunkRow.id)
        .limit(limit)
    )  # fmt: skip
    return [
        Unread(chunk_id, text_hash, text, lang, load(data) if rounds else None, rounds or 0, attempts or 0)
        for chunk_id, text_hash, text, lang, data, rounds, attempts in rows
    ]


def is_behind(sql: Connection, generation_id: int) -> bool:
    """Whether any chunk is to be read."""
    return bool(waiting(sql, generation_id, 1))


def sizes(sql: Connection, generation_id: int, *, again: bool = False) -> tuple[int, int, int]:
    """(chunks that are to be read, or all, their characters, the Chinese ones among them)."""
    row = sql.execute(
        select(
            func.count(ChunkRow.id),
            func.sum(func.length(ChunkRow.text)),
            func.sum(func.length(ChunkRow.text)).filter(ChunkRow.lang == "zh"),
        )
        .select_from(ChunkRow)
        .join(DocumentRow, DocumentRow.id == ChunkRow.document_id)
        .outerjoin(ChunkGraphRow, ChunkGraphRow.chunk_id == ChunkRow.id)
        .where(_live(generation_id), true() if again else _WAITING)
    ).one()
    return row[0], int(row[1] or 0), int(row[2] or 0)


def version(sql: Connection, generation_id: int) -> int:
    """Grows with every change to the graph, and to what is made of it, that is none to the chunks."""
    return sql.scalar(_VERSION, {"generation_id": generation_id}) or 0


_VERSION = select(GenerationRow.graph_version).where(GenerationRow.id == bindparam("generation_id"))


def bump(sql: Connection, generation_id: int) -> None:
    """Tell all who hold the graph that it changed."""
    grown = update(GenerationRow).where(GenerationRow.id == generation_id)
    sql.execute(grown.values(graph_version=GenerationRow.graph_version + 1))


def add(sql: Connection, generation_id: int, recipe: str, items: Sequence[Extracted]) -> None:
    """Store what chunks say; chunks that are gone, or were edited while they were read, are left out, and so are those
    that have come with what they say."""
    by_chunk: dict[int, list[Extracted]] = {}
    for item in items:
        by_chunk.setdefault(item.chunk_id, []).append(item)
    rows = sql.execute(select(ChunkRow.id, ChunkRow.text_hash).where(ChunkRow.id.in_(by_chunk)))
    present = {(row[0], row[1]) for row in rows}
    graph = ChunkGraphRow
    if recipe != IMPORTED:
        brought = select(graph.chunk_id, ChunkRow.text_hash).join(ChunkRow, ChunkRow.id == graph.chunk_id)
        rows = sql.execute(brought.where(graph.chunk_id.in_(by_chunk), graph.recipe == IMPORTED))
        present -= {(row[0], row[1]) for row in rows}
    spent = select(graph.chunk_id, graph.calls, graph.tokens, graph.attempts, graph.dropped, graph.rounds)
    spent = spent.where(graph.chunk_id.in_(by_chunk))
    before = {row[0]: row[1:] for row in sql.execute(spent)}
    kept = {chunk_id: rest for chunk_id, rest in by_chunk.items() if (chunk_id, rest[-1].text_hash) in present}
    if not kept:
        return
    sql.execute(delete(graph).where(graph.chunk_id.in_(kept)))
    new = [_row(recipe, rest, *before.get(chunk_id, (0,) * 5)) for chunk_id, rest in kept.items()]
    sql.execute(insert(graph), new)
    bump(sql, generation_id)


def _row(
    recipe: str, items: Sequence[Extracted], calls: int, tokens: int, attempts: int, dropped: int, rounds: int
) -> dict[str, Any]:
    """What is stored of a chunk after what has come for it, one after the other, beside what there was."""
    last = items[-1]
    dropped = (dropped if rounds else 0) + sum(item.dropped for item in items)
    return {
        "chunk_id": last.chunk_id, "recipe": recipe, "data": dump(last.found or Extraction()),
        "rounds": last.rounds, "open": last.open, "dropped": dropped,
        "calls": calls + sum(item.calls for item in items), "tokens": tokens + sum(item.tokens for item in items),
        "reason": last.reason, "attempts": attempts + sum(not item.open for item in items),
    }  # fmt: skip


_CARRIED = ("recipe", "data", "rounds", "open", "dropped", "calls", "tokens", "attempts", "reason")


def reuse(sql: Connection, document_id: int, file_id: int) -> None:
    """Give the chunks of a new version what equal texts of the file said before."""
    equal = twins(sql, document_id, file_id, ChunkGraphRow, DocumentRow.file_id == file_id)
    if equal is not None:
        columns = (getattr(ChunkGraphRow, name) for name in _CARRIED)
        found = select(equal.c.id, *columns).join(ChunkGraphRow, ChunkGraphRow.chunk_id == equal.c.twin)
        found = found.where(_READ)  # failures are not handed on
        sql.execute(insert(ChunkGraphRow).from_select(["chunk_id", *_CARRIED], found))


def forget_failures(sql: Connection, generation_id: int) -> int:
    """Let failed chunks be tried again; returns their number."""
    chunks = select(ChunkRow.id).join(DocumentRow, DocumentRow.id == ChunkRow.document_id).where(_live(generation_id))
    gone = sql.execute(delete(ChunkGraphRow).where(ChunkGraphRow.reason != "", ChunkGraphRow.chunk_id.in_(chunks)))
    return int(gone.rowcount)


def forget(sql: Connection, generation_id: int, but: str) -> None:
    """Let all chunks be read again but those that were read in one way, or were never read but imported."""
    sql.execute(delete(ChunkGraphRow).where(_otherwise(generation_id, but)))


def is_read_otherwise(sql: Connection, generation_id: int, recipe: str) -> bool:
    """Whether any chunk was read in another way."""
    return sql.scalar(select(ChunkGraphRow.chunk_id).where(_otherwise(generation_id, recipe)).limit(1)) is not None


def _otherwise(generation_id: int, recipe: str) -> Any:
    chunks = select(ChunkRow.id).join(DocumentRow, DocumentRow.id == ChunkRow.document_id).where(_live(generation_id))
    return ChunkGraphRow.recipe.not_in((recipe, IMPORTED)) & ChunkGraphRow.chunk_id.in_(chunks)


def reasons(sql: Connection, generation_id: int, limit: int) -> list[str]:
    """Why chunks could not be read, each reason once."""
    found = select(ChunkGraphRow.reason).join(ChunkRow, ChunkRow.id == ChunkGraphRow.chunk_id)
    found = found.join(DocumentRow, DocumentRow.id == ChunkRow.document_id).where(_live(generation_id), _FAILED)
    return list(sql.scalars(found.distinct().order_by(ChunkGraphRow.reason).limit(limit)))


def _rows(generation_id: int) -> Select[*tuple[Any, ...]]:
    return (
        select(ChunkRow.id, ChunkGraphRow.data)
        .join(DocumentRow, DocumentRow.id == ChunkRow.document_id)
        .outerjoin(ChunkGraphRow, (ChunkGraphRow.chunk_id == ChunkRow.id) & _READ)
        .where(_live(generation_id))
        .order_by(ChunkRow.id)
    )


def everything(sql: Connection, generation_id: int) -> Iterator[tuple[int, Extraction | None]]:
    """(chunk id, what it says) of all chunks that searches see; None for those that are not read yet."""
    return _loaded(sql, _rows(generation_id))


def between(sql: Connection, generation_id: int, lo: int, hi: int) -> Iterator[tuple[int, Extraction | None]]:
    """The same for a range of ids, bounds included."""
    return _loaded(sql, _rows(generation_id).where(ChunkRow.id.between(lo, hi)))


def of_chunks(sql: Connection, generation_id: int, ids: Iterable[int]) -> Iterator[tuple[int, Extraction]]:
    """The same for some chunks, as far as they are read."""
    wanted = list(ids)
    for at in range(0, len(wanted), _IN_LIMIT):
        rows = _rows(generation_id).where(ChunkRow.id.in_(wanted[at : at + _IN_LIMIT]))
        yield from ((chunk_id, found) for chunk_id, found in _loaded(sql, rows) if found is not None)


def _loaded(sql: Connection, query: Select[*tuple[Any, ...]]) -> Iterator[tuple[int, Extraction | None]]:
    rows = sql.execute(query)
    while page := rows.fetchmany(_PAGE):
        for chunk_id, data in page:
            yield int(chunk_id), load(data) if data is not None else None


def dump(found: Extraction) -> bytes:
    """An extraction as JSON; relations name their ends by number."""
    number = {mention.name: at for at, mention in enumerate(found.mentions)}
    return orjson.dumps(
        {
            "m": [(one.name, one.type, one.description, one.aliases) for one in found.mentions],
            "r": [
                (number[one.source], number[one.target], one.label, one.description, one.weight)
                for one in found.relations
                if one.source in number and one.target in number
            ],
            **(
                {"c": [_claim_row(one, number) for one in found.claims if one.subject in number]}
                if found.claims
                else {}
            ),
        }
    )


def _claim_row(one: Claim, number: Mapping[str, int]) -> tuple[Any, ...]:
    ends = number[one.subject], number.get(one.object)
    return (*ends, one.type, one.status, one.description, one.start, one.end, one.quote)


def load(data: bytes) -> Extraction:
    """What `dump` made."""
    stored = orjson.loads(data)
    mentions = tuple(Mention(name, kind, said, tuple(aliases)) for name, kind, said, aliases in stored["m"])
    relations = (
        Relation(mentions[source].name, mentions[target].name, label, description, weight)
        for source, target, label, description, weight in stored["r"]
    )
    claims = (
        Claim(mentions[subject].name, "" if to is None else mentions[to].name, *rest)
        for subject, to, *rest in stored.get("c", ())
    )
    return Extraction(mentions, tuple(relations), tuple(claims))


def edits(sql: Connection, kb_id: int) -> Edits:
    """What people have changed in a graph."""
    columns = select(GraphEditRow.kind, GraphEditRow.source, GraphEditRow.target, GraphEditRow.data)
    rows = list(sql.execute(columns.where(GraphEditRow.kb_id == kb_id).order_by(GraphEditRow.id)))
    of = {kind: [row[1:] for row in rows if row[0] == kind] for kind in EDITS}
    return Edits(
        merged={source: target for source, target, _ in of["merge"]},
        apart=frozenset(source for source, _, _ in of["apart"]),
        hidden=frozenset(source for source, _, _ in of["no_entity"]),
        hidden_pairs=frozenset((source, target) for source, target, _ in of["no_relation"]),
        entities={source: Mention(**data) for source, _, data in of["entity"]},
        relations={(source, target): Relation(**data) for source, target, data in of["relation"]},
    )


EDITS = ("merge", "apart", "no_entity", "no_relation", "entity", "relation")


def set_edits(sql: Connection, generation: Generation, changed: Edits) -> None:
    """Replace all of them."""
    rows = [
        *(("merge", source, target, {}) for source, target in changed.merged.items()),
        *(("apart", source, "", {}) for source in sorted(changed.apart)),
        *(("no_entity", source, "", {}) for source in sorted(changed.hidden)),
        *(("no_relation", *pair, {}) for pair in sorted(changed.hidden_pairs)),
        *(("entity", key, "", {"name": one.name, "type": one.type, "description": one.description})
          for key, one in changed.entities.items()),
        *(("relation", *pair, asdict(one)) for pair, one in changed.relations.items()),
    ]  # fmt: skip
    sql.execute(delete(GraphEditRow).where(GraphEditRow.kb_id == generation.kb_id))
    if rows:
        names = ("kind", "source", "target", "data")
        sql.execute(
            insert(GraphEditRow), [{"kb_id": generation.kb_id, **dict(zip(names, row, strict=True))} for row in rows]
        )
    bump(sql, generation.id)


def summaries(sql: Connection, generation_id: int) -> dict[str, tuple[bytes, str]]:
    """(digest of the descriptions, text) of each entity that has a summary, by key."""
    row = GraphSummaryRow
    found = sql.execute(select(row.entity, row.digest, row.text).where(row.generation_id == generation_id))
    return {entity: (digest, text) for entity, digest, text in found}


def summary_tokens(sql: Connection, generation_id: int) -> int:
    """What the summaries that are there took."""
    row = GraphSummaryRow
    return int(sql.scalar(select(func.sum(row.tokens)).where(row.generation_id == generation_id)) or 0)


def set_summary(sql: Connection, generation_id: int, entity: str, digest: bytes, text: str, tokens: int) -> None:
    """Store the summary of an entity, in place of the last."""
    drop_summaries(sql, generation_id, [entity])
    values = {"generation_id": generation_id, "entity": entity, "digest": digest, "text": text, "tokens": tokens}
    sql.execute(insert(GraphSummaryRow).values(values))
    bump(sql, generation_id)


def drop_summaries(sql: Connection, generation_id: int, entities: Iterable[str]) -> None:
    """Delete the summaries of these entities."""
    wanted, row = list(entities), GraphSummaryRow
    for at in range(0, len(wanted), _IN_LIMIT):
        part = wanted[at : at + _IN_LIMIT]
        sql.execute(delete(row).where(row.generation_id == generation_id, row.entity.in_(part)))
