"""The measures of a ranking, on rankings that can be computed by hand."""

from __future__ import annotations

from math import log2

import pytest

from server.retrieval.metrics import mrr_at, ndcg_at, recall_at

RANKED = ["a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize(
    ("relevant", "k", "value"),
    [(["a"], 1, 1.0), (["b"], 1, 0.0), (["b", "f"], 5, 0.5), (["b", "f"], 6, 1.0), (["x"], 6, 0.0), ([], 5, 0.0)],
)
def test_recall_is_the_share_found(relevant: list[str], k: int, value: float) -> None:
    assert recall_at(RANKED, relevant, k) == value


@pytest.mark.parametrize(
    ("relevant", "k", "value"),
    [(["a"], 10, 1.0), (["c", "b"], 10, 0.5), (["f"], 5, 0.0), (["f"], 6, 1 / 6), ([], 5, 0.0)],
)
def test_reciprocal_rank_is_that_of_the_first_right_one(relevant: list[str], k: int, value: float) -> None:
    assert mrr_at(RANKED, relevant, k) == pytest.approx(value)


def test_ndcg_is_one_for_the_best_order() -> None:
    assert ndcg_at(RANKED, ["b", "a"], 10) == pytest.approx(1.0)
    assert ndcg_at(RANKED, RANKED, 3) == pytest.approx(1.0)


def test_ndcg_weighs_places() -> None:
    assert ndcg_at(RANKED, ["c"], 10) == pytest.approx(1 / log2(4))
    assert ndcg_at(RANKED, ["a", "d"], 10) == pytest.approx((1 + 1 / log2(5)) / (1 + 1 / log2(3)))
    assert ndcg_at(RANKED, ["f"], 5) == 0.0
    assert ndcg_at(RANKED, [], 5) == 0.0


def test_an_id_counts_once() -> None:
    assert recall_at(["a", "a", "b"], ["a", "b"], 2) == 1.0
    assert mrr_at(["x", "x", "a"], ["a"], 10) == 0.5
    assert ndcg_at(["a", "a"], ["a", "a"], 10) == pytest.approx(1.0)


def test_nothing_found_is_zero() -> None:
    assert (recall_at([], ["a"], 5), mrr_at([], ["a"], 5), ndcg_at([], ["a"], 5)) == (0.0, 0.0, 0.0)


def test_k_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        recall_at(RANKED, ["a"], 0)
