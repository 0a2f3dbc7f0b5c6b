"""What questions are like: vectors of what is said of entities, relations and communities."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from server.db import graph_vectors
from server.db.graph_vectors import ItemVector
from server.db.vectors import FloatArray, unpack
from server.graph.graph import Graph, Pair
from server.graph.texts import BETWEEN
from server.models.transform import EmbeddingTransform


@dataclass(frozen=True)
class Near:
    """What is like a question, the most like first, with cosines."""

    entities: Sequence[tuple[str, float]] = ()
    relations: Sequence[tuple[Pair, float]] = ()


@dataclass
class _Shelf:
    """Items of one kind with their ids in SQL and their unit vectors, shape (n, d)."""

    items: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    vectors: FloatArray | None = None

    def change(self, gone: set[int], rows: Sequence[ItemVector], transform: EmbeddingTransform) -> None:
        """Take rows out by their ids, and put others in."""
        kept = [at for at, row_id in enumerate(self.ids) if row_id not in gone]
        parts = [] if self.vectors is None or not kept else [self.vectors[kept]]
        if rows:
            parts.append(transform.apply_passages(unpack([row.vector for row in rows]), [row.lang for row in rows]))
        self.items = [*(self.items[at] for at in kept), *(row.item for row in rows)]
        self.ids = [*(self.ids[at] for at in kept), *(row.id for row in rows)]
        self.vectors = np.concatenate(parts) if parts else None


class GraphVectors:
    """The vectors of one generation in memory, as SQL has them; searches take them `arranged`."""

    def __init__(self) -> None:
        self.digests: dict[str, bytes] = {}
        """Which text each item's vector is of."""
        self._ids: dict[int, str] = {}
        self._entities, self._relations, self._reports = _Shelf(), _Shelf(), _Shelf()
        # a build changes vectors many times between two searches, which alone need them in order
        self._gone: set[int] = set()
        self._new: dict[int, ItemVector] = {}

    def advance(self, sql: Connection, generation_id: int) -> None:
        """Read what is new, forget what is gone; a row is never changed."""
        there = graph_vectors.ids(sql, generation_id)
        for row_id in self._ids.keys() - there:
            self.digests.pop(self._ids.pop(row_id), None)
            if self._new.pop(row_id, None) is None:
                self._gone.add(row_id)
        for row in graph_vectors.by_ids(sql, there - self._ids.keys()):
            self._ids[row.id], self.digests[row.item], self._new[row.id] = row.item, row.digest, row

    def arranged(self, transform: EmbeddingTransform) -> Self:
        """These, ready for searches."""
        rows, gone = list(self._new.values()), self._gone
        self._new, self._gone = {}, set()
        for shelf, own in (
            (self._entities, [row for row in rows if BETWEEN not in row.item]),
            (self._relations, [row for row in rows if row.item.find(BETWEEN) > 0]),
            (self._reports, [row for row in rows if row.item.startswith(BETWEEN)]),
        ):
            if own or not gone.isdisjoint(shelf.ids):
                shelf.change(gone, own, transform)
        return self

    def report_cosines(self, vector: FloatArray) -> dict[str, float]:
        """How like a vector, shape (d,), each report is, by community."""
        if self._reports.vectors is None:
            return {}
        communities = (item.removeprefix(BETWEEN) for item in self._reports.items)
        return dict(zip(communities, (self._reports.vectors @ vector).tolist(), strict=True))

    def near(
        self,
        graph: Graph,
        vectors: tuple[FloatArray, FloatArray],
        count: int,
        allowed: Collection[int] | None,
    ) -> Near:
        """The entities most like the first vector and the relations most like the second, shape (d,) each.

        Under a filter only those count of which every chunk may be used: the vector holds what all of them say.
        """

        def may(chunks: Iterable[int]) -> bool:
            return allowed is None or all(chunk_id in allowed for chunk_id in chunks)

        entities = [
            (key, value) for key, value in _nearest(self._entities, vectors[0])
            if key in graph.nodes and may(graph.nodes[key].chunks)
        ]  # fmt: skip
        pairs = ((_pair(item), value) for item, value in _nearest(self._relations, vectors[1]))
        relations = [
            (pair, value) for pair, value in pairs if pair in graph.edges and may(graph.edges[pair].chunks)
        ]  # fmt: skip
        return Near(entities[:count], relations[:count])


def _pair(item: str) -> Pair:
    source, _, target = item.partition(BETWEEN)
    return source, target


_LOOKED_AT = 200
"""Of the nearest, those that a filter may leave something of."""


def _nearest(shelf: _Shelf, vector: FloatArray) -> list[tuple[str, float]]:
    if shelf.vectors is None:
        return []
    cosines = shelf.vectors @ vector
    return [(shelf.items[at], float(cosines[at])) for at in highest(cosines, _LOOKED_AT)]


def highest(values: NDArray[np.floating], count: int) -> list[int]:
    """Where the largest `count` of some values stand, the largest first, equal ones in their order."""
    if count >= len(values):
        return [int(at) for at in np.argsort(-values, kind="stable")]
    least = np.partition(values, len(values) - count)[len(values) - count]
    among = np.flatnonzero(values >= least)
    return [int(at) for at in among[np.argsort(-values[among], kind="stable")][:count]]
