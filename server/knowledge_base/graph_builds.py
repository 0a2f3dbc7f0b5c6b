"""Builds graphs in the background: chunk by chunk, taken up again by itself, visible while it goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator

from sqlalchemy import Connection

from server.db import graphs, kbs
from server.db import jobs as job_rows
from server.db.graphs import BuildState, Extracted, Unread
from server.domain import Extraction, Job, KnowledgeBase, Progress
from server.errors import NotFound
from server.graph.identity import entity_key, grounded
from server.knowledge_base.context import KBContext

log = logging.getLogger(__name__)

GRAPH = "graph"
_STEP = 32
_WAIT = 0.5
RECIPE = "nlp-1"

Extract = Callable[[str, str], Extraction]
"""What a chunk says, by its text and language."""


def queue_build(sql: Connection, kb: KnowledgeBase) -> bool:
    """Let the graph of a knowledge base be built where it is behind; whether there is a new job."""
    if not kb.generation.has_graph or not graphs.waiting(sql, kb.generation.id, 1):
        return False
    # One that runs may have taken its last look already.
    if any(job.state == "queued" for job in job_rows.active(sql, kb.id, GRAPH)):
        return False
    job_rows.add(sql, GRAPH, kb.id, None, {})
    return True


class GraphHandler:
    """Runs `graph` jobs."""

    def __init__(self, context: KBContext, extract: Extract) -> None:
        self._context = context
        self._extract = extract

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
        """One pass over what waits after the other, until one finds nothing."""
        while True:
            with self._context.db.read() as sql:
                state = BuildState.sum(graphs.states(sql, _knowledge_base(sql, job).generation.id).values())
            yield Progress(state.done, state.total)
            count = yield from self._pass(job, state)
            if not count:
                break
        with self._context.db.write() as sql:
            forgotten = forget_merges(sql, _knowledge_base(sql, job))
        if forgotten:
            self._context.db.scrub()

    def _pass(self, job: Job, state: BuildState) -> Generator[Progress, None, int]:
        """Read each chunk that waits once; returns their number."""
        count = last = 0
        while True:
            with self._context.db.read() as sql:
                generation = _knowledge_base(sql, job).generation
                chunks = graphs.waiting(sql, generation.id, _STEP, last)
            if not chunks:
                return count
            items = [self._read(chunk) for chunk in chunks]
            with self._context.db.write() as sql:
                graphs.add(sql, generation.id, RECIPE, items)
            count, last = count + len(chunks), chunks[-1].chunk_id
            done = state.done + count
            yield Progress(done, max(state.total, done))

    def _read(self, chunk: Unread) -> Extracted:
        """What a chunk says; one that cannot be read is noted as such and stops no other."""
        try:
            found, dropped = grounded(self._extract(chunk.text, chunk.lang), chunk.text)
        except Exception as error:
            log.exception("chunk %s cannot be read for the graph", chunk.chunk_id)
            return Extracted(chunk.chunk_id, chunk.text_hash, None, reason=type(error).__name__)
        return Extracted(chunk.chunk_id, chunk.text_hash, found, dropped)


def _knowledge_base(sql: Connection, job: Job) -> KnowledgeBase:
    kb = kbs.get(sql, job.kb_id)
    if kb is None:
        raise NotFound("知识库已被删除 / the knowledge base is gone")
    return kb


def forget_merges(sql: Connection, kb: KnowledgeBase) -> bool:
    """Drop merges of names that no chunk says any more, which came from files that are gone; whether there were any.
    Nothing happens while chunks wait to be read."""
    merged = graphs.merges(sql, kb.id)
    if not merged or graphs.waiting(sql, kb.generation.id, 1):
        return False
    said = {
        entity_key(mention.name)
        for _, found in graphs.everything(sql, kb.generation.id)
        for mention in (found.mentions if found else ())
    }
    kept = {source: target for source, target in merged.items() if source in said and target in said}
    if kept == merged:
        return False
    graphs.set_merges(sql, kb.generation, kept)
    return True
