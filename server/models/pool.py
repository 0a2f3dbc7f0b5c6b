"""Threads that embed: all cores busy with passages, and questions that never queue behind them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
from typing_extensions import override

from server.db.vectors import FloatArray
from server.models.embeddings import EmbeddingModel
from server.models.rulers import Ruler

_NICENESS = 10


class Engine(Protocol):
    """A local model that embeds one text at a time and lets other threads run meanwhile."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def dimension(self) -> int:
        """Length of its vectors."""

    @property
    def ruler(self) -> Ruler:
        """Counts the model's tokens."""

    def embed_passage(self, text: str) -> FloatArray:
        """Vector of a passage, shape (d,)."""

    def embed_query(self, text: str) -> FloatArray:
        """Vector of a question, shape (d,)."""


class LocalEmbedding(EmbeddingModel):
    """A local engine on two pools of threads.

    One passage is one task, on threads that give way to everybody else; questions have threads of their own
    and so begin at once, whatever is being ingested.
    """

    def __init__(self, engine: Engine, threads: int = 0) -> None:
        self.name = engine.name
        self.dimension = engine.dimension
        self._engine = engine
        count = threads or os.cpu_count() or 1
        self._passages = ThreadPoolExecutor(count, "embed-passage", initializer=_give_way)
        self._questions = ThreadPoolExecutor(count, "embed-question")

    @property
    @override
    def ruler(self) -> Ruler:
        """Counts the engine's tokens."""
        return self._engine.ruler

    def encode_passages(self, texts: Sequence[str]) -> FloatArray:
        """Vectors of passages, shape (n, d)."""
        futures = [self._passages.submit(self._engine.embed_passage, text) for text in texts]
        try:
            vectors = [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return np.stack(vectors) if vectors else np.empty((0, self.dimension or 0), dtype=np.float32)

    def encode_query(self, text: str) -> FloatArray:
        """Vector of a question, shape (d,)."""
        return self._questions.submit(self._engine.embed_query, text).result()

    def close(self) -> None:
        """Stop the threads; what waits is dropped."""
        for pool in (self._passages, self._questions):
            pool.shutdown(wait=False, cancel_futures=True)


def _give_way() -> None:
    """Lower this thread's priority, where the system has one for each thread (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
