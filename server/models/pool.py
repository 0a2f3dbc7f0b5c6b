"""Threads that embed: both cores busy with passages, and questions that never queue behind them."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import PriorityQueue
from typing import Protocol

import numpy as np

from server.db.vectors import FloatArray
from server.models.embeddings import EmbeddingModel

_QUERY, _PASSAGE, _STOP = 0, 1, 2
_Task = tuple[int, int, Callable[[], FloatArray] | None, "Future[FloatArray] | None"]


class Engine(Protocol):
    """A local model that embeds one text at a time and lets other threads run meanwhile."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def dimension(self) -> int:
        """Length of its vectors."""

    def embed_passage(self, text: str) -> FloatArray:
        """Vector of a passage, shape (d,)."""

    def embed_query(self, text: str) -> FloatArray:
        """Vector of a question, shape (d,)."""


class LocalEmbedding(EmbeddingModel):
    """A local engine on a pool of threads.

    One passage is one task and questions go first, so a question waits at most for the passages that
    are being computed right now.
    """

    def __init__(self, engine: Engine, threads: int = 0) -> None:
        self.name = engine.name
        self.dimension = engine.dimension
        self.batch_size = 32
        self._engine = engine
        self._order = itertools.count()
        self._tasks: PriorityQueue[_Task] = PriorityQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"embed-{n}", daemon=True)
            for n in range(threads or os.cpu_count() or 1)
        ]
        for thread in self._threads:
            thread.start()

    def encode_passages(self, texts: Sequence[str]) -> FloatArray:
        """Vectors of passages, shape (n, d)."""
        futures = [self._submit(_PASSAGE, lambda text=text: self._engine.embed_passage(text)) for text in texts]  # type: ignore[misc]
        try:
            vectors = [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return np.stack(vectors) if vectors else np.empty((0, self.dimension or 0), dtype=np.float32)

    def encode_query(self, text: str) -> FloatArray:
        """Vector of a question, shape (d,)."""
        return self._submit(_QUERY, lambda: self._engine.embed_query(text)).result()

    def _submit(self, priority: int, call: Callable[[], FloatArray]) -> Future[FloatArray]:
        future: Future[FloatArray] = Future()
        self._tasks.put((priority, next(self._order), call, future))
        return future

    def _work(self) -> None:
        while True:
            _, _, call, future = self._tasks.get()
            if call is None or future is None:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001  # it is the caller's, and reaches it through the future
                future.set_exception(error)

    def close(self) -> None:
        """Stop the threads after the tasks that wait."""
        for _ in self._threads:
            self._tasks.put((_STOP, next(self._order), None, None))
