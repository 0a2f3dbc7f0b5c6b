"""Doubt whether passages answer a question: each sign, and that none of them speaks where it should not."""

from __future__ import annotations

import pytest

from server.chat import extractive
from server.chat.answerability import doubt, is_doubtful
from server.chat.extractive import doubts
from server.domain import Hit

USUAL = 0.7


def hit(text: str, similarity: float | None = USUAL, headings: tuple[str, ...] = ()) -> Hit:
    return Hit("1", text, "notes.txt", score=0.5, similarity=similarity, headings=headings)


def doubt_of(question: str, hit: Hit) -> float:
    """How much speaks against an answer, as far as words tell."""
    return doubt(question, extractive._pieces([hit]), USUAL)


def doubted(question: str, *texts: str) -> bool:
    return doubts(question, [hit(text) for text in texts])


# ---- what the sentence says otherwise


@pytest.mark.parametrize(
    ("text", "fits", "opposite"),
    [
        ("The oldest bridge crosses the river.", "Which is the oldest bridge?", "Which is the newest bridge?"),
        ("Public schools charge no tuition.", "What do public schools charge?", "What do private schools charge?"),
        ("A known artist lives in Wick.", "Where does a known artist live?", "Where does an unknown artist live?"),
        ("An unknown artist lives in Wick.", "Where does an unknown artist live?", "Where does a known artist live?"),
        ("仓库的最高温度为三十度。", "仓库的最高温度是多少？", "仓库的最低温度是多少？"),
    ],
)
def test_the_opposite_of_what_is_said_is_not_answered(text: str, fits: str, opposite: str) -> None:
    assert not doubts(fits, [hit(text)])
    assert doubts(opposite, [hit(text)])


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("The goal of the congress was a unified front.", "What wasn't the goal of the congress?"),
        ("The goal of the congress was a unified front.", "What was not the goal of the congress?"),
        ("联盟的目标是统一关税。", "哪一项并非联盟的目标？"),
    ],
)
def test_a_negated_question_needs_a_negated_sentence(text: str, question: str) -> None:
    negated = text.replace("was", "was not").replace("是", "不是")
    assert doubted(question, text)
    assert not doubted(question, negated)


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("The shop sells bread and milk.", "Doesn't the shop sell bread?"),
        ("The shop sells not only bread.", "Does the shop sell not only bread?"),
        ("系统能导出表格，是开源软件。", "系统能不能导出表格？"),
        ("系统能导出表格，是开源软件。", "系统是不是开源软件？"),
        ("这家商店有面包出售。", "这家商店有没有面包？"),
    ],
)
def test_what_only_looks_negated_is_answered(text: str, question: str) -> None:
    assert not doubted(question, text)


# ---- what the sentences lack


def test_signs_add_up_until_they_are_enough() -> None:
    sentence = "The mill at Wick was sold to the Tait family in 1932."
    named = doubt_of("Why was the mill at Thurso sold?", hit(sentence))
    dated = doubt_of("Why was the mill at Wick sold in 1931?", hit(sentence))
    both = doubt_of("Why was the mill at Thurso sold in 1931?", hit(sentence))
    assert doubt_of("Why was the mill at Wick sold in 1932?", hit(sentence)) == 0
    assert both == pytest.approx(named + dated)
    assert named > 0 < dated
    assert not doubted("Why was the mill at Wick sold in 1931?", sentence)
    assert doubted("Why was the mill at Thurso sold in 1931?", sentence)


@pytest.mark.parametrize(
    ("question", "without", "with_one"),
    [
        ("How many arches has the bridge?", "The bridge has fine arches.", "The bridge has twelve arches."),
        ("The bridge has how many arches?", "The bridge has fine arches.", "The bridge has 12 arches."),
        ("When was the bridge opened?", "The bridge was opened by crowds.", "The bridge was opened in 1932."),
        ("In what city was the bell cast?", "The bell was cast with care.", "The bell was cast at Loughborough."),
    ],
)
def test_a_number_a_date_or_a_place_is_missed_where_it_is_asked_for(question: str, without: str, with_one: str) -> None:
    assert doubted(question, without)
    assert not doubted(question, with_one)


def test_what_the_question_names_itself_is_no_answer() -> None:
    question = "Where does the road from Wick end?"
    assert doubted(question, "The road from Wick does end soon.")
    assert not doubted(question, "The road from Wick does end near Thurso.")


def test_when_and_where_inside_a_question_ask_for_nothing() -> None:
    assert not doubted(
        "What rings loudly in the tower when bread is sold?", "A bell rings in the tower, bread is sold."
    )


def test_headings_name_what_their_passage_is_about() -> None:
    question = "What does the Orkney office of Tait sell?"
    assert doubt_of(question, hit("It sells ropes.")) > doubt_of(
        question, hit("It sells ropes.", headings=("Orkney office of Tait",))
    )


def test_a_title_that_stands_nowhere_is_missed() -> None:
    text = "作者在北京写完了这部小说的初稿。"
    assert doubt_of("《红楼梦》的作者在哪里写完初稿？", hit(text)) > doubt_of("小说的作者在哪里写完初稿？", hit(text))


def test_words_scattered_over_sentences_tell_less_than_words_together() -> None:
    together = "The harbour crane lifts heavy timber. Ships wait."
    scattered = "The harbour crane is red. Men wait for heavy timber to lift. Ships wait."
    question = "What does the harbour crane lift besides heavy timber?"
    assert doubt_of(question, hit(scattered)) > doubt_of(question, hit(together))


# ---- what is never enough


@pytest.mark.parametrize("similarity", [0.0, 0.3, 0.62])
def test_a_low_similarity_alone_is_never_enough_but_tips_the_balance(similarity: float) -> None:
    text = "The mill at Wick was sold in 1932."
    assert not doubts("Why was the mill at Wick sold?", [hit(text, similarity)])
    assert not doubts("Why was the mill at Wick sold in 1931?", [hit(text, USUAL)])
    assert doubts("Why was the mill at Wick sold in 1931?", [hit(text, similarity)])


def test_a_high_similarity_speaks_for_an_answer_and_an_unknown_one_says_nothing() -> None:
    question, text = "How many arches has the bridge?", "The bridge has fine arches."
    assert not doubts(question, [hit(text, 0.9)])
    assert doubts(question, [hit(text, None)])


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("Who built the newest bridge in 1931?", "这座大桥建于一九三二年，是最古老的桥。"),
        ("《红楼梦》不是谁写的？", "The novel was written in Beijing."),
        ("", "The bridge was opened by crowds."),
        ("How are you?", "The bridge was opened by crowds."),
        ("你好", "大桥由市民开放。"),
    ],
)
def test_another_language_and_a_question_without_words_are_never_doubted(question: str, text: str) -> None:
    assert not doubts(question, [hit(text, 0.1)])


def test_the_best_sentence_of_all_hits_is_judged() -> None:
    question = "How many arches has the bridge?"
    assert not doubted(question, "The bridge is fine.", "The bridge has twelve arches.")


def test_nothing_at_all_is_no_answer() -> None:
    assert doubts("Who?", [])
    assert doubts("Who?", [hit("… !")])
    assert not is_doubtful("Who opened it?", [], None)


def test_distance_and_scattered_words_are_enough_in_english_but_not_in_chinese() -> None:
    english = hit("The harbour crane is red. The timber shelf is old.", 0.5)
    chinese = hit("码头的吊车很旧。仓库的货架很新。", 0.5)
    assert doubts("Why do the harbour crane and the timber shelf creak?", [english])
    assert not doubts("为什么码头的吊车和仓库的货架会响？", [chinese])
