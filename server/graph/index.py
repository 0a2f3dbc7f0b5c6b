"""Keeps a graph in memory up with SQL, as the other indexes are: what changed is read again, nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from server.db import graph_reports, graphs
from server.db.graph_reports import StoredReport
from server.domain import ChangedRange, Extraction, KnowledgeBase
from server.graph.graph import Graph
from server.graph.texts import Said, Texts
from server.graph.vectors import GraphVectors
from server.retrieval.keyword import merged_ranges


class GraphIndex:
    """The graph of one generation. `version` is that of the knowledge base, `graph_version` that of its graph, which
    grows while the chunks stay as they are."""

    def __init__(self) -> None:
        self.version = 0
        self.graph_version = -1
        self.graph = Graph()
        self.summaries: dict[str, tuple[bytes, str]] = {}
        self.vectors = GraphVectors()
        self.lock = threading.RLock()
        self.reports: list[StoredReport] = []
        self._reports_stamp = (0, 0)
        self._texts = Texts()
        self._unread: set[int] = set()
        self._options: Mapping[str, Any] = {}

    def advance(self, sql: Connection, kb: KnowledgeBase, changed: Sequence[ChangedRange] | None) -> None:
        """Bring the graph and what is made of it to what SQL says; `changed` is what changed since `version` (None =
        all). Hold `lock`."""
        generation_id, graph_version = kb.generation.id, graphs.version(sql, kb.generation.id)
        is_new = graph_version != self.graph_version
        edits = graphs.edits(sql, kb.id) if is_new else self.graph.edits
        if changed is None or edits != self.graph.edits or kb.graph_options != self._options:
            self.graph, self._unread, self._options = Graph(edits), set(), kb.graph_options
            self._put(graphs.everything(sql, generation_id))
        else:
            for lo, hi in merged_ranges(change for change in changed if not change.vectors_only):
                self._read_again(sql, generation_id, lo, hi)
            if is_new:
                self._put(graphs.of_chunks(sql, generation_id, sorted(self._unread)))
        if is_new:
            self.summaries = graphs.summaries(sql, generation_id)
            self._load_made(sql, generation_id)
        self.version, self.graph_version = kb.version, graph_version

    def _load_made(self, sql: Connection, generation_id: int) -> None:
        """Reports and vectors."""
        if (stamp := graph_reports.stamp(sql, generation_id)) != self._reports_stamp:
            self.reports, self._reports_stamp = graph_reports.everything(sql, generation_id), stamp
        self.vectors.advance(sql, generation_id)

    def texts(self) -> Iterator[tuple[str, Said]]:
        """What is said of every item that has a vector. Hold `lock`."""
        return self._texts.of(self.graph, self.summaries, (one.report for one in self.reports))

    def _read_again(self, sql: Connection, generation_id: int, lo: int, hi: int) -> None:
        known = {chunk_id for chunk_id in (*self.graph.extractions, *self._unread) if lo <= chunk_id <= hi}
        self._unread -= known
        self._put(graphs.between(sql, generation_id, lo, hi), known)

    def _put(self, found: Iterable[tuple[int, Extraction | None]], gone: Iterable[int] = ()) -> None:
        read: list[tuple[int, Extraction]] = []
        for chunk_id, extraction in found:
            if extraction is None:
                self._unread.add(chunk_id)
            else:
                read.append((chunk_id, extraction))
        self._unread.difference_update(chunk_id for chunk_id, _ in read)
        self.graph.update(read, gone)
