"""What is said of entities, relations and communities, as it is embedded.

An entity's text is its name and its description, a relation's its ends, its label and its description. What has no
description has no vector: a bare name says no more than the passages that hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from server.db.vectors import text_hash
from server.domain import Report
from server.graph.describe import Summaries, description_between, description_of
from server.graph.graph import Graph, Pair

BETWEEN = "\t"
"""Stands between the ends of a relation, and before a community; no key holds it, for keys are letters."""
_LONGEST = 1000
"""Characters of a description that are embedded."""


class Said(NamedTuple):
    """A text, and the digest that tells it from others."""

    text: str
    digest: bytes


class Texts:
    """The texts of one graph by item, kept until anything of them changes."""

    def __init__(self) -> None:
        self._entities: dict[str, Said] = {}
        self._relations: dict[Pair, Said] = {}
        self._summaries: Summaries = {}
        self._graph: Graph | None = None

    def of(self, graph: Graph, summaries: Summaries, reports: Iterable[Report]) -> Iterator[tuple[str, Said]]:
        """All that is said now, as (item, what)."""
        if changed := self._changed(graph, summaries):
            self._forget(changed)
        for key in changed:
            if key in graph.nodes:
                self._read(graph, key)
        yield from self._entities.items()
        yield from ((BETWEEN.join(pair), said) for pair, said in self._relations.items())
        for report in reports:
            yield BETWEEN + report.community, _said(f"{report.title}\n{report.summary}"[:_LONGEST])

    def _changed(self, graph: Graph, summaries: Summaries) -> set[str]:
        changed = graph.take_changed()
        if graph is not self._graph:
            self._graph, self._entities, self._relations = graph, {}, {}
            changed = set(graph.nodes)
        before, self._summaries = self._summaries, summaries
        if before is not summaries:
            changed |= {key for key in before.keys() | summaries.keys() if before.get(key) != summaries.get(key)}
        return changed

    def _forget(self, keys: set[str]) -> None:
        for key in keys:
            self._entities.pop(key, None)
        for pair in [pair for pair in self._relations if not keys.isdisjoint(pair)]:
            del self._relations[pair]

    def _read(self, graph: Graph, key: str) -> None:
        if text := description_of(graph, key, self._summaries):
            self._entities[key] = _said(f"{graph.shown(key).name}: {text[:_LONGEST]}")
        for pair in graph.around(key):
            if pair not in self._relations and (text := description_between(graph, pair)):
                source, target = (graph.shown(end).name for end in pair)
                self._relations[pair] = _said(f"{source} {graph.edges[pair].label} {target}: {text[:_LONGEST]}")


def _said(text: str) -> Said:
    return Said(text, text_hash(text))
