"""What is made of a graph and kept beside it: reports, summaries, vectors; and how it goes with what it was made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from sqlalchemy import Connection

from server.db import chunks as chunk_rows
from server.db import graph_reports, graph_vectors, graphs, kbs
from server.db.graph_reports import StoredReport
from server.domain import Edits, KnowledgeBase, Report
from server.graph.communities import Community
from server.graph.describe import digest_of
from server.graph.identity import entity_key
from server.graph.index import GraphIndex
from server.graph.material import Material, material_of
from server.graph.reporter import Reporter
from server.graph.resolver import SENSE
from server.knowledge_base.context import KBContext


class Outdated(Exception):
    """Something was made of chunks of which one has gone since; the build that follows makes it anew."""


@contextmanager
def opened(context: KBContext, kb: KnowledgeBase) -> Iterator[GraphIndex]:
    """The graph in memory, as SQL has it now; hold it for a short while only."""
    with context.graph_pool.acquire(kb.generation.id, GraphIndex) as index, index.lock:
        with context.db.read() as sql:
            now = kbs.get(sql, kb.id) or kb
            changed = kbs.changes_since(sql, now, index.version) if index.version else None
            index.advance(sql, replace(now, generation=kb.generation), changed)
        yield index


@dataclass(frozen=True, slots=True)
class Basis:
    """The state of a knowledge base that something is made from."""

    kb: KnowledgeBase
    version: int
    last_chunk: int

    @classmethod
    def of(cls, kb: KnowledgeBase, index: GraphIndex) -> Basis:
        """The state that a graph in memory has."""
        return cls(kb, index.version, max(index.graph.extractions, default=0))

    @contextmanager
    def write(self, context: KBContext) -> Iterator[Connection]:
        """A transaction that stores what was made.

        Raises:
            Outdated: a chunk that was there has been changed or deleted. Others may have come.
        """
        with context.db.write(self.kb.id) as sql:
            now = kbs.get(sql, self.kb.id)
            changes = kbs.changes_since(sql, now, self.version) if now else None
            if changes is None or any(one.lo <= self.last_chunk and not one.vectors_only for one in changes):
                raise Outdated
            yield sql


class Reports:
    """The reports of one knowledge base, level after level; `stored` are those that were there before."""

    def __init__(
        self, context: KBContext, kb: KnowledgeBase, reporter: Reporter, stored: Mapping[str, StoredReport]
    ) -> None:
        self._context = context
        self._kb = kb
        self._reporter = reporter
        self._stored = stored
        self._basis: Basis | None = None
        self._done: dict[str, Report] = {}
        self._moved: dict[int, int] = {}
        """Chunks that have come back under other ids."""

    def of_level(self, level: Sequence[Community]) -> Iterator[int]:
        """Bring the reports of communities up to date whose parts' are; gives the tokens that each new one took.

        Raises:
            Outdated: what a report was made of has gone meanwhile.
        """
        materials = self._materials(level)
        texts = self._texts(materials)
        digests = {one.community.id: one.digest(self._reporter.recipe, texts) for one in materials}
        new: list[Material] = []
        for material in materials:
            before = self._stored.get(material.community.id)
            if before is None or before.digest != digests[material.community.id]:
                new.append(material)
            else:
                self._keep(before, material)
        for step in batched(self._reporter.write(new, texts), self._reporter.together):
            self._put([
                StoredReport(one.report, digests[one.report.community], one.material.speaking, one.material.sources,
                             one.calls, one.tokens)
                for one in step
            ])  # fmt: skip
            yield sum(one.tokens for one in step)

    def _materials(self, level: Sequence[Community]) -> list[Material]:
        with opened(self._context, self._kb) as index:
            graph, self._basis = index.graph, Basis.of(self._kb, index)
            return [
                material_of(
                    graph, index.summaries, one, [self._done[part] for part in one.children if part in self._done],
                    graph.extractions,
                )
                for one in level
                if all(key in graph.nodes for key in one.keys)  # some may have gone since; the next build follows
            ]  # fmt: skip

    def _texts(self, materials: Sequence[Material]) -> dict[int, str]:
        wanted = {chunk_id for one in materials for chunk_id in one.sources}
        with self._context.db.read() as sql:
            found = chunk_rows.by_ids(sql, self._kb.generation.id, wanted)
        return {chunk_id: row.text for chunk_id, row in found.items()}

    def _keep(self, before: StoredReport, material: Material) -> None:
        """A report that says the same as before; where its chunks came back under other ids, it cites those."""
        self._moved.update(zip(before.sources, material.sources, strict=False))
        findings = tuple(
            replace(one, chunk_ids=tuple(self._moved.get(chunk_id, chunk_id) for chunk_id in one.chunk_ids))
            for one in before.report.findings
        )
        place = material.community
        report = replace(
            before.report, level=place.level, parent=place.parent, children=place.children, findings=findings
        )
        now = replace(before, report=report, made_of=material.speaking, sources=material.sources)
        if now != before:
            self._put([now])
        self._done[place.id] = report

    def _put(self, rows: Sequence[StoredReport]) -> None:
        if self._basis is None:
            raise RuntimeError("a report is made of material")
        with self._basis.write(self._context) as sql:
            graph_reports.put(sql, self._kb.generation.id, rows)
        self._done.update((row.report.community, row.report) for row in rows)


def forget_reports(context: KBContext, kb: KnowledgeBase) -> None:
    """Drop the reports of communities of which a chunk has gone."""
    with opened(context, kb) as index:
        there = index.graph.extractions.keys()
        stale = [one.report.community for one in index.reports if not there >= one.made_of]
    if stale:
        with context.db.write(kb.id) as sql:
            graph_reports.drop(sql, kb.generation.id, stale)


@dataclass(frozen=True, slots=True)
class VectorsWanted:
    """(item, text) of what has no vector of what is said of it now; items whose vectors are of something else."""

    basis: Basis
    missing: Sequence[tuple[str, str]]
    stale: Sequence[str]


def vectors_wanted(context: KBContext, kb: KnowledgeBase) -> VectorsWanted:
    """What is to be done for the vectors of what is said."""
    with opened(context, kb) as index:
        stored, texts = index.vectors.digests, dict(index.texts())
        # in the order of their index, so that a transaction changes few of its pages
        missing = sorted((item, said.text) for item, said in texts.items() if stored.get(item) != said.digest)
        stale = [item for item, digest in stored.items() if item not in texts or texts[item].digest != digest]
        return VectorsWanted(Basis.of(kb, index), missing, stale)


def forget_edits(sql: Connection, kb: KnowledgeBase) -> bool:
    """Drop changes to names that no chunk says any more, which came from files that are gone; whether there were any.
    What people added themselves stays. Nothing happens while chunks wait to be read."""
    edits = graphs.edits(sql, kb.id)
    if edits == Edits(entities=edits.entities, relations=edits.relations) or graphs.is_behind(sql, kb.generation.id):
        return False
    said = {
        entity_key(name)
        for _, found in graphs.everything(sql, kb.generation.id)
        for mention in (found.mentions if found else ())
        for name in (mention.name, *mention.aliases)
    }
    said |= edits.entities.keys() | {key for pair in edits.relations for key in pair}

    def known(*keys: str) -> bool:
        return all(key.partition(SENSE)[0] in said for key in keys)

    kept = replace(
        edits,
        merged={source: target for source, target in edits.merged.items() if known(source, target)},
        apart=frozenset(filter(known, edits.apart)),
        hidden=frozenset(filter(known, edits.hidden)),
        hidden_pairs=frozenset(pair for pair in edits.hidden_pairs if known(*pair)),
    )
    if kept == edits:
        return False
    graphs.set_edits(sql, kb.generation, kept)
    return True


def forget_vectors(context: KBContext, kb: KnowledgeBase) -> None:
    """Drop vectors of texts that are not said any more; the next build makes those that are missing then."""
    if stale := vectors_wanted(context, kb).stale:
        with context.db.write(kb.id) as sql:
            graph_vectors.drop(sql, kb.generation.id, stale)


def forget_summaries(context: KBContext, kb: KnowledgeBase) -> None:
    """Drop summaries of descriptions of which any has changed."""
    with opened(context, kb) as index:
        graph = index.graph
        stale = [
            key for key, (digest, _) in index.summaries.items()
            if key not in graph.nodes or digest != digest_of(graph.descriptions(key))
        ]  # fmt: skip
    if stale:
        with context.db.write(kb.id) as sql:
            graphs.drop_summaries(sql, kb.generation.id, stale)
            graphs.bump(sql, kb.generation.id)


_Item = TypeVar("_Item")


def batched(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Lists of `size` items, the last one shorter (Python 3.12 has it in itertools)."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch
