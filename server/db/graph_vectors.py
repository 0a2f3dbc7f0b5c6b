"""Raw vectors of what is said of entities, relations and communities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select

from server.db import graphs
from server.db.tables import GraphVectorRow

_IN_LIMIT = 500
_ROW = GraphVectorRow


class ItemVector(NamedTuple):
    """The vector of one item, packed, of a text in a language; `digest` is that of the text. Rows are never changed,
    and no `id` is used twice; a new row has none yet."""

    item: str
    digest: bytes
    lang: str
    vector: bytes
    id: int = 0


def ids(sql: Connection, generation_id: int) -> set[int]:
    """The ids of all vectors of a generation."""
    return set(sql.scalars(select(_ROW.id).where(_ROW.generation_id == generation_id)))


def by_ids(sql: Connection, wanted: Iterable[int]) -> list[ItemVector]:
    """The vectors with these ids."""
    found: list[ItemVector] = []
    remaining = sorted(wanted)
    columns = select(_ROW.item, _ROW.digest, _ROW.lang, _ROW.vector, _ROW.id)
    for at in range(0, len(remaining), _IN_LIMIT):
        found += [ItemVector(*row) for row in sql.execute(columns.where(_ROW.id.in_(remaining[at : at + _IN_LIMIT])))]
    return found


def put(sql: Connection, generation_id: int, rows: Sequence[ItemVector]) -> None:
    """Store vectors, in place of those that the items had."""
    drop(sql, generation_id, [row.item for row in rows])
    if rows:
        sql.execute(
            insert(_ROW),
            [
                {
                    "generation_id": generation_id,
                    "item": row.item,
                    "digest": row.digest,
                    "lang": row.lang,
                    "vector": row.vector,
                }
                for row in rows
            ],
        )


def drop(sql: Connection, generation_id: int, items: Iterable[str]) -> None:
    """Delete the vectors of these items."""
    wanted = list(items)
    if wanted:
        graphs.bump(sql, generation_id)
    for at in range(0, len(wanted), _IN_LIMIT):
        part = wanted[at : at + _IN_LIMIT]
        sql.execute(delete(_ROW).where(_ROW.generation_id == generation_id, _ROW.item.in_(part)))
