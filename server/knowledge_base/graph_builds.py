"""Builds graphs in the background: chunk by chunk, taken up again by itself, visible while it goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, takewhile
from typing import TypeVar

import numpy as np
from sqlalchemy import Connection

from server.db import chunks as chunk_rows
from server.db import graph_reports, graph_vectors, graphs, kbs
from server.db import jobs as job_rows
from server.db.graph_reports import StoredReport
from server.db.graph_vectors import ItemVector
from server.db.graphs import BuildState, Unread
from server.db.vectors import pack, text_hash
from server.domain import Edits, GraphOptions, Job, KnowledgeBase, Progress, Report
from server.errors import BudgetSpent, EmbeddingError, NotFound
from server.graph.communities import Community, communities_of, ties_of
from server.graph.describe import digest_of, with_much_to_say
from server.graph.extractor import NLP
from server.graph.extractors import Extractors
from server.graph.identity import entity_key
from server.graph.index import GraphIndex
from server.graph.material import Material, material_of
from server.graph.reporter import Reporter
from server.graph.resolver import SENSE
from server.knowledge_base.context import KBContext
from server.retrieval.analysis import language

log = logging.getLogger(__name__)

GRAPH = "graph"
_PAGE = 200
_WAIT = 0.5
_TOGETHER = 500
"""Communities whose material is gathered at a time, while searches wait."""
INGEST = "ingest"
_LAST_FILE, _LOOK = 3.0, 0.05
"""Seconds."""


def graph_options(context: KBContext, kb: KnowledgeBase) -> GraphOptions:
    """How the chunks of a knowledge base are read: its own options over those of the settings."""
    settings = context.settings
    base = GraphOptions(
        settings.graph_extractor, tuple(settings.graph_entity_types), settings.graph_gleanings,
        settings.graph_token_budget, reports=settings.graph_reports,
    )  # fmt: skip
    return GraphOptions.of({**base.as_dict(), **kb.graph_options})


def queue_build(sql: Connection, context: KBContext, kb: KnowledgeBase, *, again: bool = False) -> bool:
    """Let the graph of a knowledge base be built where it is behind (or `again`) and may be; whether there is a job."""
    if not kb.generation.has_graph or not (again or graphs.is_behind(sql, kb.generation.id)):
        return False
    budget = graph_options(context, kb).budget
    if budget is not None and state_of(sql, kb).tokens >= budget:
        return False
    # One that runs may have taken its last look already.
    if any(job.state == "queued" for job in job_rows.active(sql, kb.id, GRAPH)):
        return False
    job_rows.add(sql, GRAPH, kb.id, None, {})
    return True


def state_of(sql: Connection, kb: KnowledgeBase) -> BuildState:
    """How far the graph of a knowledge base is, and what it took, summaries included."""
    state = BuildState.sum(graphs.states(sql, kb.generation.id).values())
    calls, tokens = graph_reports.spent(sql, kb.generation.id)
    tokens += graphs.summary_tokens(sql, kb.generation.id)
    return replace(state, calls=state.calls + calls, tokens=state.tokens + tokens)


class GraphHandler:
    """Runs `graph` jobs."""

    def __init__(self, context: KBContext, extractors: Extractors) -> None:
        self._context = context
        self._extractors = extractors

    def __call__(self, job: Job) -> Iterator[Progress]:
        """Read all chunks that are not in the graph yet, also those that come in meanwhile."""
        lock = self._context.locks.of((GRAPH, job.kb_id))
        while not lock.acquire(timeout=_WAIT):
            yield Progress(0, 0)
        try:
            yield from self._build(job)
        finally:
            lock.release()

    def _build(self, job: Job) -> Iterator[Progress]:
        """One pass over what waits after the other, until one finds nothing; then what follows from all chunks."""
        while (yield from self._pass(job)):
            pass
        with self._context.db.write() as sql:
            forgotten = forget_edits(sql, _knowledge_base(sql, job))
        yield from self._summarize(job)
        if (yield from self._all_files_are_in(job)):
            yield from self._report(job)
        yield from self._embed(job)
        if forgotten:
            self._context.db.scrub()

    def _pass(self, job: Job) -> Generator[Progress, None, int]:
        """Read each chunk that waits once; returns their number."""
        with self._context.db.read() as sql:
            kb = _knowledge_base(sql, job)
            state, options = state_of(sql, kb), graph_options(self._context, kb)
        yield Progress(state.done, state.total)
        extractor, count, spent = self._extractors.of(options), 0, state.tokens
        waiting = takewhile(lambda _: options.budget is None or spent < options.budget, self._waiting(job))
        for items in extractor.read(waiting):
            if items:
                with self._context.db.write() as sql:
                    graphs.add(sql, kb.generation.id, extractor.recipe, items)
            count += sum(not item.open for item in items)
            spent += sum(item.tokens for item in items)
            yield Progress(state.done + count, max(state.total, state.done + count))
        if options.budget is not None and spent >= options.budget and state.done + count < state.total:
            raise BudgetSpent(
                f"图谱构建已用 {spent} 词元，达到预算 {options.budget}；用 /graph/settings 提高后继续 / "
                f"the graph took {spent} tokens of its budget of {options.budget}; raise it with /graph/settings"
            )
        return count

    def _waiting(self, job: Job) -> Iterator[Unread]:
        """The chunks that wait, page by page as they are asked for."""
        last = 0
        while True:
            with self._context.db.read() as sql:
                page = graphs.waiting(sql, _knowledge_base(sql, job).generation.id, _PAGE, last)
            if not page:
                return
            yield from page
            last = page[-1].chunk_id

    def _summarize(self, job: Job) -> Iterator[Progress]:
        """Where there is a language model: one text in place of the descriptions of an entity that has many."""
        with self._context.db.read() as sql:
            kb = _knowledge_base(sql, job)
            options, state = graph_options(self._context, kb), state_of(sql, kb)
        if options.extractor == NLP or (options.budget is not None and state.tokens >= options.budget):
            return
        with opened(self._context, kb) as index:
            wanted = [
                (key, index.graph.shown(key).name, texts)
                for key, texts in with_much_to_say(index.graph)
                if index.summaries.get(key, (b"", ""))[0] != digest_of(texts)
            ]
        for (key, _, texts), text, tokens in self._extractors.summaries(options, wanted):
            with self._context.db.write() as sql:
                graphs.set_summary(sql, kb.generation.id, key, digest_of(texts), text, tokens)
            yield Progress(state.done, state.total)
        forget_summaries(self._context, kb)

    def _all_files_are_in(self, job: Job) -> Generator[Progress, None, bool]:
        """Whether no file is on its way; the end of the last one brings another build, and what is not complete is
        worth no report. One that has just come to its end is waited for."""
        until = time.monotonic() + _LAST_FILE
        while True:
            with self._context.db.read() as sql:
                if not job_rows.active(sql, job.kb_id, INGEST):
                    return True
            if time.monotonic() > until:
                return False
            yield Progress(0, 0)
            time.sleep(_LOOK)

    def _report(self, job: Job) -> Iterator[Progress]:
        """Reports of all communities, the narrowest first, for wider ones are made of them; only those are written of
        which anything has changed."""
        with self._context.db.read() as sql:
            kb = _knowledge_base(sql, job)
            options, state = graph_options(self._context, kb), state_of(sql, kb)
            stored = {one.report.community: one for one in graph_reports.everything(sql, kb.generation.id)}
        reporter = self._extractors.reporter(options)
        if reporter is None:
            self._drop_reports(kb, stored)
            return
        with opened(self._context, kb) as index:
            ties = ties_of(index.graph)
        found = communities_of(ties, self._context.settings.graph_community_size)  # searches need not wait for it
        reports, spent = _Reports(self._context, kb, reporter, stored), state.tokens
        for level in range(max((one.level for one in found), default=-1), -1, -1):
            for part in batched((one for one in found if one.level == level), _TOGETHER):
                for tokens in reports.of_level(part):
                    spent += tokens
                    if options.budget is not None and spent >= options.budget:
                        return
                    yield Progress(state.done, state.total)
        self._drop_reports(kb, stored.keys() - {one.id for one in found})

    def _drop_reports(self, kb: KnowledgeBase, communities_gone: Iterable[str]) -> None:
        if gone := list(communities_gone):
            with self._context.db.write() as sql:
                graph_reports.drop(sql, kb.generation.id, gone)

    def _embed(self, job: Job) -> Iterator[Progress]:
        """Give all that has a description a vector of it. A model that fails costs vectors and not the graph: the next
        build asks again."""
        with self._context.db.read() as sql:
            kb = _knowledge_base(sql, job)
        wanted, stale = vectors_wanted(self._context, kb)
        model = self._context.embeddings.get(kb.generation.embed_model)
        try:
            for at in range(0, len(wanted), model.batch_size):
                part = wanted[at : at + model.batch_size]
                vectors = model.embed_passages([text for _, text in part])
                rows = [
                    ItemVector(item, text_hash(text), language(text), pack(vector))
                    for (item, text), vector in zip(part, vectors, strict=True)
                    if np.isfinite(vector[0])
                ]
                with self._context.db.write() as sql:
                    graph_vectors.put(sql, kb.generation.id, rows)
                yield Progress(0, 0)
        except EmbeddingError as error:
            log.warning("entities have no vectors yet: %s", error.message)
        if stale:
            with self._context.db.write() as sql:
                graph_vectors.drop(sql, kb.generation.id, stale)


class _Reports:
    """The reports of one knowledge base, level after level; `stored` are those that were there before."""

    def __init__(
        self, context: KBContext, kb: KnowledgeBase, reporter: Reporter, stored: Mapping[str, StoredReport]
    ) -> None:
        self._context = context
        self._kb = kb
        self._reporter = reporter
        self._stored = stored
        self._done: dict[str, Report] = {}
        self._moved: dict[int, int] = {}
        """Chunks that have come back under other ids."""

    def of_level(self, level: Sequence[Community]) -> Iterator[int]:
        """Bring the reports of communities up to date whose parts' are; gives the tokens that each new one took."""
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
            graph = index.graph
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
        with self._context.db.write() as sql:
            graph_reports.put(sql, self._kb.generation.id, rows)
        self._done.update((row.report.community, row.report) for row in rows)


def forget_reports(context: KBContext, kb: KnowledgeBase) -> None:
    """Drop the reports of communities of which a chunk has gone."""
    with context.db.read() as sql:
        stored = graph_reports.everything(sql, kb.generation.id)
    if not stored:
        return
    with opened(context, kb) as index:
        stale = [one.report.community for one in stored if not index.graph.extractions.keys() >= one.made_of]
    with context.db.write() as sql:
        graph_reports.drop(sql, kb.generation.id, stale)


def vectors_wanted(context: KBContext, kb: KnowledgeBase) -> tuple[list[tuple[str, str]], list[str]]:
    """((item, text) of what has no vector of what is said of it now, items that are not there any more)."""
    with opened(context, kb) as index:
        stored, texts = index.vectors.digests, dict(index.texts())
        wanted = [(item, said.text) for item, said in texts.items() if stored.get(item) != said.digest]
        return wanted, [item for item in stored if item not in texts]


_Item = TypeVar("_Item")


def batched(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Lists of `size` items, the last one shorter (Python 3.12 has it in itertools)."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


@contextmanager
def opened(context: KBContext, kb: KnowledgeBase) -> Iterator[GraphIndex]:
    """The graph in memory, as SQL has it now; hold it for a short while only."""
    with context.graph_pool.acquire(kb.generation.id, GraphIndex) as index, index.lock:
        with context.db.read() as sql:
            now = kbs.get(sql, kb.id) or kb
            changed = kbs.changes_since(sql, now, index.version) if index.version else None
            index.advance(sql, replace(now, generation=kb.generation), changed)
        yield index


def _knowledge_base(sql: Connection, job: Job) -> KnowledgeBase:
    kb = kbs.get(sql, job.kb_id)
    if kb is None:
        raise NotFound("知识库已被删除 / the knowledge base is gone")
    return kb


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
    wanted, gone = vectors_wanted(context, kb)
    with opened(context, kb) as index:
        stale = [*gone, *(item for item, _ in wanted if item in index.vectors.digests)]
    if stale:
        with context.db.write() as sql:
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
        with context.db.write() as sql:
            graphs.drop_summaries(sql, kb.generation.id, stale)
            graphs.bump(sql, kb.generation.id)
