"""An embedder with known vectors, for tests and demonstrations: no model, no network, exact cosines."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence

import numpy as np
from typing_extensions import override

from server.db.vectors import FloatArray
from server.errors import EmbeddingError
from server.models.embeddings import EmbeddingModel
from server.models.rulers import Characters, Ruler


class FakeEmbedding(EmbeddingModel):
    """Texts named in `vectors` get just those; others get a vector drawn from the hash of the text.

    `delay` is the time in seconds that each passage takes. A text that holds `fails_on` raises.
    """

    def __init__(
        self,
        name: str = "fake",
        dimension: int = 16,
        vectors: Mapping[str, Sequence[float]] | None = None,
        delay: float = 0.0,
        fails_on: str | None = None,
    ) -> None:
        self.name = name
        self.dimension = dimension
        self.calls = 0
        self._vectors = dict(vectors or {})
        self._delay = delay
        self._fails_on = fails_on

    @property
    @override
    def ruler(self) -> Ruler:
        """A character is a token."""
        return Characters()

    def encode_passages(self, texts: Sequence[str]) -> FloatArray:
        """Vectors of passages, shape (n, d)."""
        self.calls += len(texts)
        time.sleep(self._delay * len(texts))
        return np.stack([self._vector(text) for text in texts])

    def encode_query(self, text: str) -> FloatArray:
        """Vector of a question, shape (d,)."""
        return self._vector(text)

    def _vector(self, text: str) -> FloatArray:
        if self._fails_on and self._fails_on in text:
            raise EmbeddingError(f"{self.name} 拒绝了文本 / was told to fail on this text")
        known = self._vectors.get(text.strip())
        if known is not None:
            return np.asarray(known, dtype=np.float32)
        seed = int.from_bytes(hashlib.sha256(text.strip().encode("utf-8", "replace")).digest()[:8], "big")
        return np.random.default_rng(seed).normal(size=self.dimension or 1).astype(np.float32)
