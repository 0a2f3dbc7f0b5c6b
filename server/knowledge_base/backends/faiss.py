"""Vectors in the memory of this process, with snapshots on disk: the default, for one machine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from server.db.vectors import FloatArray
from server.knowledge_base.backends.faiss_index import FaissIndex
from server.knowledge_base.context import Space
from server.knowledge_base.service import KBService

_SAVE_SHARE = 0.25
"""A snapshot is due when this share of the index is new: writing stays proportional to what came in."""


class FaissKBService(KBService):
    """A knowledge base in FAISS: exact search, no other service."""

    def vs_type(self) -> str:
        """The backend's name."""
        return "faiss"

    def _index(self, space: Space) -> AbstractContextManager[FaissIndex]:
        path = self.context.directory(space.kb_id, space.generation_id) / "vectors.faiss"
        return self.context.vector_pool.acquire(space, lambda: FaissIndex.open(path))

    def do_init(self, space: Space) -> AbstractContextManager[FaissIndex]:
        """Pin the index in the pool: between two hooks it must not go to disk and come back older."""
        return self._index(space)

    def do_version(self, space: Space) -> int:
        """The version that the index in memory has seen."""
        with self._index(space) as index:
            return index.version

    def do_commit(self, space: Space, version: int) -> None:
        """Note a version in memory; the next snapshot carries it."""
        with self._index(space) as index:
            index.version = version

    def do_add_doc(self, space: Space, ids: Sequence[int], vectors: FloatArray) -> None:
        """Put vectors in."""
        with self._index(space) as index:
            index.put(ids, vectors)

    def do_delete_doc(self, space: Space, ranges: Sequence[tuple[int, int]]) -> None:
        """Take ranges of ids out."""
        with self._index(space) as index:
            index.remove(ranges)

    def do_search(
        self, space: Space, vector: FloatArray, top_k: int, allowed: Sequence[int] | None = None
    ) -> list[int]:
        """Ids of the nearest vectors."""
        with self._index(space) as index:
            return index.search(vector, top_k, allowed)

    def do_ids(self, space: Space) -> list[int]:
        """All ids in the index."""
        with self._index(space) as index:
            return [int(chunk_id) for chunk_id in index.ids()]

    def do_clear_vs(self, space: Space) -> None:
        """Begin with an empty index."""
        with self._index(space) as index:
            index.clear()

    def do_drop_kb(self, space: Space) -> None:
        """Forget the index and its snapshot."""
        with self._index(space) as index:
            index.delete()
        self.context.vector_pool.pop(space)

    def do_save(self, space: Space, *, force: bool = False) -> None:
        """Write a snapshot when enough is new."""
        with self._index(space) as index:
            if force:
                index.save()
            elif index.unsaved >= _SAVE_SHARE * index.count:
                index.save_if_large()
