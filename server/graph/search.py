"""Searches that follow the graph: from the question's entities and from passages like it to what they are tied to.

Modes, by the names that LightRAG gave them: `local` (entities, what is around them, their chunks), `global` (relations,
their ends, their chunks), `hybrid` (both), `mix` (both, and text search); and `ppr`, personalised PageRank over
entities and chunks from both kinds of seed at once, after HippoRAG 2 (Gutiérrez et al. 2025).
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

GraphMode = Literal["local", "global", "hybrid", "mix", "ppr"]
GRAPH_MODES: tuple[GraphMode, ...] = get_args(GraphMode)

_SEED_CHUNKS = 20
"""Text hits whose entities count as the question's too."""
_NAMED = 3.0
"""How much more an entity counts that the question names than one that only stands in a passage like it."""
_ENTITIES, _RELATIONS, _CHUNKS = 40, 60, 200
_CHUNK_SHARE = 0.5
"""Of the walker's new beginnings, those at passages; the others are at entities."""
_RRF = 20
"""Ranks are added as 1 / (this + rank) (Cormack et al. 2009)."""


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
    """One question to one graph. `text_hits` are chunk ids with their relevance, the best first; `allowed` are the only
    chunks that may be used, also for what is said of entities and relations (None = all)."""

    def __init__(
        self, graph: Graph, question: str, text_hits: Sequence[tuple[int, float]], allowed: Collection[int] | None
    ) -> None:
        self._graph = graph
        self._allowed = allowed
        self._hits = [(chunk_id, value) for chunk_id, value in text_hits if allowed is None or chunk_id in allowed]
        named = entities_named(graph, question, allowed)
        self._named = {key: _NAMED * self._rarity(len(self._chunks_of(key))) for key in named}
        self._seeds = self._entity_seeds()

    def run(self, mode: GraphMode) -> GraphFound:
        """The answer of one mode."""
        if mode == "ppr":
            return self._ppr()
        entities = self._around_entities()
        relations = self._relations_near(entities) if mode != "local" else self._relations_of(entities)
        lists = []
        if mode != "global":
            lists.append(self._chunks_of_entities(entities))
        if mode != "local":
            lists.append(self._chunks_of_relations(relations))
        if mode == "mix":
            lists.append([chunk_id for chunk_id, _ in self._hits])
        return GraphFound(_best(entities, _ENTITIES), _best(relations, _RELATIONS), _fused(lists))

    # seeds

    def _entity_seeds(self) -> dict[str, float]:
        """The question's entities, and those of the passages that are most like it."""
        seeds: defaultdict[str, float] = defaultdict(float, self._named)
        for place, (chunk_id, _) in enumerate(self._hits[:_SEED_CHUNKS]):
            for key in self._graph.entities_in(chunk_id):
                seeds[key] += self._rarity(len(self._graph.nodes[key].chunks)) / (2 + place)
        return dict(seeds)

    def _rarity(self, chunks: int) -> float:
        return log(1 + len(self._graph.extractions) / max(1, chunks))

    def _chunks_of(self, key: str) -> list[int]:
        return [chunk_id for chunk_id in self._graph.nodes[key].chunks if self._may(chunk_id)]

    def _may(self, chunk_id: int) -> bool:
        return chunk_id != BY_HAND and (self._allowed is None or chunk_id in self._allowed)

    # local and global

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
        return dict(found)

    def _chunks_of_entities(self, entities: Mapping[str, float]) -> list[int]:
        values: defaultdict[int, float] = defaultdict(float)
        for key, value in _best(entities, _ENTITIES):
            chunks = self._chunks_of(key)
            for chunk_id in chunks:
                values[chunk_id] += value / (1 + log(len(chunks)))
        return self._by_value(values)

    def _chunks_of_relations(self, relations: Mapping[Pair, float]) -> list[int]:
        values: defaultdict[int, float] = defaultdict(float)
        for pair, value in _best(relations, _RELATIONS):
            for chunk_id in self._graph.edges[pair].chunks:
                if self._may(chunk_id):
                    values[chunk_id] += value
        return self._by_value(values)

    def _by_value(self, values: Mapping[int, float]) -> list[int]:
        """Chunk ids by their value from the graph, to which the text search has its say."""
        most = max(values.values(), default=0.0) or 1.0
        best = max((value for _, value in self._hits), default=0.0) or 1.0
        liked = {chunk_id: value / best for chunk_id, value in self._hits}
        return sorted(values, key=lambda chunk_id: (-(values[chunk_id] / most + liked.get(chunk_id, 0.0)), chunk_id))

    # ppr

    def _ppr(self) -> GraphFound:
        matrix = self._graph.matrix
        reset = np.zeros(matrix.size)
        self._begin_at_chunks(reset)
        self._begin_at_entities(reset)
        rank = matrix.pagerank(reset)
        entities = self._entities_by(rank)
        places = [matrix.place[chunk_id] for chunk_id in matrix.chunk_ids if self._may(chunk_id)]
        reached = sorted(places, key=lambda at: (-rank[at], at))[:_CHUNKS]
        walked = [matrix.chunk_ids[at - len(matrix.keys)] for at in reached if rank[at] > 0]
        unread = [chunk_id for chunk_id, _ in self._hits if chunk_id not in matrix.place]
        chunks = (
            _fused([walked, [chunk_id for chunk_id, _ in self._hits]])
            if unread
            else [(chunk_id, float(rank[matrix.place[chunk_id]])) for chunk_id in walked]
        )
        return GraphFound(_best(entities, _ENTITIES), _best(self._relations_of(entities), _RELATIONS), chunks)

    def _entities_by(self, rank: Floats) -> dict[str, float]:
        """The entities where the walker is most, of those that chunks speak of that may be used."""
        keys = self._graph.matrix.keys
        found: dict[str, float] = {}
        for at in np.argsort(-rank[: len(keys)], kind="stable"):
            if len(found) == _ENTITIES or rank[at] <= 0:
                break
            if self._chunks_of(keys[at]):
                found[keys[at]] = float(rank[at])
        return found

    def _begin_at_chunks(self, reset: Floats) -> None:
        place = self._graph.matrix.place
        best = self._hits[0][1] if self._hits else 0.0
        low = min((value for _, value in self._hits), default=0.0)
        for rank, (chunk_id, value) in enumerate(self._hits):
            if chunk_id in place:
                share = (value - low) / (best - low) if best > low else 1.0
                reset[place[chunk_id]] += share / (1 + rank / 2)
        total = reset.sum()
        if total > 0:
            reset *= _CHUNK_SHARE / total

    def _begin_at_entities(self, reset: Floats) -> None:
        seeds = _best(self._seeds, 12)
        total = sum(value for _, value in seeds)
        for key, value in seeds:
            reset[self._graph.matrix.number[key]] += (1.0 - _CHUNK_SHARE) * value / total


_Key = TypeVar("_Key", str, Pair)


def _best(values: Mapping[_Key, float], count: int) -> list[tuple[_Key, float]]:
    return sorted(values.items(), key=lambda item: (-item[1], item[0]))[:count]


def _fused(lists: Sequence[Sequence[int]]) -> list[tuple[int, float]]:
    values: defaultdict[int, float] = defaultdict(float)
    for ranked in lists:
        for rank, chunk_id in enumerate(ranked):
            values[chunk_id] += 1.0 / (_RRF + rank)
    return sorted(values.items(), key=lambda item: (-item[1], item[0]))
