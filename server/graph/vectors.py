"""What questions are like: vectors of what is said of entities and relations.

An entity's text is its name and its description, a relation's its ends, its label and its description. What has no
description has no vector: a bare name says no more than the passages that hold it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from server.db.graph_vectors import ItemVector
from server.db.vectors import FloatArray, unpack
from server.domain import Report
from server.graph.describe import Summaries, description_between, description_of
from server.graph.graph import Graph, Pair
from server.models.transform import EmbeddingTransform

_BETWEEN = "\t"
"""Stands between the ends of a relation; no key holds it, for keys are letters."""
_LONGEST = 1000
"""Characters of a description that are embedded."""


def texts_of(graph: Graph, summaries: Summaries, reports: Iterable[Report]) -> Iterator[tuple[str, str]]:
    """(item, text) of all entities, relations and communities that have a vector."""
    for key in graph.nodes:
        if said := description_of(graph, key, summaries):
            yield key, f"{graph.shown(key).name}: {said[:_LONGEST]}"
    for pair, edge in graph.edges.items():
        if said := description_between(graph, pair):
            source, target = (graph.shown(key).name for key in pair)
            yield _BETWEEN.join(pair), f"{source} {edge.label} {target}: {said[:_LONGEST]}"
    for report in reports:
        yield _BETWEEN + report.community, f"{report.title}\n{report.summary}"[:_LONGEST]


@dataclass(frozen=True)
class Near:
    """What is like a question, the most like first, with cosines."""

    entities: Sequence[tuple[str, float]] = ()
    relations: Sequence[tuple[Pair, float]] = ()


@dataclass(frozen=True)
class GraphVectors:
    """Unit vectors of entities, shape (n, d), of relations, shape (m, d), and of reports, shape (r, d)."""

    keys: list[str] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    of_keys: FloatArray | None = None
    of_pairs: FloatArray | None = None
    communities: list[str] = field(default_factory=list)
    of_communities: FloatArray | None = None

    @classmethod
    def of(cls, rows: Sequence[ItemVector], transform: EmbeddingTransform) -> GraphVectors:
        """From rows of SQL."""
        entities = [row for row in rows if _BETWEEN not in row.item]
        reports = [row for row in rows if row.item.startswith(_BETWEEN)]
        relations = [row for row in rows if row.item.find(_BETWEEN) > 0]
        pairs = [(source, target) for source, _, target in (row.item.partition(_BETWEEN) for row in relations)]
        return cls(
            [row.item for row in entities], pairs, _matrix(entities, transform), _matrix(relations, transform),
            [row.item.removeprefix(_BETWEEN) for row in reports], _matrix(reports, transform),
        )  # fmt: skip

    def report_cosines(self, vector: FloatArray) -> dict[str, float]:
        """How like a vector, shape (d,), each report is, by community."""
        if self.of_communities is None:
            return {}
        return dict(zip(self.communities, (self.of_communities @ vector).tolist(), strict=True))

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
            (key, value) for key, value in _nearest(self.keys, self.of_keys, vectors[0])
            if key in graph.nodes and may(graph.nodes[key].chunks)
        ]  # fmt: skip
        relations = [
            (pair, value) for pair, value in _nearest(self.pairs, self.of_pairs, vectors[1])
            if pair in graph.edges and may(graph.edges[pair].chunks)
        ]  # fmt: skip
        return Near(entities[:count], relations[:count])


def _matrix(rows: Sequence[ItemVector], transform: EmbeddingTransform) -> FloatArray | None:
    if not rows:
        return None
    return transform.apply_passages(unpack([row.vector for row in rows]), [row.lang for row in rows])


_T = TypeVar("_T", str, Pair)
_LOOKED_AT = 200
"""Of the nearest, those that a filter may leave something of."""


def _nearest(items: Sequence[_T], vectors: FloatArray | None, vector: FloatArray) -> list[tuple[_T, float]]:
    if vectors is None:
        return []
    cosines = vectors @ vector
    best = np.argsort(-cosines, kind="stable")[:_LOOKED_AT]
    return [(items[at], float(cosines[at])) for at in best]
