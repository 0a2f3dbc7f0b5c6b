"""Searches that follow the graph: from the question's entities and from passages like it to what they are tied to.

Modes, by the names that LightRAG gave them: `local` (entities, and the chunks that speak of them), `global` (relations,
and the chunks that tell them), `hybrid` (both), `ppr`, personalised PageRank over entities and chunks from both kinds
of seed at once, after HippoRAG 2 (Gutiérrez et al. 2025), and `mix` (all of them).

All begin at the few passages that the text search likes best and at the entities that the question names, and give
every chunk a value for how it is tied to these. A chunk's place is its relevance to the text search plus a share of
that value: a passage two steps away moves up, and what the text search is sure of stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Literal, TypeVar, get_args

import numpy as np

from server.graph.graph import BY_HAND, Floats, Graph, Pair
from server.graph.identity import candidate_names
from server.graph.vectors import Near, highest

GraphMode = Literal["local", "global", "hybrid", "mix", "ppr"]
GRAPH_MODES: tuple[GraphMode, ...] = get_args(GraphMode)

_SEED_CHUNKS = 20
"""Text hits whose entities are shown as the question's too."""
_FIRST = 3
"""Text hits that a second step begins at. A question of two steps has its first one there or nowhere; with 5 or 10 of
them more is found that leads astray."""
_NAMED = 3.0
"""How much more an entity counts that the question names than one that only stands in a passage like it."""
_ALIKE = 2.0
"""The same of one whose description is most like the question."""
NEAREST = 10
"""Entities and relations that may count for being like the question."""
_ENTITIES, _RELATIONS, _REACHED = 40, 60, 200
_NAMED_SHARE = 0.2
"""Of the walker's new beginnings, those at entities that the question names; the others are at passages."""
_WALKED, _SPOKEN, _TOLD = 0.5, 0.2, 0.2
"""What the best chunk gets of a walk, of an entity that it speaks of and of a relation that it tells; 1 is what lies
between the best and the last text hit."""


@dataclass(frozen=True, slots=True)
class GraphFound:
    """What a search found: keys of entities and relations with their values, and chunk ids, each the best first."""

    entities: list[tuple[str, float]]
    relations: list[tuple[Pair, float]]
    chunks: list[tuple[int, float]]


def entities_named(graph: Graph, question: str, allowed: Collection[int] | None = None) -> list[str]:
    """Keys of the entities whose names stand in a question, in chunks that may be used; a name inside a longer one that
    is known does not count."""
    found: list[str] = []
    for name in candidate_names(question):
        for key in graph.keys_of(name):
            if key in found or any(key in longer for longer in found):
                continue
            if allowed is None or any(chunk_id in allowed for chunk_id in graph.nodes[key].chunks):
                found.append(key)
    return found


class GraphSearch:
    """One question to one graph. `text_hits` are chunk ids with their relevance, the best first; `named` are names that
    it is about beside those in its words, `near` what is like it; `allowed` are the only chunks that may be used, also
    for what is said of entities and relations (None = all)."""

    def __init__(
        self,
        graph: Graph,
        question: str,
        text_hits: Sequence[tuple[int, float]],
        allowed: Collection[int] | None,
        *,
        named: Sequence[str] = (),
        near: Near = Near(),  # noqa: B008  # frozen
    ) -> None:
        self._graph = graph
        self._allowed = allowed
        self._hits = [(chunk_id, value) for chunk_id, value in text_hits if allowed is None or chunk_id in allowed]
        self._liked = _spread(self._hits)
        known = entities_named(graph, question, allowed)
        known += [key for name in named for key in graph.keys_of(name) if self._chunks_of(key)]
        self._named = {key: _NAMED * self._rarity(len(self._chunks_of(key))) for key in known}
        self._alike = dict(_over(near.entities))
        self._related = dict(_over(near.relations))
        self._seeds = self._entity_seeds()

    def run(self, mode: GraphMode) -> GraphFound:
        """The answer of one mode."""
        walk = self._walk() if mode in ("ppr", "mix") else None
        entities = self._around_entities() if walk is None else self._entities_by(walk)
        relations = self._relations_of(entities) if mode in ("local", "ppr") else self._relations_near(entities)
        tied: defaultdict[int, float] = defaultdict(float)
        if walk is not None:
            _add(tied, self._chunks_by(walk), _WALKED)
        if mode != "global":
            _add(tied, self._speaking_of(self._beginnings()), _SPOKEN)
        if mode not in ("local", "ppr"):
            _add(tied, self._telling(relations), _TOLD)
        return GraphFound(_best(entities, _ENTITIES), _best(relations, _RELATIONS), self._ranked(tied))

    # seeds

    def _entity_seeds(self) -> dict[str, float]:
        """The question's entities, and those of the passages that are most like it."""
        seeds: defaultdict[str, float] = defaultdict(float, self._named)
        for key, value in self._alike.items():
            seeds[key] = max(_ALIKE * value * self._rarity(len(self._chunks_of(key))), seeds[key])
        for place, (chunk_id, _) in enumerate(self._hits[:_SEED_CHUNKS]):
            for key in self._graph.entities_in(chunk_id):
                seeds[key] += self._rarity(len(self._graph.nodes[key].chunks)) / (2 + place)
        return dict(seeds)

    def _rarity(self, chunks: int) -> float:
        return log(1 + len(self._graph.extractions) / max(1, chunks))

    def _chunks_of(self, key: str) -> list[int]:
        chunks = self._graph.nodes[key].chunks
        if self._allowed is None and BY_HAND not in chunks:  # nearly always, and hubs have many
            return list(chunks)
        return [chunk_id for chunk_id in chunks if self._may(chunk_id)]

    def _may(self, chunk_id: int) -> bool:
        return chunk_id != BY_HAND and (self._allowed is None or chunk_id in self._allowed)

    # entities and relations

    def _around_entities(self) -> dict[str, float]:
        """The seeds and their neighbours, which get a share by the weight of what ties them."""
        values = defaultdict(float, self._seeds)
        for key, value in _best(self._seeds, _ENTITIES):
            pairs = [(pair, weight) for pair in self._graph.around(key)[:_ENTITIES] if (weight := self._weight(pair))]
            total = sum(weight for _, weight in pairs)
            for pair, weight in pairs:
                other = pair[1] if pair[0] == key else pair[0]
                values[other] += 0.5 * value * weight / total
        return dict(values)

    def _weight(self, pair: Pair) -> float:
        """How strongly two entities are tied by chunks that may be used."""
        edge = self._graph.edges[pair]
        if self._allowed is None:
            return edge.weight
        return sum(weight for chunk_id, weight in edge.chunks.items() if chunk_id in self._allowed)

    def _relations_of(self, entities: Mapping[str, float]) -> dict[Pair, float]:
        """Relations of the best entities."""
        found: dict[Pair, float] = {}
        for key, value in _best(entities, _ENTITIES):
            for pair in self._graph.around(key)[:_ENTITIES]:
                if weight := self._weight(pair):
                    other = pair[1] if pair[0] == key else pair[0]
                    found[pair] = (value + entities.get(other, 0.0)) * log(1 + weight)
        return found

    def _relations_near(self, entities: Mapping[str, float]) -> dict[Pair, float]:
        """Relations that passages like the question tell, and those of its entities."""
        found: defaultdict[Pair, float] = defaultdict(float, self._relations_of(entities))
        for place, (chunk_id, _) in enumerate(self._hits[:_SEED_CHUNKS]):
            for pair in self._graph.pairs_in(chunk_id):
                value = entities.get(pair[0], 0.0) + entities.get(pair[1], 0.0)
                found[pair] += value / (2 + place)
        most = max(found.values(), default=1.0)
        for pair, value in self._related.items():
            if self._weight(pair):
                found[pair] += value * most
        return dict(found)

    # chunks

    def _first_hits(self) -> dict[int, float]:
        """The best text hits, by how far they stand above the last one."""
        return {chunk_id: value for chunk_id, value in list(self._liked.items())[:_FIRST] if value > 0}

    def _beginnings(self) -> dict[str, float]:
        """Entities that the question names or the first hits speak of; the rare ones count, as they tie for certain."""
        found: defaultdict[str, float] = defaultdict(float)
        for chunk_id, value in self._first_hits().items():
            for key in self._graph.entities_in(chunk_id):
                found[key] += value**2
        for key in self._named:
            found[key] += 0.5
        for key, value in self._alike.items():
            found[key] += 0.5 * value
        return {key: min(1.0, value) * self._specificity(key) for key, value in found.items()}

    def _specificity(self, key: str) -> float:
        """From 0, an entity of all chunks, to 1, that of a single one."""
        chunks, total = len(self._chunks_of(key)), len(self._graph.extractions)
        return (1.0 - log(max(1, chunks)) / log(max(2, total))) ** 2

    def _speaking_of(self, entities: Mapping[str, float]) -> dict[int, float]:
        """Chunks by the best entity that they speak of: one certain tie is more than many loose ones."""
        values: dict[int, float] = {}
        for key, value in entities.items():
            for chunk_id in self._chunks_of(key):
                values[chunk_id] = max(value, values.get(chunk_id, 0.0))
        return values

    def _telling(self, relations: Mapping[Pair, float]) -> dict[int, float]:
        """Chunks by the best relation that they tell."""
        values: dict[int, float] = {}
        for pair, value in _best(relations, _RELATIONS):
            for chunk_id in self._graph.edges[pair].chunks:
                if self._may(chunk_id):
                    values[chunk_id] = max(value, values.get(chunk_id, 0.0))
        return values

    def _ranked(self, tied: Mapping[int, float]) -> list[tuple[int, float]]:
        """Text hits and tied chunks by both values, the best first."""
        values = {
            chunk_id: self._liked.get(chunk_id, 0.0) + tied.get(chunk_id, 0.0) for chunk_id in {**self._liked, **tied}
        }
        return sorted(values.items(), key=lambda item: (-item[1], item[0]))

    # walks

    def _walk(self) -> Floats:
        """Where a walker from the first hits and the named entities is, without where it began."""
        matrix = self._graph.matrix
        reset = np.zeros(matrix.size)
        entities = {matrix.number[key]: value for key, value in {**self._alike, **self._named}.items()}
        self._begin_at(reset, entities, _NAMED_SHARE)
        hits = {matrix.place[at]: value for at, value in self._first_hits().items() if at in matrix.place}
        self._begin_at(reset, hits, 1.0 - _NAMED_SHARE)
        return matrix.walked(reset)

    def _begin_at(self, reset: Floats, places: Mapping[int, float], share: float) -> None:
        total = sum(places.values())
        for at, value in places.items():
            reset[at] += share * value / total

    def _chunks_by(self, walk: Floats) -> dict[int, float]:
        matrix = self._graph.matrix
        reached = walk[len(matrix.keys) :]
        best = highest(reached, _REACHED) if self._allowed is None else range(len(reached))
        found = ((matrix.chunk_ids[at], float(reached[at])) for at in best)
        return {chunk_id: value for chunk_id, value in found if value > 0 and self._may(chunk_id)}

    def _entities_by(self, walk: Floats) -> dict[str, float]:
        """The entities where the walker is most, of those that chunks speak of that may be used."""
        keys = self._graph.matrix.keys
        found: dict[str, float] = {}
        reached = walk[: len(keys)]
        for at in highest(reached, 4 * _ENTITIES if self._allowed is None else len(keys)):
            if len(found) == _ENTITIES or walk[at] <= 0:
                break
            if self._chunks_of(keys[at]):
                found[keys[at]] = float(walk[at])
        return found


_Key = TypeVar("_Key", str, Pair)


def _best(values: Mapping[_Key, float], count: int) -> list[tuple[_Key, float]]:
    return sorted(values.items(), key=lambda item: (-item[1], item[0]))[:count]


def _add(total: defaultdict[int, float], values: Mapping[int, float], share: float) -> None:
    """Add values, of which the largest counts as much as `share`."""
    most = max(values.values(), default=0.0) or 1.0
    for chunk_id, value in values.items():
        total[chunk_id] += share * value / most


def _spread(hits: Sequence[tuple[int, float]]) -> dict[int, float]:
    """Relevance from 1, the best hit's, to 0, the last one's, whatever the text search counts in."""
    best, last = (hits[0][1], hits[-1][1]) if hits else (0.0, 0.0)
    return {chunk_id: (value - last) / (best - last) if best > last else 1.0 for chunk_id, value in hits}


def _over(near: Sequence[tuple[_Key, float]]) -> list[tuple[_Key, float]]:
    """Cosines as values from 1, the best one's, towards 0, the last one's, which only shows what anything reaches."""
    if len(near) < 2:
        return list(near)
    best, last = near[0][1], near[-1][1]
    return [(key, (value - last) / (best - last)) for key, value in near[:-1]] if best > last else list(near)
