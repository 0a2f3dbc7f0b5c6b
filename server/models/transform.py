"""What has to be done to a model's raw vectors before they are compared, kept as data beside them.

multilingual-e5-small crowds all texts into a narrow cone that is first of all a language cone: texts
that have nothing in common reach a cosine of .8. Subtracting the mean of the language, one for passages
and one for questions, undoes that (cross-lingual recall@5 .53 → .90). Measured on nine question sets:

* A passage mean of independent text, shipped with the program, serves as well as a knowledge base's
  own. So stored vectors depend on the model alone and never have to be built again when texts come or go.
* A question mean has to follow the knowledge base, or passages of its dominant style win every question.
  Shifting it by own minus shipped passage mean overshoots (recall@5 in a classical novel .54 → .34);
  embedding snippets of its own passages *as questions* and shifting by their mean does not (.50 to .59).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from server.errors import ConfigurationError, DimensionMismatch

Floats = NDArray[np.float32]
Means = Mapping[str, Floats]

SNIPPETS = 100
"""Snippets of a knowledge base that are enough for its question mean; more changed nothing."""
_PRIOR = 20  # the shipped snippets count as many as these; keeps small knowledge bases near the shipped mean
_LONGEST_SNIPPET = 100
_LONGEST_CHINESE_SNIPPET = 24
_SENTENCE = re.compile(r"[。！？!?\n]+|\.\s+")
_HAN = re.compile(r"[\u3400-\u9fff]")


@dataclass(frozen=True, slots=True)
class EmbeddingTransform:
    """Turns raw vectors into comparable unit vectors, and cosines into scores.

    Every mean is a vector (dimension,) by language code. `small_talk` holds utterances that ask nothing,
    (n, dimension), centred unit vectors. `shifts` is what `fit` learned about a knowledge base. A
    transform is `calibrated` when its cosines are spread as the fusion and the gate expect.
    """

    dimension: int | None = None
    scale: float = 1.0
    calibrated: bool = False
    passage_means: Means = field(default_factory=dict)
    question_means: Means = field(default_factory=dict)
    snippet_means: Means = field(default_factory=dict)
    shifts: Means = field(default_factory=dict)
    small_talk: NDArray[np.floating] | None = None

    @classmethod
    def identity(cls, dimension: int | None = None) -> EmbeddingTransform:
        """For a model of which nothing is known: vectors get unit length, score is 2 - 2 * cosine.

        Without a dimension, vectors of any length pass.
        """
        return cls(dimension)

    @classmethod
    def shipped(cls) -> EmbeddingTransform:
        """For multilingual-e5-small, before it has seen a knowledge base."""
        return _shipped()

    @property
    def is_identity(self) -> bool:
        """Whether vectors only get unit length; there is nothing to fit then."""
        return not self.passage_means

    def fit(self, snippets: NDArray[np.floating], languages: Sequence[str]) -> EmbeddingTransform:
        """The transform for one knowledge base.

        `snippets` are the raw *question* vectors (n, dimension) of what `snippet` cuts from its
        passages, with their languages. Only questions change, never stored passages. Without shipped
        means there is nothing to shift and the same transform comes back.
        """
        if self.is_identity:
            return self
        vectors = self._checked(snippets)
        labels = np.asarray(languages)
        shifts = {code: self._shift(vectors[labels == code], code) for code in sorted(set(languages))}
        return replace(self, shifts=shifts)

    def apply_passages(self, raw: NDArray[np.floating], languages: Sequence[str]) -> Floats:
        """Unit vectors (n, dimension) of raw passage vectors (n, dimension)."""
        vectors = self._checked(raw)
        if self.is_identity or not len(vectors):
            return _unit(vectors)
        return _unit(vectors - np.stack([_mean(self.passage_means, code) for code in languages]))

    def apply_query(self, raw: NDArray[np.floating], language: str) -> Floats:
        """Unit vector (dimension,) of a raw question vector (dimension,)."""
        vector = self._checked(raw[None])[0]
        if not self.is_identity:
            vector = vector - _mean(self.question_means, language)
        return _unit(vector - self.shifts[language] if language in self.shifts else vector)

    def small_talk_similarity(self, raw: NDArray[np.floating], language: str) -> float:
        """How close a raw question is to the closest utterance that asks nothing; -1 where unknown."""
        if self.small_talk is None:
            return -1.0
        general = self._checked(raw[None])[0] - _mean(self.question_means, language)
        return float((self.small_talk.astype(np.float32) @ _unit(general)).max())

    def score(self, cosine: float) -> float:
        """Squared L2 distance times `scale`: 0 is the same, lower is better."""
        return self.scale * (2.0 - 2.0 * cosine)

    def cosine(self, score: float) -> float:
        """The cosine that has this score."""
        return 1.0 - score / (2.0 * self.scale)

    def to_bytes(self) -> bytes:
        """Everything as an npz archive of plain arrays."""
        arrays: dict[str, NDArray[np.generic]] = {
            f"{name}/{code}": vector for name in _TABLES for code, vector in getattr(self, name).items()
        }
        if self.small_talk is not None:
            arrays["small_talk"] = self.small_talk
        settings = np.array([self.dimension or 0, self.scale, self.calibrated], np.float64)
        buffer = BytesIO()
        np.savez(buffer, allow_pickle=False, settings=settings, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> EmbeddingTransform:
        """Read what `to_bytes` wrote. Raises ConfigurationError for anything else."""
        try:
            with np.load(BytesIO(data), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            dimension, scale, calibrated = arrays.pop("settings").tolist()
        except (ValueError, KeyError, OSError, EOFError, BadZipFile) as error:
            raise ConfigurationError(
                "保存的向量变换已损坏，请重建知识库索引 / the stored vector transform is damaged; rebuild the index"
            ) from error
        small_talk = arrays.pop("small_talk", None)
        tables: dict[str, dict[str, Floats]] = {name: {} for name in _TABLES}
        for key, vector in arrays.items():
            name, code = key.split("/")
            tables[name][code] = vector
        return cls(int(dimension) or None, scale, bool(calibrated), small_talk=small_talk, **tables)

    def _shift(self, vectors: Floats, code: str) -> Floats:
        """Own minus shipped mean of snippets, held back by the prior."""
        own = vectors - _mean(self.snippet_means, code)
        return np.asarray(own.sum(axis=0) / (len(own) + _PRIOR), np.float32)

    def _checked(self, raw: NDArray[np.floating]) -> Floats:
        if raw.ndim != 2 or raw.shape[1] != (self.dimension or raw.shape[1]):
            raise DimensionMismatch(
                f"向量维度应为 {self.dimension}，实际为 {raw.shape[-1]} / "
                f"vectors should have {self.dimension} dimensions, these have {raw.shape[-1]}"
            )
        return raw.astype(np.float32, copy=False)


_TABLES = ("passage_means", "question_means", "snippet_means", "shifts")


def snippet(passage: str) -> str:
    """The longest sentence of a passage, cut to the length of a question.

    Long sentences are neither headings nor lists. The first sentences gave recall@5 .70 in the mean of
    nine sets, middle ones .71, the longest .73.
    """
    chosen = max(_SENTENCE.split(passage), key=len).strip()
    longest = _LONGEST_CHINESE_SNIPPET if _HAN.search(chosen) else _LONGEST_SNIPPET
    return chosen[:longest]


def snippets(passages: Sequence[str], limit: int = SNIPPETS) -> list[str]:
    """At most `limit` snippets of passages evenly spread over the sequence; the same ones every time."""
    count = min(limit, len(passages))
    return [snippet(passages[index * len(passages) // count]) for index in range(count)]


def _mean(means: Means, language: str) -> Floats:
    """The language's mean; where there is none, what the known languages have in common."""
    known = means.get(language)
    return np.mean(list(means.values()), axis=0) if known is None else known


def _unit(vectors: Floats) -> Floats:
    """The same directions with length one; a vector without a direction stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


@cache
def _shipped() -> EmbeddingTransform:
    return EmbeddingTransform.from_bytes(Path(__file__).with_name("data").joinpath("e5_means.npz").read_bytes())
