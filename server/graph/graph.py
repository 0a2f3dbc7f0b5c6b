"""The graph in memory: a sum over chunks, so that adding and taking away leave no trace of each other.

    graph = Graph()
    graph.put(17, extraction)
    graph.remove(17)            # as if chunk 17 had never been there

Everything that is shown of an entity or a relation is computed from the chunks that mention it now.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from server.domain import Claim, Edits, Extraction, Mention, Relation
from server.graph.resolver import Resolver

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Pair = tuple[str, str]
BY_HAND = -1
"""The id of the chunk that says what people have added; it is in no document, and no search returns it."""


@dataclass(slots=True)
class Node:
    """An entity: how its chunks name and class it. `chunks` counts its mentions by chunk, `aliases` the names that are
    only said to be its."""

    names: Counter[str] = field(default_factory=Counter)
    aliases: Counter[str] = field(default_factory=Counter)
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
    """Entities by key, relations by the keys of their ends; both are directed and have their chunks."""

    def __init__(self, edits: Edits | None = None) -> None:
        self.edits = edits or Edits()
        self.nodes: dict[str, Node] = {}
        self.edges: dict[Pair, Edge] = {}
        self.extractions: dict[int, Extraction] = {}
        self.resolver = Resolver(self.edits)
        self._around: defaultdict[str, set[Pair]] = defaultdict(set)
        self._placed: dict[int, Placed] = {}
        self._sorted: dict[str, list[Pair]] = {}
        self._matrix: Matrix | None = None
        self._shown: dict[str, Mention] = {}
        self._descriptions: dict[str | Pair, list[str]] = {}
        self._changed: set[str] = set()
        self.put(BY_HAND, self.edits.extraction)

    def put(self, chunk_id: int, found: Extraction) -> None:
        """Add what a chunk says, in place of what it said before."""
        self.update([(chunk_id, found)])

    def remove(self, chunk_id: int) -> None:
        """Take away what a chunk says, if it says anything."""
        self.update(gone=[chunk_id])

    def update(self, said: Iterable[tuple[int, Extraction]] = (), gone: Iterable[int] = ()) -> None:
        """Add what chunks say, in place of what they said before, and take away what those that are gone said."""
        for chunk_id in gone:
            self._forget(chunk_id)
        new = set()
        for chunk_id, found in said:
            self._forget(chunk_id)
            if found.mentions:
                self.resolver.note(chunk_id, found)
            self.extractions[chunk_id] = found
            new.add(chunk_id)
        for chunk_id in new | self.resolver.settle():
            self._take_away(chunk_id)
            self._place(chunk_id)
        self._matrix, self._sorted = None, {}

    def _forget(self, chunk_id: int) -> None:
        found = self.extractions.pop(chunk_id, None)
        if found is not None:
            self._take_away(chunk_id)
            self.resolver.forget(chunk_id, found)

    def _place(self, chunk_id: int) -> None:
        """Count what a chunk says for the entities that it means."""
        placed = self._placed[chunk_id] = self._resolved(chunk_id)
        self._note(placed)
        for key, mention in placed.mentions:
            node = self.nodes.setdefault(key, Node())
            node.names[mention.name] += 1
            node.aliases.update(mention.aliases)
            node.chunks[chunk_id] += 1
            if mention.type:
                node.types[mention.type] += 1
        for pair, relation in placed.relations:
            edge = self.edges.setdefault(pair, Edge())
            edge.chunks[chunk_id] = edge.chunks.get(chunk_id, 0.0) + relation.weight
            if relation.label:
                edge.labels[relation.label] += 1
            self._around[pair[0]].add(pair)
            self._around[pair[1]].add(pair)

    def _resolved(self, chunk_id: int) -> Placed:
        found = self.extractions[chunk_id]
        keys = {mention.name: self.resolver.entity_in(chunk_id, mention.name) for mention in found.mentions}
        mentions = [(key, mention) for mention in found.mentions if (key := keys[mention.name]) is not None]
        relations = []
        for relation in found.relations:
            source, target = keys.get(relation.source), keys.get(relation.target)
            hidden = (source, target) in self.edits.hidden_pairs
            # ends may have become one
            if source is not None and target is not None and source != target and not hidden:
                relations.append(((source, target), relation))
        claims = [(key, claim) for claim in found.claims if (key := keys.get(claim.subject)) is not None]
        return Placed(mentions, relations, claims)

    def _take_away(self, chunk_id: int) -> None:
        """As if the chunk had never been placed."""
        placed = self._placed.pop(chunk_id, None)
        if placed is None:
            return
        self._note(placed)
        for key, mention in placed.mentions:
            node = self.nodes[key]
            _take(node.names, mention.name)
            _take(node.chunks, chunk_id)
            for alias in mention.aliases:
                _take(node.aliases, alias)
            if mention.type:
                _take(node.types, mention.type)
            if not node.chunks:
                del self.nodes[key]
        for pair, relation in placed.relations:
            self._forget_relation(chunk_id, pair, relation.label)

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

    def _note(self, placed: Placed) -> None:
        """What was computed of these entities and relations does not hold any more."""
        keys = {key for key, _ in placed.mentions} | {key for pair, _ in placed.relations for key in pair}
        self._changed |= keys
        for key in keys:
            self._shown.pop(key, None)
            self._descriptions.pop(key, None)
        for pair, _ in placed.relations:
            self._descriptions.pop(pair, None)

    def take_changed(self) -> set[str]:
        """The keys of the entities of which anything has changed since this was asked last."""
        changed, self._changed = self._changed, set()
        return changed

    def keys_of(self, name: str) -> list[str]:
        """The keys of the entities that a name may mean, or of the one that has it as its key."""
        keys = [name] if name in self.nodes else self.resolver.entities_of(name)
        return [key for key in keys if key in self.nodes]

    def entities_in(self, chunk_id: int) -> set[str]:
        """Keys of the entities that a chunk mentions."""
        placed = self._placed.get(chunk_id)
        return {key for key, _ in placed.mentions} if placed else set()

    def pairs_in(self, chunk_id: int) -> list[Pair]:
        """The relations that a chunk tells."""
        placed = self._placed.get(chunk_id)
        return [pair for pair, _ in placed.relations] if placed else []

    def around(self, key: str) -> list[Pair]:
        """The relations of an entity, the heaviest first."""
        if key not in self._sorted:
            pairs = self._around.get(key, ())
            self._sorted[key] = sorted(pairs, key=lambda pair: (-self.edges[pair].weight, pair))
        return self._sorted[key]

    def shown(self, key: str) -> Mention:
        """An entity's name and type: those that people gave it, else those that are used most."""
        if key not in self._shown:
            node = self.nodes[key]
            given = self.edits.entities.get(key, Mention(node.name))
            self._shown[key] = Mention(
                given.name,
                given.type or node.type,
                given.description,
                tuple(dict.fromkeys([*_by_use(node.names), *_by_use(node.aliases)])),
            )
        return self._shown[key]

    def descriptions(self, key: str, allowed: Collection[int] | None = None) -> Sequence[str]:
        """What chunks say of an entity, in their order, each text once."""
        return self._said(key, self.nodes[key].chunks, allowed, lambda placed: placed.mentions)

    def descriptions_of(self, pair: Pair, allowed: Collection[int] | None = None) -> Sequence[str]:
        """What chunks say of a relation, in their order, each text once."""
        return self._said(pair, self.edges[pair].chunks, allowed, lambda placed: placed.relations)

    def _said(
        self, item: str | Pair, chunks: Iterable[int], allowed: Collection[int] | None, part: Callable[[Placed], _Part]
    ) -> Sequence[str]:
        if allowed is None and item in self._descriptions:
            return self._descriptions[item]
        placed = (self._placed[chunk_id] for chunk_id in _allowed(chunks, allowed))
        found = (one.description for about in placed for at, one in part(about) if at == item and one.description)
        texts = list(dict.fromkeys(found))
        if allowed is None:
            self._descriptions[item] = texts
        return texts

    def claims(self, key: str, allowed: Collection[int] | None = None) -> Iterator[tuple[int, Claim]]:
        """(chunk id, what it asserts) of an entity, in the order of the chunks."""
        for chunk_id in _allowed(self.nodes[key].chunks, allowed):
            yield from ((chunk_id, claim) for at, claim in self._placed[chunk_id].claims if at == key)

    @property
    def matrix(self) -> Matrix:
        """The graph as numbers, for walks over it."""
        if self._matrix is None:
            self._matrix = Matrix.of(self)
        return self._matrix


_Part = Iterable[tuple[str | Pair, Mention | Relation]]


class Placed(NamedTuple):
    """What a chunk says, with the keys of the entities that it means."""

    mentions: list[tuple[str, Mention]]
    relations: list[tuple[Pair, Relation]]
    claims: list[tuple[str, Claim]]


def _allowed(chunks: Iterable[int], allowed: Collection[int] | None) -> list[int]:
    return sorted(chunk_id for chunk_id in chunks if allowed is None or chunk_id in allowed)


def _by_use(names: Counter[str]) -> list[str]:
    return sorted(names, key=lambda name: (-names[name], name))


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
        keys, chunk_ids = list(graph.nodes), [chunk_id for chunk_id in graph.extractions if chunk_id != BY_HAND]
        number = {key: at for at, key in enumerate(keys)}
        place = {chunk_id: len(keys) + at for at, chunk_id in enumerate(chunk_ids)}
        ends: list[tuple[int, int, float]] = []
        for key, node in graph.nodes.items():
            ends.extend((number[key], place[chunk_id], 1.0) for chunk_id in node.chunks if chunk_id in place)
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
