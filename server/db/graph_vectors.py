"""Raw vectors of what is said of entities, relations and communities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, delete, func, insert, select

from server.db.tables import GraphVectorRow

_IN_LIMIT = 500
_ROW = GraphVectorRow


class ItemVector(NamedTuple):
    """The vector of one item, packed, of a text in a language; `digest` is that of the text."""

    item: str
    digest: bytes
    lang: str
    vector: bytes


def stamp(sql: Connection, generation_id: int) -> tuple[int, int]:
    """Another one whenever the vectors of a generation have changed."""
    found = sql.execute(select(func.count(_ROW.id), func.max(_ROW.id)).where(_ROW.generation_id == generation_id)).one()
    return found[0], found[1] or 0


def digests(sql: Connection, generation_id: int) -> dict[str, bytes]:
    """Which texts the vectors are of, by item."""
    rows = sql.execute(select(_ROW.item, _ROW.digest).where(_ROW.generation_id == generation_id))
    return {row.item: row.digest for row in rows}


def everything(sql: Connection, generation_id: int) -> list[ItemVector]:
    """All vectors of a generation."""
    columns = select(_ROW.item, _ROW.digest, _ROW.lang, _ROW.vector)
    return [ItemVector(*row) for row in sql.execute(columns.where(_ROW.generation_id == generation_id))]


def put(sql: Connection, generation_id: int, rows: Sequence[ItemVector]) -> None:
    """Store vectors, in place of those that the items had."""
    drop(sql, generation_id, [row.item for row in rows])
    if rows:
        sql.execute(insert(_ROW), [{"generation_id": generation_id, **row._asdict()} for row in rows])


def drop(sql: Connection, generation_id: int, items: Iterable[str]) -> None:
    """Delete the vectors of these items."""
    wanted = list(items)
    for at in range(0, len(wanted), _IN_LIMIT):
        part = wanted[at : at + _IN_LIMIT]
        sql.execute(delete(_ROW).where(_ROW.generation_id == generation_id, _ROW.item.in_(part)))
