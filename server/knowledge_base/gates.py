"""Where the event loop hands blocking work to threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from server.names import kb_key

T = TypeVar("T")
_PER_KB = 8
_THREADS = 64


class Gates:
    """Runs blocking calls in threads, at most eight at a time for one knowledge base: one that is slow or
    broken keeps its own callers waiting, never those of another."""

    def __init__(self) -> None:
        self._limiters: dict[str, CapacityLimiter] = {}
        self._all: CapacityLimiter | None = None

    async def run(self, kb_name: str, call: Callable[[], T]) -> T:
        """The result of a call for one knowledge base."""
        key = kb_key(kb_name)
        limiter = self._limiters.setdefault(key, CapacityLimiter(_PER_KB))
        try:
            async with limiter:
                return await self.run_free(call)
        finally:
            if not limiter.borrowed_tokens and not limiter.statistics().tasks_waiting:
                self._limiters.pop(key, None)

    async def run_free(self, call: Callable[[], T]) -> T:
        """The result of a call that belongs to no knowledge base."""
        if self._all is None:
            self._all = CapacityLimiter(_THREADS)
        return await to_thread.run_sync(call, limiter=self._all, abandon_on_cancel=False)
