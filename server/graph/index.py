"""Keeps a graph in memory up with SQL, as the other indexes are: what changed is read again, nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from server.db import graphs
from server.domain import ChangedRange, Extraction
from server.graph.graph import Graph

_LOOK_AGAIN = 1.0
"""Seconds between two looks for what was extracted from chunks that were not read yet."""


class GraphIndex:
    """The graph of one generation, and the version of the knowledge base that it has seen."""

    def __init__(self) -> None:
        self.version = 0
        self.graph = Graph()
        self.lock = threading.RLock()
        self._merges: dict[str, str] = {}
        self._unread: set[int] = set()
        self._looked = 0.0

    def advance(
        self,
        sql: Connection,
        kb_id: int,
        generation_id: int,
        version: int,
        changed: Sequence[ChangedRange] | None,
    ) -> None:
        """Bring the graph to a version; `changed` is what changed since its own (None = all). Hold `lock`."""
        merges = graphs.merges(sql, kb_id)
        if changed is None or not self.version or merges != self._merges:
            self.graph, self._unread, self._merges = Graph(merges), set(), merges
            self._put(graphs.everything(sql, generation_id))
        else:
            for change in changed:
                if not change.vectors_only:
                    self._read_again(sql, generation_id, change)
            self._read_late(sql, generation_id)
        self.version = version

    def _read_again(self, sql: Connection, generation_id: int, change: ChangedRange) -> None:
        known = [*self.graph.extractions, *self._unread]
        for chunk_id in [chunk_id for chunk_id in known if change.lo <= chunk_id <= change.hi]:
            self.graph.remove(chunk_id)
            self._unread.discard(chunk_id)
        self._put(graphs.between(sql, generation_id, change.lo, change.hi))

    def _read_late(self, sql: Connection, generation_id: int) -> None:
        """What the builder has added since: it changes no chunk, and so no version."""
        if self._unread and time.monotonic() - self._looked > _LOOK_AGAIN:
            self._put(graphs.of_chunks(sql, generation_id, sorted(self._unread)))
            self._looked = time.monotonic()

    def _put(self, found: Iterable[tuple[int, Extraction | None]]) -> None:
        for chunk_id, extraction in found:
            if extraction is None:
                self._unread.add(chunk_id)
            else:
                self._unread.discard(chunk_id)
                self.graph.put(chunk_id, extraction)

    def look_now(self) -> None:
        """Do not wait with the next look at what is extracted."""
        self._looked = 0.0
