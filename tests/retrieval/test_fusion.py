"""Fusion rewards agreement, is fair to other languages, and the gate keeps answers and drops chit-chat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from server.retrieval.analysis import query_terms, terms
from server.retrieval.fusion import calibrate, coverage, fuse, idf, keyword_strength, relevant


def order(cosines: Sequence[float], strength: Sequence[float], same: Sequence[bool] | None = None) -> list[int]:
    flags = np.ones(len(cosines), np.bool_) if same is None else np.array(same)
    return [int(at) for at in np.argsort(-fuse(np.array(cosines), np.array(strength), flags), kind="stable")]


def gate(cosines: Sequence[float], covered: Sequence[float], least: float = 0.0, talk: float = -1.0) -> list[bool]:
    return [bool(flag) for flag in relevant(np.array(cosines), np.array(covered), least, talk)]


def covered_by(query: str, passages: list[str]) -> NDArray[np.float64]:
    words = [set(terms(passage)) for passage in passages]
    weights = {t: idf(len(words), sum(t in passage for passage in words)) for t in query_terms(query)}
    return coverage(weights, words)


def test_idf_falls_with_frequency_and_stays_positive() -> None:
    values = [idf(100, frequency) for frequency in (0, 1, 10, 50, 100)]
    assert values == sorted(values, reverse=True)
    assert values[-1] > 0
    assert idf(1, 1) > 0


def test_strength_makes_questions_of_any_length_comparable() -> None:
    short = keyword_strength(np.array([4.0, 2.0]), {"a": 4.0})
    long = keyword_strength(np.array([12.0, 6.0]), {"a": 4.0, "b": 4.0, "c": 4.0})
    assert np.allclose(short, [1.0, 0.5])
    assert np.allclose(short, long)
    assert not keyword_strength(np.array([3.0]), {}).any()


def test_coverage_weighs_terms_by_idf() -> None:
    shares = coverage({"rare": 3.0, "common": 1.0}, [{"rare", "x"}, {"common"}, {"rare", "common"}, set()])
    assert np.allclose(shares, [0.75, 0.25, 1.0, 0.0])
    assert not coverage({}, [{"a"}]).any()


def test_a_long_task_need_not_be_covered_whole() -> None:
    weights = {f"word{number}": 2.0 for number in range(20)}
    assert coverage(weights, [set(list(weights)[:5])])[0] == pytest.approx(1.0)
    assert coverage(weights, [set(weights)])[0] == 1.0


def test_without_keywords_the_cosine_decides() -> None:
    assert order([0.1, 0.5, 0.3], [0, 0, 0]) == [1, 2, 0]


def test_a_passage_that_both_find_comes_first() -> None:
    assert order([0.50, 0.45, 0.10], [0.0, 0.8, 0.9])[0] == 1


def test_an_identifier_beats_a_vague_likeness() -> None:
    assert order([0.35, 0.33, 0.20], [0.0, 0.0, 1.0])[0] == 2


def test_a_clear_likeness_beats_a_common_word() -> None:
    assert order([0.60, 0.20], [0.0, 0.3])[0] == 0


def test_the_best_keyword_hit_is_worth_more_than_its_score() -> None:
    assert order([0.34, 0.30, 0.1], [0.50, 0.55, 0.0])[0] == 1


def test_equals_keep_the_order_they_came_in() -> None:
    assert order([0.2, 0.2, 0.2], [0.0, 0.0, 0.0]) == [0, 1, 2]
    assert order([], []) == []


def test_another_language_is_credited_for_words_it_cannot_repeat() -> None:
    own = [0.50 - 0.04 * number for number in range(12)]
    strength = [1.0 - 0.09 * number for number in range(12)]
    fused = order([*own, 0.48], [*strength, 0.0], [True] * 12 + [False])
    assert fused.index(12) <= 2
    unfair = order([*own, 0.48], [*strength, 0.0])
    assert unfair.index(12) > fused.index(12)


def test_an_unrelated_passage_in_another_language_stays_behind() -> None:
    own = [0.50 - 0.04 * number for number in range(12)]
    strength = [1.0 - 0.09 * number for number in range(12)]
    assert order([*own, 0.08], [*strength, 0.0], [True] * 12 + [False]).index(12) >= 10


def test_a_few_passages_are_no_base_for_credit() -> None:
    assert order([0.3, 0.35, 0.36], [1.0, 0.0, 0.0], [True, False, False]) == [0, 2, 1]


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 2), st.booleans()), max_size=60))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_fusion_orders_every_candidate_once(rows: list[tuple[float, float, bool]]) -> None:
    fused = order([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows] or None)
    assert sorted(fused) == list(range(len(rows)))


def test_calibration_stretches_a_narrow_cone_and_keeps_its_order() -> None:
    narrow = np.linspace(0.86, 0.80, 50)
    wide = calibrate(narrow)
    assert float(wide[0] - wide[-1]) == pytest.approx(0.2)
    assert (np.diff(wide) < 0).all()
    assert len(calibrate(np.array([]))) == 0


def test_calibration_does_not_blow_up_equal_passages() -> None:
    alike = calibrate(np.array([0.800, 0.801]))
    assert float(alike[1] - alike[0]) < 0.02


def test_the_gate_keeps_an_answer_and_what_supports_it() -> None:
    assert gate([0.45, 0.30, 0.20], [0.6, 0.3, 0.1]) == [True, True, True]


def test_the_gate_drops_everything_when_nothing_is_about_it() -> None:
    assert gate([0.20, 0.18, 0.15], [0.0, 0.05, 0.0]) == [False, False, False]
    assert gate([], []) == []


def test_keywords_alone_can_open_the_gate() -> None:
    assert gate([0.05, 0.04], [0.9, 0.0]) == [True, False]


def test_a_passage_below_the_threshold_needs_keywords() -> None:
    assert gate([0.5, -0.1, -0.1], [0.5, 0.8, 0.1]) == [True, True, False]


def test_noise_far_behind_the_best_is_dropped() -> None:
    assert gate([0.6, 0.05], [1.0, 0.0]) == [True, False]


def test_small_talk_gets_nothing() -> None:
    assert gate([0.35, 0.30], [0.0, 0.0], talk=0.6) == [False, False]
    assert gate([0.22, 0.20], [1.0, 0.0], talk=0.7) == [False, False], "what is your name"


def test_a_question_about_the_corpus_is_no_small_talk() -> None:
    assert gate([0.46, 0.30], [0.0, 0.0], talk=0.42) == [True, True]
    assert gate([0.39], [1.0], talk=0.41) == [True], "when is the fire drill"
    assert gate([0.30], [0.5], talk=0.35) == [True]


def test_a_stricter_threshold_asks_for_no_more_than_itself() -> None:
    assert gate([0.55, 0.40], [0.0, 0.0], least=0.5) == [True, False]


def test_a_lax_threshold_opens_the_gate() -> None:
    assert gate([0.1, 0.05], [0.0, 0.0], least=-1.0) == [True, True]


@pytest.mark.parametrize(
    ("query", "passages", "found"),
    [
        ("lamp", ["lamp 7"], [True]),
        ("lamp", [f"lamp {number}" for number in range(30)], [True] * 30),
        ("lamp 7", ["lamp 7", "the pump needs oil"], [True, False]),
        ("压力表校准", ["压力表每年校准一次", "海港的潮汐表每日更新"], [True, False]),
        ("潮汐", ["海港的潮汐表每日更新", "lamp 7"], [True, False]),
        ("你好", ["海港的潮汐表每日更新", "lamp 7"], [False, False]),
    ],
)
def test_tiny_knowledge_bases_are_found_by_their_words(query: str, passages: list[str], found: list[bool]) -> None:
    covered = covered_by(query, passages)
    assert gate([0.05] * len(passages), [float(share) for share in covered]) == found
