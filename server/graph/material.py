"""What a report of a community is made of: its entities, what ties them, the chunks that say so, its parts' reports."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import orjson

from server.domain import Report
from server.graph.communities import Community
from server.graph.describe import Summaries, description_between, description_of
from server.graph.facts import said_in
from server.graph.graph import BY_HAND, Graph, Pair

_ENTITIES, _RELATIONS, _CLAIMS, _SOURCES = 30, 40, 20, 10
_LONGEST = 400
"""Characters of a description."""


@dataclass(frozen=True, slots=True)
class Material:
    """Entities and relations as lines of text, the most important first; `sources` are the chunks that speak of most of
    the entities, `speaking` all that do; `reports` are those of the parts, the weightiest first."""

    community: Community
    names: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    lines: tuple[str, ...]
    sources: tuple[int, ...]
    speaking: frozenset[int]
    mentions: int
    reports: tuple[Report, ...] = ()

    def digest(self, recipe: str, texts: Mapping[int, str]) -> str:
        """What tells whether a report is of this material; the ids of chunks do not count, their texts do."""
        said = [texts.get(chunk_id, "") for chunk_id in self.sources]
        parts = [one.text for one in self.reports]
        everything = orjson.dumps([recipe, self.community.keys, self.lines, self.mentions, said, parts])
        return hashlib.sha256(everything).hexdigest()


def material_of(
    graph: Graph, summaries: Summaries, community: Community, reports: Sequence[Report], among: Collection[int]
) -> Material:
    """The material of one community; of one with parts the parts' reports say what its chunks do. Sources are
    taken from chunks `among` those that are still there."""
    keys = sorted(community.keys, key=lambda key: (-len(graph.around(key)), -len(graph.nodes[key].chunks), key))
    counted: Counter[int] = Counter()
    for key in keys:
        counted.update(chunk_id for chunk_id in graph.nodes[key].chunks if chunk_id != BY_HAND and chunk_id in among)
    pairs = _inside(graph, keys[:_ENTITIES])
    named = [(graph.shown(source).name, graph.shown(target).name) for source, target in pairs]
    sources = [] if community.children else _best(graph, counted)
    ranked = sorted(reports, key=lambda one: (-one.rating, one.community))
    return Material(
        community,
        tuple(graph.shown(key).name for key in keys[:_ENTITIES]),
        tuple(named),
        (
            *_entity_lines(graph, summaries, keys[:_ENTITIES]),
            *_relation_lines(graph, pairs, named),
            *islice(_claim_lines(graph, keys[:_ENTITIES], among), _CLAIMS),
        ),
        tuple(sources),
        frozenset(counted),
        sum(graph.nodes[key].chunks.total() for key in keys),
        tuple(ranked),
    )


def _inside(graph: Graph, keys: Sequence[str]) -> list[Pair]:
    """The relations between entities, by the degrees of their ends and their weight."""
    inside = set(keys)
    pairs = {pair for key in keys for pair in graph.around(key) if inside.issuperset(pair)}

    def rank(pair: Pair) -> tuple[float, float, Pair]:
        degrees = sum(len(graph.around(key)) for key in pair)
        return -degrees, -round(graph.edges[pair].weight, 6), pair

    return sorted(pairs, key=rank)[:_RELATIONS]


def _best(graph: Graph, counted: Counter[int]) -> list[int]:
    """The chunks that speak of most, whatever their ids: among equals, by what they say."""
    most = sorted(counted, key=lambda chunk_id: -counted[chunk_id])
    if len(most) > _SOURCES:
        least = counted[most[_SOURCES - 1]]
        most = [chunk_id for chunk_id in most if counted[chunk_id] >= least]

    def rank(chunk_id: int) -> tuple[int, str, int]:
        said = "\n".join(mention.name for mention in graph.extractions[chunk_id].mentions)
        return -counted[chunk_id], hashlib.sha256(said.encode()).hexdigest(), chunk_id

    return sorted(most, key=rank)[:_SOURCES]


def _entity_lines(graph: Graph, summaries: Summaries, keys: Sequence[str]) -> Iterator[str]:
    for key in keys:
        shown = graph.shown(key)
        kind = f" ({shown.type})" if shown.type else ""
        said = " ".join(description_of(graph, key, summaries)[:_LONGEST].split())
        yield f"{shown.name}{kind}{': ' if said else ''}{said}"


def _claim_lines(graph: Graph, keys: Sequence[str], among: Collection[int]) -> Iterator[str]:
    for key in keys:
        yield from sorted(said_in(claim)[:_LONGEST] for _, claim in graph.claims(key, among))


def _relation_lines(graph: Graph, pairs: Sequence[Pair], named: Sequence[tuple[str, str]]) -> Iterator[str]:
    for pair, (source, target) in zip(pairs, named, strict=True):
        said = " ".join(description_between(graph, pair)[:_LONGEST].split()) or graph.edges[pair].label
        yield f"{source} → {target}{': ' if said else ''}{said}"
