"""What the chunks of a knowledge base say for its graph, and which entities people have merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, Select, delete, func, insert, or_, select, update

from server.db.chunks import twins
from server.db.tables import ChunkGraphRow, ChunkRow, DocumentRow, FileRow, GenerationRow, GraphEditRow
from server.domain import Extraction, Generation, Mention, Relation

_PAGE = 1000
_IN_LIMIT = 500
MOST_ATTEMPTS = 3
"""How often a chunk is tried before it has to be asked for again."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """What became of one chunk, whose text had the hash `text_hash`; without `found` it failed for `reason`."""

    chunk_id: int
    text_hash: bytes
    found: Extraction | None
    dropped: int = 0
    calls: int = 0
    tokens: int = 0
    reason: str = ""


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


def _live(generation_id: int) -> Any:
    return (DocumentRow.generation_id == generation_id) & DocumentRow.live & ChunkRow.enabled


def states(sql: Connection, generation_id: int) -> dict[str, BuildState]:
    """How far the graph of a generation is, by file."""
    failed = ChunkGraphRow.reason != ""
    rows = sql.execute(
        select(
            FileRow.name,
            func.count(ChunkRow.id),
            func.count(ChunkGraphRow.chunk_id).filter(~failed),
            func.count(ChunkGraphRow.chunk_id).filter(failed),
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
    """A chunk that has nothing in the graph yet."""

    chunk_id: int
    text_hash: bytes
    text: str
    lang: str


def waiting(sql: Connection, generation_id: int, limit: int, after: int = 0) -> list[Unread]:
    """Chunks that have nothing in the graph yet, with ids above `after`; failed ones until their attempts are used."""
    rows = sql.execute(
        select(ChunkRow.id, ChunkRow.text_hash, ChunkRow.text, ChunkRow.lang)
        .join(DocumentRow, DocumentRow.id == ChunkRow.document_id)
        .outerjoin(ChunkGraphRow, ChunkGraphRow.chunk_id == ChunkRow.id)
        .where(
            _live(generation_id),
            ChunkRow.id > after,
            or_(
                ChunkGraphRow.chunk_id.is_(None),
                (ChunkGraphRow.reason != "") & (ChunkGraphRow.attempts < MOST_ATTEMPTS),
            ),
        )
        .order_by(ChunkRow.id)
        .limit(limit)
    )
    return [Unread(*row) for row in rows]


def version(sql: Connection, generation_id: int) -> int:
    """Grows with every change to the graph that is none to the chunks."""
    return sql.scalar(select(GenerationRow.graph_version).where(GenerationRow.id == generation_id)) or 0


def _bump(sql: Connection, generation_id: int) -> None:
    grown = update(GenerationRow).where(GenerationRow.id == generation_id)
    sql.execute(grown.values(graph_version=GenerationRow.graph_version + 1))


def add(sql: Connection, generation_id: int, recipe: str, items: Sequence[Extracted]) -> None:
    """Store what chunks say; chunks that are gone, or were edited while they were read, are left out."""
    wanted = [item.chunk_id for item in items]
    rows = sql.execute(select(ChunkRow.id, ChunkRow.text_hash).where(ChunkRow.id.in_(wanted)))
    present = {(row[0], row[1]) for row in rows}
    attempts = select(ChunkGraphRow.chunk_id, ChunkGraphRow.attempts).where(ChunkGraphRow.chunk_id.in_(wanted))
    tried = {row[0]: row[1] for row in sql.execute(attempts)}
    kept = [item for item in items if (item.chunk_id, item.text_hash) in present]
    if not kept:
        return
    sql.execute(delete(ChunkGraphRow).where(ChunkGraphRow.chunk_id.in_([item.chunk_id for item in kept])))
    sql.execute(
        insert(ChunkGraphRow),
        [
            {
                "chunk_id": item.chunk_id, "recipe": recipe, "data": dump(item.found or Extraction()),
                "dropped": item.dropped, "calls": item.calls, "tokens": item.tokens, "reason": item.reason,
                "attempts": tried.get(item.chunk_id, 0) + 1,
            }
            for item in kept
        ],
    )  # fmt: skip
    _bump(sql, generation_id)


_CARRIED = ("recipe", "data", "dropped", "calls", "tokens", "attempts", "reason")


def reuse(sql: Connection, document_id: int, file_id: int) -> None:
    """Give the chunks of a new version what equal texts said before."""
    equal = twins(sql, document_id, file_id, ChunkGraphRow)
    if equal is not None:
        columns = (getattr(ChunkGraphRow, name) for name in _CARRIED)
        found = select(equal.c.id, *columns).join(ChunkGraphRow, ChunkGraphRow.chunk_id == equal.c.twin)
        found = found.where(ChunkGraphRow.reason == "")  # failures are not handed on
        sql.execute(insert(ChunkGraphRow).from_select(["chunk_id", *_CARRIED], found))


def forget_failures(sql: Connection, generation_id: int) -> int:
    """Let failed chunks be tried again; returns their number."""
    chunks = select(ChunkRow.id).join(DocumentRow, DocumentRow.id == ChunkRow.document_id).where(_live(generation_id))
    gone = sql.execute(delete(ChunkGraphRow).where(ChunkGraphRow.reason != "", ChunkGraphRow.chunk_id.in_(chunks)))
    return int(gone.rowcount)


def _rows(generation_id: int) -> Select[*tuple[Any, ...]]:
    return (
        select(ChunkRow.id, ChunkGraphRow.data)
        .join(DocumentRow, DocumentRow.id == ChunkRow.document_id)
        .outerjoin(ChunkGraphRow, (ChunkGraphRow.chunk_id == ChunkRow.id) & (ChunkGraphRow.reason == ""))
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
            "m": [(one.name, one.type, one.description) for one in found.mentions],
            "r": [
                (number[one.source], number[one.target], one.label, one.description, one.weight)
                for one in found.relations
                if one.source in number and one.target in number
            ],
        }
    )


def load(data: bytes) -> Extraction:
    """What `dump` made."""
    stored = orjson.loads(data)
    mentions = tuple(Mention(*row) for row in stored["m"])
    relations = (
        Relation(mentions[source].name, mentions[target].name, label, description, weight)
        for source, target, label, description, weight in stored["r"]
    )
    return Extraction(mentions, tuple(relations))


def merges(sql: Connection, kb_id: int) -> dict[str, str]:
    """Which keys belong to which, by hand."""
    rows = sql.execute(select(GraphEditRow.source, GraphEditRow.target).where(GraphEditRow.kb_id == kb_id))
    return {row[0]: row[1] for row in rows}


def set_merges(sql: Connection, generation: Generation, merged: Mapping[str, str]) -> None:
    """Replace all of them."""
    sql.execute(delete(GraphEditRow).where(GraphEditRow.kb_id == generation.kb_id))
    rows = [{"kb_id": generation.kb_id, "source": source, "target": target} for source, target in merged.items()]
    if rows:
        sql.execute(insert(GraphEditRow), rows)
    _bump(sql, generation.id)
