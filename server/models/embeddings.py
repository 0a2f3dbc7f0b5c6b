"""Embedding models: one promise, and the registry that knows the configured ones by name."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache

import numpy as np

from server.db.vectors import FloatArray
from server.errors import ConfigurationError, EmbeddingError
from server.models.rulers import Ruler, guess

_LATELY = 256
"""Questions whose vectors are kept."""


class EmbeddingModel(ABC):
    """Turns texts into raw unit vectors. Safe to use from many threads."""

    name: str
    dimension: int | None = None
    batch_size: int = 32

    @abstractmethod
    def encode_passages(self, texts: Sequence[str]) -> FloatArray:
        """Vectors of passages, shape (n, d), in the order of the texts; not necessarily of unit length."""

    @abstractmethod
    def encode_query(self, text: str) -> FloatArray:
        """Vector of a question, shape (d,)."""

    @property
    def ruler(self) -> Ruler:
        """Counts the model's tokens, or something close to them."""
        return guess()

    def close(self) -> None:  # noqa: B027  # most hold nothing
        """Give back what the model holds."""

    def embed_passages(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors of passages, shape (n, d); a row of NaN where the model's answer cannot be used.

        Raises:
            EmbeddingError: the model failed as a whole or answered with another number of vectors.
        """
        vectors = np.asarray(self.encode_passages(texts), dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise EmbeddingError(
                f"向量模型 {self.name} 返回了 {len(vectors)} 个向量，应为 {len(texts)} 个 / "
                f"the embedding model returned {len(vectors)} vectors for {len(texts)} texts"
            )
        return _unit(vectors)

    def embed_many(self, texts: Sequence[str]) -> FloatArray:
        """The same for any number of texts, at least one, a batch at a time."""
        size = self.batch_size
        return np.concatenate([self.embed_passages(texts[at : at + size]) for at in range(0, len(texts), size)])

    def embed_query(self, text: str) -> FloatArray:
        """Unit vector of a question, shape (d,); the same array again for one that was asked lately.

        Raises:
            EmbeddingError: the model failed, or its answer is not a number.
        """
        return self._lately(text)

    def forget_questions(self) -> None:
        """Ask the model again for questions that were asked before."""
        vars(self).pop("_lately", None)

    @cached_property
    def _lately(self) -> Callable[[str], FloatArray]:
        # one search looks at its question several times, and people ask the same thing again
        return lru_cache(_LATELY)(self._query_vector)

    def _query_vector(self, text: str) -> FloatArray:
        vector: FloatArray = _unit(np.asarray(self.encode_query(text), dtype=np.float32).reshape(1, -1))[0]
        if not np.isfinite(vector).all():
            raise EmbeddingError(f"向量模型 {self.name} 返回了无效向量 / {self.name} returned an unusable vector")
        vector.flags.writeable = False
        return vector


def _unit(vectors: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        unit = (vectors / lengths).astype(np.float32)
    unit[~np.isfinite(unit).all(axis=1)] = np.nan
    return np.asarray(unit, dtype=np.float32)


class EmbeddingModels:
    """The configured models by name; each is loaded when it is first asked for."""

    def __init__(self, loaders: dict[str, Callable[[], EmbeddingModel]]) -> None:
        self._loaders = loaders
        self._loaded: dict[str, EmbeddingModel] = {}
        self._locks = {name: threading.Lock() for name in loaders}

    @property
    def names(self) -> list[str]:
        """All configured names."""
        return list(self._loaders)

    def get(self, name: str) -> EmbeddingModel:
        """The model of that name.

        Raises:
            ConfigurationError: no such model is configured.
        """
        if name not in self._loaders:
            raise ConfigurationError(
                f"未配置的向量模型 {name}，可用：{'、'.join(self.names)} / "
                f"embedding model {name} is not configured; there are: {', '.join(self.names)}"
            )
        with self._locks[name]:
            if name not in self._loaded:
                self._loaded[name] = self._loaders[name]()
            return self._loaded[name]

    def close(self) -> None:
        """Close the models that were loaded."""
        for model in self._loaded.values():
            model.close()
