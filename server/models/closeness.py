"""How near texts are to each other in meaning, across languages; vectors of texts that come again are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from server.db.vectors import FloatArray
from server.models.embeddings import EmbeddingModel
from server.models.transform import EmbeddingTransform
from server.retrieval.analysis import language

_KEPT = 4096


class Closeness:
    """Compares a text with others by an embedding model's vectors, transformed as for a search."""

    def __init__(self, model: Callable[[], EmbeddingModel], transform: EmbeddingTransform) -> None:
        self._model = model
        self._transform = transform
        self._known: OrderedDict[str, FloatArray] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def calibrated(self) -> bool:
        """Whether cosines mean the same for every text, so that a threshold makes sense."""
        return self._transform.calibrated

    def __call__(self, query: str, texts: Sequence[str]) -> list[float]:
        """The cosine of each text to the query.

        Raises:
            EmbeddingError: the model failed.
        """
        if not texts:
            return []
        passages = self._transform.apply_passages(self._vectors(texts), [language(text) for text in texts])
        asked = self._transform.apply_query(self._model().embed_query(query), language(query))
        return [float(cosine) for cosine in passages @ asked]

    def _vectors(self, texts: Sequence[str]) -> FloatArray:
        with self._lock:
            found = {text: self._known[text] for text in texts if text in self._known}
        fresh = [text for text in dict.fromkeys(texts) if text not in found]
        if fresh:
            found |= dict(zip(fresh, np.nan_to_num(self._model().embed_many(fresh)), strict=True))
        with self._lock:
            for text in found:
                self._known[text] = found[text]
                self._known.move_to_end(text)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return np.stack([found[text] for text in texts])
