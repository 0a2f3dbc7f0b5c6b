"""Retrieval: candidates from vectors and from keywords, one exact score for each, fused and filtered.

Stores and indexes only propose ids. Texts and raw vectors come from SQL, and every score is computed from
them here, so a score means the same whatever store proposed the passage, and a passage that SQL no longer
has is never returned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from server.db.vectors import FloatArray, unpack
from server.domain import Hit, StoredChunk
from server.models.transform import EmbeddingTransform
from server.retrieval import fusion
from server.retrieval.analysis import language, query_terms

SearchType = Literal["hybrid", "similarity", "keyword"]
Floats = NDArray[np.float64]

_LOOKED_AT = 10
"""Passages, at least, whose words are compared with the question's to see whether it is about this corpus."""


class StaleIndex(Exception):
    """An index proposed a passage that SQL no longer has: it is behind; bring it forward and search again."""


class Sources(Protocol):
    """Where candidates come from."""

    def dense(self, vector: FloatArray, top_k: int) -> list[int]:
        """Ids of the nearest passages to a transformed question vector, nearest first."""

    def keyword(self, words: Sequence[str], top_k: int) -> list[tuple[int, float]]:
        """(id, BM25 score) of the best passages for question terms, best first."""

    def frequencies(self, words: Sequence[str]) -> tuple[int, Mapping[str, int]]:
        """Number of passages, and in how many each term occurs."""

    def holding(self, words: Sequence[str], ids: Sequence[int]) -> Mapping[int, Collection[str]]:
        """Which of the question's terms each of these passages holds."""

    def load(self, ids: Sequence[int]) -> Mapping[int, StoredChunk]:
        """Passages with their raw vectors."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question as it is searched for; `raw` is its raw vector, shape (d,), None when there is none."""

    text: str
    raw: FloatArray | None
    words: tuple[str, ...]
    language: str

    @classmethod
    def of(cls, text: str, raw: FloatArray | None) -> Question:
        """Analyse a question."""
        return cls(text, raw, tuple(query_terms(text)), language(text))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller asks for. `gate` leaves out what is about something else than the question."""

    top_k: int
    threshold: float
    search_type: SearchType = "hybrid"
    gate: bool = True


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Passages that may answer, as parallel arrays; a cosine is NaN while the vector is not in."""

    chunks: list[StoredChunk]
    cosines: Floats
    bm25: Floats
    dense_rank: Mapping[int, int]
    keyword_rank: Mapping[int, int]

    def __len__(self) -> int:
        return len(self.chunks)


def retrieve(question: Question, sources: Sources, transform: EmbeddingTransform, wanted: Wanted) -> list[Hit]:
    """At most `top_k` hits, best first.

    Raises:
        StaleIndex: an index is behind SQL.
    """
    found = _candidates(question, sources, transform, wanted)
    if not len(found):
        return []
    weights = _weights(question, sources)
    value = _value(question, found, weights, transform, wanted.search_type)
    order = [int(at) for at in np.argsort(-value, kind="stable")][: max(wanted.top_k, _LOOKED_AT)]
    if wanted.gate and question.raw is not None:
        held = sources.holding(question.words, [found.chunks[at].id for at in order])
        covered = fusion.coverage(weights, [held.get(found.chunks[at].id, ()) for at in order])
        order = _relevant(question, found, order, covered, transform, wanted)
    scores = np.round(transform.scale * (2.0 - 2.0 * found.cosines), 6)
    kept = [at for at in order if not scores[at] > wanted.threshold][: wanted.top_k]
    return [_hit(found, at, float(scores[at]), place, float(value[at])) for place, at in enumerate(kept, start=1)]


def _candidates(question: Question, sources: Sources, transform: EmbeddingTransform, wanted: Wanted) -> _Candidates:
    count = max(fusion.CANDIDATES, wanted.top_k)
    vector = transform.apply_query(question.raw, question.language) if question.raw is not None else None
    near = sources.dense(vector, count) if vector is not None and wanted.search_type != "keyword" else []
    worded = sources.keyword(question.words, count) if wanted.search_type != "similarity" else []
    ids = list(dict.fromkeys([*near, *(chunk_id for chunk_id, _ in worded)]))
    loaded = sources.load(ids)
    if len(loaded) < len(ids):
        raise StaleIndex
    chunks = [loaded[chunk_id] for chunk_id in ids]
    bm25 = dict(worded)
    cosines = _cosines(chunks, vector, transform)
    return _Candidates(
        chunks=chunks,
        cosines=cosines,
        bm25=np.array([bm25.get(chunk_id, 0.0) for chunk_id in ids]),
        dense_rank=_ranks(near),
        keyword_rank=_ranks([chunk_id for chunk_id, _ in worded]),
    )


def scored(question: Question, chunks: Sequence[StoredChunk], transform: EmbeddingTransform) -> list[Hit]:
    """Passages that something else than retrieval has found, with their scores for a question."""
    vector = transform.apply_query(question.raw, question.language) if question.raw is not None else None
    scores = np.round(transform.scale * (2.0 - 2.0 * _cosines(chunks, vector, transform)), 6)
    return [_scored(chunk, float(score)) for chunk, score in zip(chunks, scores, strict=True)]


def _scored(chunk: StoredChunk, score: float) -> Hit:
    known = not np.isnan(score)
    similarity = min(1.0, max(0.0, 1.0 - score / 2)) if known else None
    return replace(hit_of(chunk), score=score if known else None, similarity=similarity)


def _ranks(ids: Sequence[int]) -> dict[int, int]:
    return {chunk_id: rank for rank, chunk_id in enumerate(ids, start=1)}


def _cosines(chunks: Sequence[StoredChunk], vector: FloatArray | None, transform: EmbeddingTransform) -> Floats:
    """Exact cosines from the raw vectors in SQL, shape (n,)."""
    cosines = np.full(len(chunks), np.nan)
    have = [at for at, chunk in enumerate(chunks) if chunk.vector is not None]
    if vector is not None and have:
        raw = unpack([chunks[at].vector or b"" for at in have])
        cosines[have] = transform.apply_passages(raw, [chunks[at].lang for at in have]) @ vector
    return np.asarray(np.clip(cosines, -1.0, 1.0), np.float64)


def _weights(question: Question, sources: Sources) -> dict[str, float]:
    total, frequency = sources.frequencies(question.words)
    return {word: fusion.idf(total, frequency.get(word, 0)) for word in question.words}


def _value(
    question: Question,
    found: _Candidates,
    weights: Mapping[str, float],
    transform: EmbeddingTransform,
    search_type: SearchType,
) -> Floats:
    """How good each candidate is, for this question: higher is better."""
    if search_type == "keyword":
        return fusion.keyword_strength(found.bm25, weights)
    known = np.where(np.isnan(found.cosines), _lowest(found.cosines), found.cosines)
    if search_type == "similarity":
        return np.asarray(known, np.float64)
    same = np.array([chunk.lang == question.language for chunk in found.chunks])
    spread = known if transform.calibrated else fusion.calibrate(known)
    return fusion.fuse(spread, fusion.keyword_strength(found.bm25, weights), same)


def _lowest(cosines: Floats) -> float:
    return float(np.nanmin(cosines)) if not np.isnan(cosines).all() else 0.0


def _relevant(
    question: Question,
    found: _Candidates,
    order: Sequence[int],
    covered: Floats,
    transform: EmbeddingTransform,
    wanted: Wanted,
) -> list[int]:
    """What of the order belongs to an answer; nothing when the question is about something else. Passages
    whose vector is not in yet are judged by their words alone."""
    cosines = found.cosines[list(order)]
    talk = -1.0 if question.raw is None else transform.small_talk_similarity(question.raw, question.language)
    least = transform.cosine(wanted.threshold)
    mask = fusion.relevant(np.nan_to_num(cosines, nan=0.0), covered, least, talk)
    fresh = np.isnan(cosines) & (covered > 0)
    return [at for at, good in zip(order, mask | fresh, strict=True) if good]


def _hit(found: _Candidates, at: int, score: float, place: int, value: float) -> Hit:
    chunk = found.chunks[at]
    ranks = {"fused": place}
    if chunk.id in found.dense_rank:
        ranks["dense"] = found.dense_rank[chunk.id]
    if chunk.id in found.keyword_rank:
        ranks["keyword"] = found.keyword_rank[chunk.id]
    return replace(_scored(chunk, score), ranks=ranks, relevance=round(value, 6))


def hit_of(chunk: StoredChunk) -> Hit:
    """A stored chunk as a search result."""
    return Hit(
        id=str(chunk.id),
        text=chunk.text,
        file_name=chunk.file_name,
        score=None,
        similarity=None,
        page=chunk.page,
        headings=chunk.headings,
        start=chunk.start,
        end=chunk.end,
        metadata=chunk.metadata,
        enabled=chunk.enabled,
    )
