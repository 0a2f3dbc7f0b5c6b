"""Keeps a graph in memory up with SQL, as the other indexes are: what changed is read again, nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from server.db import graphs
from server.domain import ChangedRange, Extraction, KnowledgeBase
from server.graph.graph import Graph
from server.retrieval.keyword import merged_ranges


class GraphIndex:
    """The graph of one generation. `version` is that of the knowledge base, `graph_version` that of its graph, which
    grows while the chunks stay as they are."""

    def __init__(self) -> None:
        self.version = 0
        self.graph_version = -1
        self.graph = Graph()
        self.lock = threading.RLock()
        self._merges: dict[str, str] = {}
        self._unread: set[int] = set()

    def advance(self, sql: Connection, kb: KnowledgeBase, changed: Sequence[ChangedRange] | None) -> None:
        """Bring the graph to what SQL says; `changed` is what changed since `version` (None = all). Hold `lock`."""
        generation_id, graph_version = kb.generation.id, graphs.version(sql, kb.generation.id)
        merges = self._merges if graph_version == self.graph_version else graphs.merges(sql, kb.id)
        if changed is None or merges != self._merges:
            self.graph, self._unread, self._merges = Graph(merges), set(), merges
            self._put(graphs.everything(sql, generation_id))
        else:
            for lo, hi in merged_ranges(change for change in changed if not change.vectors_only):
                self._read_again(sql, generation_id, lo, hi)
            if graph_version != self.graph_version:
                self._put(graphs.of_chunks(sql, generation_id, sorted(self._unread)))
        self.version, self.graph_version = kb.version, graph_version

    def _read_again(self, sql: Connection, generation_id: int, lo: int, hi: int) -> None:
        known = [*self.graph.extractions, *self._unread]
        for chunk_id in [chunk_id for chunk_id in known if lo <= chunk_id <= hi]:
            self.graph.remove(chunk_id)
            self._unread.discard(chunk_id)
        self._put(graphs.between(sql, generation_id, lo, hi))

    def _put(self, found: Iterable[tuple[int, Extraction | None]]) -> None:
        for chunk_id, extraction in found:
            if extraction is None:
                self._unread.add(chunk_id)
            else:
                self._unread.discard(chunk_id)
                self.graph.put(chunk_id, extraction)
