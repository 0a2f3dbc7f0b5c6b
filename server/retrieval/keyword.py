"""The keyword index of one generation: BM25 over analysed terms, kept on disk by tantivy.

The index is a cache of SQL. It remembers the version of the knowledge base that it has seen, and is
brought forward by the ranges of chunk ids that changed since; applying a range twice does no harm, so a
crash between the index's commit and the note of its version costs one replay and nothing else. Opening
maps files and reads nothing that grows with the corpus.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import tantivy
from filelock import FileLock

from server.domain import ChangedRange
from server.retrieval.analysis import terms

_HEAP_BYTES = 15_000_000
_LAYOUT = 1
"""Grows when the analysis or the fields change: indexes of another layout are built anew."""

Pages = Iterable[list[tuple[int, str]]]
"""(chunk id, text) in lists of a few thousand."""


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("id", indexed=True, fast=True, stored=False)
    builder.add_text_field("terms", tokenizer_name="whitespace", index_option="freq", stored=False)
    return builder.build()


def _manual(index: tantivy.Index) -> tantivy.Index:
    """We say when to look at new commits; the library's own watcher would be a thread that polls for each index."""
    index.config_reader("manual")
    return index


class KeywordIndex:
    """Searches by keyword; safe to use from many threads and from several processes of one machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._schema = _schema()
        self._lock = threading.Lock()
        self._file_lock = FileLock(directory.with_suffix(".lock"))
        directory.parent.mkdir(parents=True, exist_ok=True)
        with self._file_lock:
            self._index = self._open()
        self.version = self._read_version()

    def _open(self) -> tantivy.Index:
        if self._read_version() >= 0:
            try:
                return _manual(tantivy.Index.open(str(self.directory)))
            except (ValueError, OSError):
                pass  # damaged: the rows in SQL build it again
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        index = _manual(tantivy.Index(self._schema, path=str(self.directory)))
        self._write_version(0)
        return index

    @property
    def _state(self) -> Path:
        return self.directory / "zhiku.json"

    def _read_version(self) -> int:
        try:
            state = json.loads(self._state.read_bytes())
            return int(state["version"]) if state["layout"] == _LAYOUT else -1
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    def _write_version(self, version: int) -> None:
        part = self._state.with_suffix(".part")
        with part.open("w") as out:
            json.dump({"layout": _LAYOUT, "version": version}, out)
            out.flush()
            os.fsync(out.fileno())
        part.replace(self._state)

    def advance(
        self,
        version: int,
        changes: Callable[[int], list[ChangedRange] | None],
        everything: Callable[[], Pages],
        between: Callable[[int, int], Pages],
    ) -> None:
        """Bring the index to a version of the knowledge base.

        `changes(v)` tells what changed since `v`, None meaning that everything has to be read again;
        `everything` and `between` (two ids, bounds included) read it.
        """
        if self.version >= version:
            return
        with self._lock, self._file_lock:
            self.version = self._read_version()  # another process may have done the work
            if self.version < version:
                self._apply(changes(self.version) if self.version > 0 else None, everything, between)
                self._write_version(version)
                self.version = version
            self._index.reload()

    def _apply(
        self,
        changed: list[ChangedRange] | None,
        everything: Callable[[], Pages],
        between: Callable[[int, int], Pages],
    ) -> None:
        ranges = merged_ranges(change for change in changed or () if not change.vectors_only)
        if changed is not None and not ranges:
            return
        writer = self._index.writer(_HEAP_BYTES, 1)
        try:
            if changed is None:
                writer.delete_all_documents()
                self._add(writer, everything())
            for lo, hi in ranges:
                writer.delete_documents_by_query(
                    tantivy.Query.range_query(self._schema, "id", tantivy.FieldType.Unsigned, lo, hi)
                )
                self._add(writer, between(lo, hi))
            writer.commit()
            writer.wait_merging_threads()
        except BaseException:
            writer.rollback()
            raise

    def _add(self, writer: tantivy.IndexWriter, pages: Pages) -> None:
        for page in pages:
            for chunk_id, text in page:
                document = tantivy.Document()
                document.add_unsigned("id", chunk_id)
                document.add_text("terms", " ".join(terms(text)))
                writer.add_document(document)

    def reset(self) -> None:
        """Forget what was seen: the next `advance` reads everything again."""
        with self._lock, self._file_lock:
            self._write_version(0)
            self.version = 0

    def search(self, query: Sequence[str], top_k: int, allowed: Sequence[int] | None = None) -> list[tuple[int, float]]:
        """(chunk id, BM25 score) of the best chunks for analysed query terms, best first; only `allowed` ones when
        given."""
        if not query or top_k < 1:
            return []
        searcher = self._index.searcher()
        clauses = [
            (tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "terms", term, "freq"))
            for term in dict.fromkeys(query)
        ]
        wanted = tantivy.Query.boolean_query(clauses)
        if allowed is not None:
            among = tantivy.Query.const_score_query(
                tantivy.Query.term_set_query(self._schema, "id", list(allowed)), 0.0
            )
            wanted = tantivy.Query.boolean_query([(tantivy.Occur.Must, among), (tantivy.Occur.Must, wanted)])
        hits = searcher.search(wanted, top_k, count=False).hits
        ids = searcher.fast_field_values("id", [address for _, address in hits])
        return [(int(chunk_id or 0), float(score)) for (score, _), chunk_id in zip(hits, ids, strict=True)]

    def holding(self, query: Iterable[str], ids: Sequence[int]) -> dict[int, set[str]]:
        """Which of the query's terms each of these chunks holds."""
        searcher = self._index.searcher()
        among = tantivy.Query.const_score_query(tantivy.Query.term_set_query(self._schema, "id", list(ids)), 0.0)
        held: dict[int, set[str]] = {chunk_id: set() for chunk_id in ids}
        for term in dict.fromkeys(query):
            has = tantivy.Query.term_query(self._schema, "terms", term, "freq")
            both = tantivy.Query.boolean_query([(tantivy.Occur.Must, among), (tantivy.Occur.Must, has)])
            hits = searcher.search(both, len(held) or 1, count=False).hits
            for chunk_id in searcher.fast_field_values("id", [address for _, address in hits]):
                held[int(chunk_id or 0)].add(term)
        return held

    def frequencies(self, query: Iterable[str]) -> tuple[int, dict[str, int]]:
        """Number of chunks, and in how many of them each term occurs."""
        searcher = self._index.searcher()
        return searcher.num_docs, {term: searcher.doc_freq("terms", term) for term in set(query)}

    def ids(self) -> Iterator[int]:
        """All chunk ids in the index (for checks)."""
        searcher = self._index.searcher()
        if not searcher.num_docs:
            return
        hits = searcher.search(tantivy.Query.all_query(), searcher.num_docs, count=False).hits
        for chunk_id in searcher.fast_field_values("id", [address for _, address in hits]):
            yield int(chunk_id or 0)

    def drop(self) -> None:
        """Delete the index from disk."""
        with self._lock, self._file_lock:
            shutil.rmtree(self.directory, ignore_errors=True)


def merged_ranges(changes: Iterable[ChangedRange]) -> list[tuple[int, int]]:
    """Overlapping or touching ranges become one."""
    merged: list[tuple[int, int]] = []
    for lo, hi in sorted((change.lo, change.hi) for change in changes):
        if merged and lo <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(hi, merged[-1][1]))
        else:
            merged.append((lo, hi))
    return merged
