"""Centring makes texts of two languages comparable, follows a knowledge base, and survives storage."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from server.errors import ConfigurationError, DimensionMismatch
from server.models.e5 import E5Model
from server.models.transform import EmbeddingTransform, snippet, snippets

Floats = NDArray[np.float32]

DIMENSION = 8
AXES: Floats = np.eye(DIMENSION, dtype=np.float32)


def made_up() -> EmbeddingTransform:
    """Two language cones: Chinese along the first axis, English along the second."""
    return EmbeddingTransform(
        dimension=DIMENSION,
        scale=0.5,
        calibrated=True,
        passage_means={"zh": 3 * AXES[0], "en": 3 * AXES[1]},
        question_means={"zh": 2 * AXES[0], "en": 2 * AXES[1]},
        snippet_means={"zh": AXES[0], "en": AXES[1]},
        small_talk=AXES[7:8].astype(np.float16),
    )


def test_identity_only_gives_unit_length() -> None:
    transform = EmbeddingTransform.identity(2)
    assert np.allclose(transform.apply_passages(np.array([[3.0, 4.0]]), ["en"]), [[0.6, 0.8]])
    assert np.allclose(transform.apply_query(np.array([0.0, -2.0]), "zh"), [0.0, -1.0])
    assert transform.is_identity
    assert not transform.calibrated


def test_identity_scores_are_squared_distances() -> None:
    transform = EmbeddingTransform.identity(2)
    a, b = np.array([1.0, 0.0]), np.array([0.6, 0.8])
    assert transform.score(float(a @ b)) == pytest.approx(float(((a - b) ** 2).sum()))


def test_score_and_cosine_are_inverse() -> None:
    transform = EmbeddingTransform.shipped()
    assert transform.score(1.0) == 0.0
    assert transform.cosine(1.0) == pytest.approx(0.0)
    assert transform.cosine(transform.score(0.37)) == pytest.approx(0.37)


def test_languages_meet_once_their_means_are_gone() -> None:
    raw = np.stack([3 * AXES[0] + AXES[4], 3 * AXES[1] + AXES[4], 3 * AXES[1] + AXES[5]])
    vectors = made_up().apply_passages(raw, ["zh", "en", "en"])
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0)
    assert float(vectors[0] @ vectors[1]) == pytest.approx(1.0)
    assert float(vectors[1] @ vectors[2]) == pytest.approx(0.0)


def test_questions_have_means_of_their_own() -> None:
    assert np.allclose(made_up().apply_query(2 * AXES[0] + AXES[4], "zh"), AXES[4])


def test_an_unknown_language_gets_what_the_known_ones_share() -> None:
    raw = 1.5 * (AXES[0] + AXES[1]) + AXES[4]
    assert np.allclose(made_up().apply_passages(raw[None], ["ja"])[0], AXES[4], atol=1e-6)


def test_fitting_moves_questions_and_leaves_passages() -> None:
    transform = made_up()
    fitted = transform.fit(np.tile(AXES[0] + AXES[5], (1000, 1)), ["zh"] * 1000)
    raw = 2 * AXES[0] + AXES[5] + AXES[6]
    assert float(transform.apply_query(raw, "zh")[5]) == pytest.approx(0.5**0.5, abs=1e-6)
    assert abs(float(fitted.apply_query(raw, "zh")[5])) < 0.05
    passages = np.stack([raw, AXES[3]])
    assert np.array_equal(
        fitted.apply_passages(passages, ["zh", "en"]), transform.apply_passages(passages, ["zh", "en"])
    )


def test_a_handful_of_passages_moves_little() -> None:
    one = made_up().fit((AXES[0] + AXES[5])[None], ["zh"])
    many = made_up().fit(np.tile(AXES[0] + AXES[5], (200, 1)), ["zh"] * 200)
    assert float(np.linalg.norm(one.shifts["zh"])) < 0.1
    assert float(np.linalg.norm(many.shifts["zh"])) > 0.9


def test_fitting_one_language_leaves_the_other() -> None:
    fitted = made_up().fit(np.tile(AXES[0] + AXES[5], (50, 1)), ["zh"] * 50)
    raw = 2 * AXES[1] + AXES[4]
    assert np.array_equal(fitted.apply_query(raw, "en"), made_up().apply_query(raw, "en"))


def test_fitting_twice_starts_from_the_shipped_means() -> None:
    vectors = np.tile(AXES[0] + AXES[5], (50, 1))
    once = made_up().fit(vectors, ["zh"] * 50)
    assert np.array_equal(once.fit(vectors, ["zh"] * 50).shifts["zh"], once.shifts["zh"])


def test_there_is_nothing_to_fit_in_an_identity() -> None:
    transform = EmbeddingTransform.identity(DIMENSION)
    assert transform.fit(AXES, ["en"] * DIMENSION) is transform


def test_small_talk_is_told_from_a_question() -> None:
    transform = made_up()
    assert transform.small_talk_similarity(2 * AXES[1] + AXES[7], "en") == pytest.approx(1.0)
    assert transform.small_talk_similarity(2 * AXES[1] + AXES[4], "en") == pytest.approx(0.0)
    assert EmbeddingTransform.identity(DIMENSION).small_talk_similarity(AXES[7], "en") == -1.0


def test_storage_keeps_everything() -> None:
    fitted = EmbeddingTransform.shipped().fit(np.ones((3, 384), np.float32), ["zh", "zh", "en"])
    copy = EmbeddingTransform.from_bytes(fitted.to_bytes())
    raw = np.random.default_rng(0).normal(size=(2, 384))
    assert (copy.dimension, copy.scale, copy.calibrated) == (384, fitted.scale, True)
    assert np.array_equal(copy.apply_passages(raw, ["zh", "ja"]), fitted.apply_passages(raw, ["zh", "ja"]))
    assert np.array_equal(copy.apply_query(raw[0], "zh"), fitted.apply_query(raw[0], "zh"))
    assert copy.small_talk_similarity(raw[0], "en") == fitted.small_talk_similarity(raw[0], "en")
    assert copy.to_bytes() == fitted.to_bytes()


def test_an_identity_without_a_dimension_can_be_stored() -> None:
    copy = EmbeddingTransform.from_bytes(EmbeddingTransform.identity().to_bytes())
    assert copy.dimension is None
    assert copy.is_identity


@pytest.mark.parametrize("data", [b"", b"not a transform", b"PK\x03\x04 broken"])
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match="damaged"):
        EmbeddingTransform.from_bytes(data)


def test_bytes_hold_no_pickled_objects() -> None:
    from io import BytesIO

    buffer = BytesIO()
    np.savez(buffer, settings=np.array([object()], dtype=object))
    with pytest.raises(ConfigurationError):
        EmbeddingTransform.from_bytes(buffer.getvalue())


def test_vectors_of_another_dimension_are_refused() -> None:
    with pytest.raises(DimensionMismatch, match="384"):
        EmbeddingTransform.shipped().apply_passages(np.ones((1, 7)), ["en"])
    with pytest.raises(DimensionMismatch):
        EmbeddingTransform.shipped().apply_query(np.ones(7), "en")


def test_no_passages_give_no_vectors() -> None:
    assert made_up().apply_passages(np.zeros((0, DIMENSION)), []).shape == (0, DIMENSION)


def test_a_vector_without_direction_stays_finite() -> None:
    vectors = made_up().apply_passages((3 * AXES[0])[None], ["zh"])
    assert np.isfinite(vectors).all()


def test_a_snippet_is_the_longest_sentence_cut_to_a_question() -> None:
    assert snippet("Tides\nThe boats leave early. They return late at night!") == "They return late at night"
    assert snippet("标题\n海港的潮汐表每日更新。好") == "海港的潮汐表每日更新"
    assert len(snippet("潮" * 500)) < len(snippet("tide " * 200)) <= 100
    assert snippet("") == ""


def test_snippets_are_few_and_spread() -> None:
    passages = [f"passage {number}" for number in range(1000)]
    chosen = snippets(passages, 10)
    assert chosen == [f"passage {number}" for number in range(0, 1000, 100)]
    assert snippets(passages[:3], 10) == passages[:3]
    assert snippets([]) == []


def test_the_shipped_means_let_english_answer_chinese(e5: E5Model) -> None:
    transform = EmbeddingTransform.shipped()
    english = ["The lighthouse was painted white in 1911.", "Bread is baked twice a day in the village."]
    chinese = ["这家工厂生产自行车零件。", "图书馆周一闭馆。"]
    raw = np.stack([e5.embed_passage(text) for text in english + chinese])
    question = e5.embed_query("灯塔是什么颜色的？")
    assert int((raw @ question).argmax()) >= 2, "raw vectors prefer the question's language"
    vectors = transform.apply_passages(raw, ["en", "en", "zh", "zh"])
    assert int((vectors @ transform.apply_query(question, "zh")).argmax()) == 0


@pytest.mark.parametrize("text", ["哈喽", "谢了", "good night!", "how is it going", "bonjour"])
def test_shipped_small_talk_knows_greetings_it_does_not_list(e5: E5Model, text: str) -> None:
    language = "zh" if text in ("哈喽", "谢了") else "en"
    assert EmbeddingTransform.shipped().small_talk_similarity(e5.embed_query(text), language) > 0.4


@pytest.mark.parametrize(
    ("text", "language"),
    [("合同逾期付款的违约金怎么计算？", "zh"), ("How often must the bearings be greased?", "en"), ("潮汐表", "zh")],
)
def test_shipped_small_talk_leaves_questions_alone(e5: E5Model, text: str, language: str) -> None:
    assert EmbeddingTransform.shipped().small_talk_similarity(e5.embed_query(text), language) < 0.35
