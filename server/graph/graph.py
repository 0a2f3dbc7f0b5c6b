"""The graph in memory: a sum over chunks, so that adding and taking away leave no trace of each other.

    graph = Graph()
    graph.put(17, extraction)
    graph.remove(17)            # as if chunk 17 had never been there

Everything that is shown of an entity or a relation is computed from the chunks that mention it now.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from server.domain import Extraction
from server.graph.identity import entity_key

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Pair = tuple[str, str]


@dataclass(slots=True)
class Node:
    """An entity: how its chunks name and class it. `chunks` counts its mentions by chunk."""

    names: Counter[str] = field(default_factory=Counter)
    types: Counter[str] = field(default_factory=Counter)
    chunks: Counter[int] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """The name that is used most."""
        return _most(self.names)

    @property
    def type(self) -> str:
        """The type that is given most, empty when none is."""
        return _most(self.types)


@dataclass(slots=True)
class Edge:
    """What connects two entities. `chunks` holds the weight that each chunk gives it."""

    labels: Counter[str] = field(default_factory=Counter)
    chunks: dict[int, float] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        """The sum over its chunks."""
        return sum(self.chunks.values())

    @property
    def label(self) -> str:
        """The label that is used most."""
        return _most(self.labels)


def _most(counted: Counter[str]) -> str:
    return min(counted, key=lambda text: (-counted[text], text)) if counted else ""


class Graph:
    """Entities by key, relations by the keys of their ends; both are directed and have their chunks.

    `canonical` maps keys that were merged by hand to the key that they belong to.
    """

    def __init__(self, canonical: Mapping[str, str] | None = None) -> None:
        self.nodes: dict[str, Node] = {}
        self.edges: dict[Pair, Edge] = {}
        self.extractions: dict[int, Extraction] = {}
        self._around: defaultdict[str, set[Pair]] = defaultdict(set)
        self._canonical = dict(canonical or {})
        self._matrix: Matrix | None = None

    def key_of(self, name: str) -> str:
        """The key of the entity that a name belongs to."""
        key = entity_key(name)
        return self._canonical.get(key, key)

    def put(self, chunk_id: int, found: Extraction) -> None:
        """Add what a chunk says, in place of what it said before."""
        self.remove(chunk_id)
        self.extractions[chunk_id] = found
        for mention in found.mentions:
            node = self.nodes.setdefault(self.key_of(mention.name), Node())
            node.names[mention.name] += 1
            node.chunks[chunk_id] += 1
            if mention.type:
                node.types[mention.type] += 1
        for pair, label, weight in self._pairs(found):
            edge = self.edges.setdefault(pair, Edge())
            edge.chunks[chunk_id] = edge.chunks.get(chunk_id, 0.0) + weight
            if label:
                edge.labels[label] += 1
            self._around[pair[0]].add(pair)
            self._around[pair[1]].add(pair)
        self._matrix = None

    def remove(self, chunk_id: int) -> None:
        """Take away what a chunk says, if it says anything."""
        found = self.extractions.pop(chunk_id, None)
        if found is None:
            return
        for mention in found.mentions:
            self._forget_mention(chunk_id, self.key_of(mention.name), mention.name, mention.type)
        for pair, label, _ in self._pairs(found):
            self._forget_relation(chunk_id, pair, label)
        self._matrix = None

    def _pairs(self, found: Extraction) -> Iterable[tuple[Pair, str, float]]:
        for relation in found.relations:
            pair = self.key_of(relation.source), self.key_of(relation.target)
            if pair[0] != pair[1]:  # ends that were merged by hand
                yield pair, relation.label, relation.weight

    def _forget_mention(self, chunk_id: int, key: str, name: str, kind: str) -> None:
        node = self.nodes[key]
        _take(node.names, name)
        _take(node.chunks, chunk_id)
        if kind:
            _take(node.types, kind)
        if not node.chunks:
            del self.nodes[key]

    def _forget_relation(self, chunk_id: int, pair: Pair, label: str) -> None:
        edge = self.edges.get(pair)
        if edge is None:
            return
        edge.chunks.pop(chunk_id, None)
        if label:
            _take(edge.labels, label)
        if not edge.chunks:
            del self.edges[pair]
            for key in pair:
                self._around[key].discard(pair)
                if not self._around[key]:
                    del self._around[key]

    def around(self, key: str) -> list[Pair]:
        """The relations of an entity, the heaviest first."""
        pairs = self._around.get(key, ())
        return sorted(pairs, key=lambda pair: (-self.edges[pair].weight, pair))

    @property
    def matrix(self) -> Matrix:
        """The graph as numbers, for walks over it."""
        if self._matrix is None:
            self._matrix = Matrix.of(self)
        return self._matrix


_Counted = TypeVar("_Counted", str, int)


def _take(counted: Counter[_Counted], item: _Counted) -> None:
    counted[item] -= 1
    if counted[item] <= 0:
        del counted[item]


@dataclass(frozen=True)
class Matrix:
    """Entities 0…n-1 and chunks n…n+c-1 as nodes of one undirected graph, by their edges in both directions.

    `sources`, `targets` and `weights` are parallel arrays, shape (e,).
    """

    keys: list[str]
    chunk_ids: list[int]
    sources: Ints
    targets: Ints
    weights: Floats

    @classmethod
    def of(cls, graph: Graph) -> Matrix:
        """The numbers of a graph."""
        keys, chunk_ids = list(graph.nodes), list(graph.extractions)
        number = {key: at for at, key in enumerate(keys)}
        place = {chunk_id: len(keys) + at for at, chunk_id in enumerate(chunk_ids)}
        ends: list[tuple[int, int, float]] = []
        for key, node in graph.nodes.items():
            ends.extend((number[key], place[chunk_id], 1.0) for chunk_id in node.chunks)
        for (source, target), edge in graph.edges.items():
            if source in number and target in number:
                ends.append((number[source], number[target], min(edge.weight, _HEAVIEST)))
        table = np.array(ends, dtype=np.float64).reshape(-1, 3)
        left, right, weights = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2]
        return cls(
            keys, chunk_ids, np.concatenate((left, right)), np.concatenate((right, left)),
            np.concatenate((weights, weights)),
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Number of nodes, entities and chunks."""
        return len(self.keys) + len(self.chunk_ids)

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of each entity."""
        return {key: at for at, key in enumerate(self.keys)}

    @cached_property
    def place(self) -> dict[int, int]:
        """The number of each chunk."""
        return {chunk_id: len(self.keys) + at for at, chunk_id in enumerate(self.chunk_ids)}

    @cached_property
    def steps(self) -> Floats:
        """The probability of each edge, seen from its source."""
        out = np.bincount(self.sources, self.weights, self.size)
        return np.asarray(self.weights / np.maximum(out[self.sources], 1e-12), np.float64)

    def walked(self, reset: Floats, damping: float = 0.5, rounds: int = 8) -> Floats:
        """The `pagerank` that comes by the edges: less what a node has only because the walker begins there."""
        begun = (1.0 - damping) * reset / max(float(reset.sum()), 1e-12)
        return np.asarray(self.pagerank(reset, damping, rounds) - begun, np.float64)

    def pagerank(self, reset: Floats, damping: float = 0.5, rounds: int = 12) -> Floats:
        """Where a walker is who follows the edges, and with 1 - `damping` begins anew at `reset`.

        Personalised PageRank (Haveliwala 2002) by power iteration; `reset` and the result have shape (size,) and the
        sum 1. A walker without a way out begins anew.
        """
        total = float(reset.sum())
        if total <= 0 or not self.size:
            return np.zeros(self.size)
        start = reset / total
        rank: Floats = np.asarray(start, np.float64)
        for _ in range(rounds):
            moved = np.bincount(self.targets, self.steps * rank[self.sources], self.size)
            rank = np.asarray(damping * moved, np.float64)
            rank += (1.0 - float(rank.sum())) * start
        return rank


_HEAVIEST = 5.0
"""What says the same thing again and again must not drown everything else."""
