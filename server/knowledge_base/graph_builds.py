"""Builds graphs in the background: chunk by chunk, taken up again by itself, visible while it goes on."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile

import numpy as np
from sqlalchemy import Connection

from server.db import graph_vectors, graphs, kbs
from server.db import jobs as job_rows
from server.db.graph_vectors import ItemVector
from server.db.graphs import BuildState, Unread
from server.db.vectors import pack, text_hash
from server.domain import Edits, GraphOptions, Job, KnowledgeBase, Progress
from server.errors import BudgetSpent, EmbeddingError, NotFound
from server.graph.describe import digest_of, with_much_to_say
from server.graph.extractor import NLP
from server.graph.extractors import Extractors
from server.graph.identity import entity_key
from server.graph.index import GraphIndex
from server.graph.resolver import SENSE
from server.graph.vectors import texts_of
from server.knowledge_base.context import KBContext
from server.retrieval.analysis import language

log = logging.getLogger(__name__)

GRAPH = "graph"
_PAGE = 200
_WAIT = 0.5


def graph_options(context: KBContext, kb: KnowledgeBase) -> GraphOptions:
    """How the chunks of a knowledge base are read: its own options over those of the settings."""
    settings = context.settings
    base = GraphOptions(
        settings.graph_extractor, tuple(settings.graph_entity_types), settings.graph_gleanings,
        settings.graph_token_budget,
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
    return replace(state, tokens=state.tokens + graphs.summary_tokens(sql, kb.generation.id))


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
        with self._context.db.write() as sql:
            graph_vectors.drop(sql, kb.generation.id, stale)


def vectors_wanted(context: KBContext, kb: KnowledgeBase) -> tuple[list[tuple[str, str]], list[str]]:
    """((item, text) of what has no vector of what is said of it now, items that are not there any more)."""
    with context.db.read() as sql:
        stored = graph_vectors.digests(sql, kb.generation.id)
    with opened(context, kb) as index:
        texts = dict(texts_of(index.graph, index.summaries))
    wanted = [(item, text) for item, text in texts.items() if stored.get(item) != text_hash(text)]
    return wanted, [item for item in stored if item not in texts]


@contextmanager
def opened(context: KBContext, kb: KnowledgeBase) -> Iterator[GraphIndex]:
    """The graph in memory, as SQL has it now; hold it for a short while only."""
    with context.graph_pool.acquire(kb.generation.id, GraphIndex) as index, index.lock:
        with context.db.read() as sql:
            now = kbs.get(sql, kb.id) or kb
            changed = kbs.changes_since(sql, now, index.version) if index.version else None
            index.advance(sql, replace(now, generation=kb.generation), changed)
            index.load_vectors(sql, kb.generation.id, context.default_transform(kb.generation.embed_model))
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
    with context.db.read() as sql:
        if not graph_vectors.stamp(sql, kb.generation.id)[0]:
            return
    wanted, gone = vectors_wanted(context, kb)
    with context.db.write() as sql:
        graph_vectors.drop(sql, kb.generation.id, [*gone, *(item for item, _ in wanted)])


def forget_summaries(context: KBContext, kb: KnowledgeBase) -> None:
    """Drop summaries of descriptions of which any has changed."""
    with context.db.read() as sql:
        stored = graphs.summaries(sql, kb.generation.id)
    if not stored:
        return
    with opened(context, kb) as index:
        graph = index.graph
        stale = [
            key for key, (digest, _) in stored.items()
            if key not in graph.nodes or digest != digest_of(graph.descriptions(key))
        ]  # fmt: skip
    if stale:
        with context.db.write() as sql:
            graphs.drop_summaries(sql, kb.generation.id, stale)
            graphs.bump(sql, kb.generation.id)
