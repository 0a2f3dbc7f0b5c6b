"""Builds graphs in the background: chunk by chunk, taken up again by itself, visible while it goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from itertools import takewhile

import numpy as np
from sqlalchemy import Connection

from server.db import graph_reports, graph_vectors, graphs, kbs
from server.db import jobs as job_rows
from server.db.graph_vectors import ItemVector
from server.db.graphs import BuildState, Unread
from server.db.vectors import pack, text_hash
from server.domain import GraphOptions, Job, KnowledgeBase, Progress
from server.errors import BudgetSpent, EmbeddingError, NotFound
from server.graph.communities import communities_of, ties_of
from server.graph.describe import digest_of, with_much_to_say
from server.graph.extractor import NLP
from server.graph.extractors import Extractors
from server.knowledge_base.context import KBContext
from server.knowledge_base.graph_made import (
    Basis,
    Outdated,
    Reports,
    batched,
    forget_edits,
    forget_summaries,
    forget_vectors,
    opened,
    vectors_wanted,
)
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
        settings.graph_token_budget, reports=settings.graph_reports, claims=settings.graph_claims,
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
        with self._context.db.write(job.kb_id) as sql:
            forgotten = forget_edits(sql, _knowledge_base(sql, job))
        try:
            yield from self._summarize(job)
            if (yield from self._all_files_are_in(job)):
                yield from self._report(job)
            yield from self._embed(job)
        except Outdated:
            log.info("graph of knowledge base %d: chunks have gone meanwhile, another build follows", job.kb_id)
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
                with self._context.db.write(job.kb_id) as sql:
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
            basis = Basis.of(kb, index)
            wanted = [
                (key, index.graph.shown(key).name, texts)
                for key, texts in with_much_to_say(index.graph)
                if index.summaries.get(key, (b"", ""))[0] != digest_of(texts)
            ]
        for (key, _, texts), text, tokens in self._extractors.summaries(options, wanted):
            with basis.write(self._context) as sql:
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
        reports, spent = Reports(self._context, kb, reporter, stored), state.tokens
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
            with self._context.db.write(kb.id) as sql:
                graph_reports.drop(sql, kb.generation.id, gone)

    def _embed(self, job: Job) -> Iterator[Progress]:
        """Give all that has a description a vector of it. A model that fails costs vectors and not the graph: the next
        build asks again."""
        with self._context.db.read() as sql:
            kb = _knowledge_base(sql, job)
        wanted = vectors_wanted(self._context, kb)
        model = self._context.embeddings.get(kb.generation.embed_model)
        try:
            for part in batched(wanted.missing, model.batch_size):
                vectors = model.embed_passages([text for _, text in part])
                rows = [
                    ItemVector(item, text_hash(text), language(text), pack(vector))
                    for (item, text), vector in zip(part, vectors, strict=True)
                    if np.isfinite(vector[0])
                ]
                with wanted.basis.write(self._context) as sql:
                    graph_vectors.put(sql, kb.generation.id, rows)
                yield Progress(0, 0)
        except EmbeddingError as error:
            log.warning("entities have no vectors yet: %s", error.message)
        forget_vectors(self._context, kb)


def _knowledge_base(sql: Connection, job: Job) -> KnowledgeBase:
    kb = kbs.get(sql, job.kb_id)
    if kb is None:
        raise NotFound("知识库已被删除 / the knowledge base is gone")
    return kb
