"""What a vector store has to do for a knowledge base."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from server.db.vectors import FloatArray
from server.knowledge_base.context import Space


class StoreHooks(ABC):
    """The hooks that a backend fills in. Ids are chunk ids, vectors are unit vectors of shape (n, d); nothing
    here knows of files, questions or HTTP."""

    @abstractmethod
    def vs_type(self) -> str:
        """The backend's name in `vector_store_type`."""

    def do_init(self, space: Space) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Open what the other hooks need, and keep it open while the block lasts."""
        return nullcontext()

    @abstractmethod
    def do_version(self, space: Space) -> int:
        """The version of the knowledge base that the store has seen, 0 for an empty one."""

    @abstractmethod
    def do_commit(self, space: Space, version: int) -> None:
        """Note that the store has seen a version; from now on searches find just what was written before."""

    @abstractmethod
    def do_add_doc(self, space: Space, ids: Sequence[int], vectors: FloatArray) -> None:
        """Put vectors in; an id that is there already is replaced."""

    @abstractmethod
    def do_delete_doc(self, space: Space, ranges: Sequence[tuple[int, int]]) -> None:
        """Take out all ids in these ranges (bounds included); missing ones are no error."""

    @abstractmethod
    def do_search(
        self, space: Space, vector: FloatArray, top_k: int, allowed: Sequence[int] | None = None
    ) -> list[int]:
        """Ids of the vectors nearest to a unit vector, nearest first; only `allowed` ones (ascending) when given."""

    @abstractmethod
    def do_ids(self, space: Space) -> Iterable[int]:
        """All ids that the store holds (for checks)."""

    @abstractmethod
    def do_clear_vs(self, space: Space) -> None:
        """Make the store empty, at version 0."""

    @abstractmethod
    def do_drop_kb(self, space: Space) -> None:
        """Delete all that the store holds."""

    def do_save(self, space: Space, *, force: bool = False) -> None:  # noqa: B027  # most stores are durable
        """Write to disk what only memory holds, when enough of it has gathered."""
