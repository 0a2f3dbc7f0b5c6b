"""An event loop on a thread of its own: language models for work that no client waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Runs coroutines apart from the service's event loop, which they must not slow down."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine; the thread is started with the first."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="background", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Stop the loop after one last piece of work."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            last.close()
            return
        asyncio.run_coroutine_threadsafe(last, loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
