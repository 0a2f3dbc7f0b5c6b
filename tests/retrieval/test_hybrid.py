"""Retrieval over sources that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from server.db.vectors import FloatArray, pack
from server.domain import Hit, StoredChunk
from server.models.transform import EmbeddingTransform
from server.retrieval.hybrid import Question, StaleIndex, Wanted, retrieve

TEXTS = {1: "amber lantern", 2: "amber lamp", 3: "tax form 9", 4: "琥珀灯笼"}
VECTORS = {1: [1.0, 0, 0], 2: [0.8, 0.6, 0], 3: [0, 0, 1.0], 4: [0.9, 0.1, 0]}
IDENTITY = EmbeddingTransform.identity()


class Known:
    """Sources with fixed answers; `without` have no vector yet, `gone` are in the indexes only."""

    def __init__(self, *, without: Sequence[int] = (), gone: Sequence[int] = ()) -> None:
        self._without = set(without)
        self._gone = set(gone)

    def dense(self, vector: FloatArray, top_k: int) -> list[int]:
        have = [number for number in VECTORS if number not in self._without]
        return sorted(have, key=lambda number: -float(np.dot(VECTORS[number], vector)))[:top_k]

    def keyword(self, words: Sequence[str], top_k: int) -> list[tuple[int, float]]:
        scored = {n: 1.0 * sum(word in text for word in words) for n, text in TEXTS.items()}
        return sorted(((n, s) for n, s in scored.items() if s), key=lambda item: -item[1])[:top_k]

    def frequencies(self, words: Sequence[str]) -> tuple[int, Mapping[str, int]]:
        return len(TEXTS), {word: sum(word in text for text in TEXTS.values()) for word in words}

    def holding(self, words: Sequence[str], ids: Sequence[int]) -> Mapping[int, set[str]]:
        return {n: {word for word in words if word in TEXTS[n]} for n in ids}

    def load(self, ids: Sequence[int]) -> Mapping[int, StoredChunk]:
        return {n: self._chunk(n) for n in ids if n not in self._gone}

    def _chunk(self, number: int) -> StoredChunk:
        lang = "zh" if number == 4 else "en"
        vector = None if number in self._without else pack(np.asarray(VECTORS[number], dtype=np.float32))
        return StoredChunk(number, 1, 0, TEXTS[number], "f.txt", lang, None, (), None, None, {}, vector=vector)


def ask(
    text: str, wanted: Wanted, sources: Known | None = None, vector: Sequence[float] | None = (1, 0, 0)
) -> list[Hit]:
    raw = None if vector is None else np.asarray(vector, dtype=np.float32)
    return retrieve(Question.of(text, raw), sources or Known(), IDENTITY, wanted)


def test_scores_come_from_the_raw_vectors() -> None:
    hits = ask("amber lantern", Wanted(10, 4.0, gate=False))
    assert {hit.text: hit.score for hit in hits} == pytest.approx(
        {"amber lantern": 0.0, "amber lamp": 0.4, "tax form 9": 2.0, "琥珀灯笼": 2 - 2 * 0.9 / np.hypot(0.9, 0.1)},
        abs=1e-3,
    )
    assert hits[0].ranks == {"fused": 1, "dense": 1, "keyword": 1}


def test_an_index_that_is_behind_is_noticed() -> None:
    with pytest.raises(StaleIndex):
        ask("amber", Wanted(10, 4.0), Known(gone=[2]))


def test_passages_without_a_vector_are_judged_by_their_words() -> None:
    sources = Known(without=[2, 3])
    hits = ask("amber lamp", Wanted(10, 1.0), sources)
    by_text = {hit.text: hit for hit in hits}
    assert by_text["amber lamp"].score is None
    assert by_text["amber lamp"].similarity is None
    assert "tax form 9" not in by_text


def test_without_a_question_vector_keywords_decide() -> None:
    hits = ask("tax form", Wanted(10, 4.0, "keyword"), vector=None)
    assert [(hit.text, hit.score) for hit in hits] == [("tax form 9", None)]


def test_the_threshold_and_the_gate() -> None:
    assert {hit.text for hit in ask("amber lantern", Wanted(10, 1.0))} == {"amber lantern", "amber lamp", "琥珀灯笼"}
    assert [hit.text for hit in ask("amber lantern", Wanted(10, 0.0))] == ["amber lantern"]
    assert ask("weather", Wanted(10, 1.0), vector=(0, 1, 0)) != ask(
        "weather", Wanted(10, 4.0, gate=False), vector=(0, 1, 0)
    )
    assert ask("weather", Wanted(10, 1.0), vector=(-1, -1, -1)) == []


def test_top_k_cuts_after_fusion() -> None:
    assert [hit.text for hit in ask("amber lantern", Wanted(1, 4.0, gate=False))] == ["amber lantern"]
    assert len(ask("amber lantern", Wanted(3, 4.0, gate=False))) == 3


def test_similarity_ignores_words() -> None:
    hits = ask("tax form 9", Wanted(4, 4.0, "similarity", gate=False))
    assert hits[0].text == "amber lantern"
    assert "keyword" not in hits[0].ranks
