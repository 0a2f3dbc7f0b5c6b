"""Builds graphs in the background: chunk by chunk, taken up again by itself, visible while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sqlalchemy import Connection

from server.db import graphs, kbs
from server.db import jobs as job_rows
from server.db.graphs import Extracted
from server.domain import Extraction, Job, KnowledgeBase, Progress
from server.errors import NotFound
from server.graph.identity import grounded
from server.knowledge_base.context import KBContext

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
        while True:
            with self._context.db.read() as sql:
                kb = kbs.get(sql, job.kb_id)
                if kb is None:
                    raise NotFound("知识库已被删除 / the knowledge base is gone")
                chunks = graphs.waiting(sql, kb.generation.id, _STEP)
                state = graphs.state(sql, kb.generation.id)
            yield Progress(state.done, state.total)
            if not chunks:
                return
            items = self._read(chunks)
            with self._context.db.write() as sql:
                graphs.add(sql, RECIPE, items)

    def _read(self, chunks: Sequence[tuple[int, str, str]]) -> list[Extracted]:
        items = []
        for chunk_id, text, lang in chunks:
            found, dropped = grounded(self._extract(text, lang), text)
            items.append(Extracted(chunk_id, found, dropped))
        return items
