from __future__ import annotations

import time

import pytest

from server.domain import Extraction
from server.graph.nlp import FEWEST_ALLOWED, MENTIONS_PER_1000, extract


def named(text: str, lang: str = "en") -> list[str]:
    return [one.name for one in extract(text, lang).mentions if one.type != "concept"]


def kinds(text: str, lang: str) -> dict[str, str]:
    return {one.name: one.type for one in extract(text, lang).mentions}


def pairs(found: Extraction) -> set[tuple[str, str]]:
    return {(one.source, one.target) for one in found.relations}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The treaty was signed by Anna de la Cruz in Lisbon.", ["Anna de la Cruz", "Lisbon"]),
        ("We heard that J. R. Hartley flew on a Boeing 747 yesterday.", ["J. R. Hartley", "Boeing 747"]),
        ("A grant from the World Health Organization (WHO) helped.", ["World Health Organization", "WHO"]),
        ("She moved from Paris and Rome to Oslo's harbour.", ["Paris", "Rome", "Oslo"]),
        ("He works for the Ministry of Trade and Industry in Madrid.", ["Ministry of Trade and Industry", "Madrid"]),
        ("Yesterday President Mary Holm met Li-Wen Chang.", ["Mary Holm", "Li-Wen Chang"]),
        ("It ended with World War II. Nobody cheered.", ["World War II"]),
        ("They sang “Rain over the Hills” twice.", ["Rain over the Hills"]),
        ("Bread with the Devil is a play.", ["Bread with the Devil"]),
    ],
)
def test_names_in_latin_script(text: str, expected: list[str]) -> None:
    assert named(text) == expected


def test_a_capital_that_only_opens_a_sentence_is_no_name() -> None:
    text = "Bakers rise early. Although tired, the bakers sing. Hills surround the town. “Come in!” she cried."
    assert named(text) == []


def test_a_name_that_opens_a_sentence_is_told_by_what_follows() -> None:
    assert named("Marvik was late. Marvik's coat was wet.") == ["Marvik"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("王建国教授在北京大学工作。", {"王建国": "person", "北京大学": "organization"}),
        ("黄河流经青海省和陕西省。", {"黄河": "location", "青海省": "location", "陕西省": "location"}),
        ("他翻译了《夏天的海》。", {"夏天的海": "title"}),
        ("2019年，OpenAI与微软公司签约。", {"2019年": "time", "OpenAI": "", "微软公司": "organization"}),
        ("作家列夫·托尔斯泰去世。", {"列夫·托尔斯泰": "person"}),
        ("张三先生见到了孔明，孔明曰：可。", {"孔明": "person"}),
    ],
)
def test_names_in_chinese(text: str, expected: dict[str, str]) -> None:
    found = kinds(text, "zh")
    assert {name: found.get(name) for name in expected} == expected


def test_a_guessed_name_leaves_the_next_character_out() -> None:
    assert "孔明曰" not in kinds("孔明曰：此计可行。", "zh")
    assert "孔明" in kinds("孔明曰：此计可行。", "zh")


def test_noun_phrases_are_concepts() -> None:
    found = kinds("She repaired a large battery bank of the old mill.", "en")
    assert found == {"battery bank": "concept", "mill": "concept"}
    assert "concept" in kinds("知识图谱需要关键词检索。", "zh").values()


def test_relations_stay_within_a_sentence_and_keep_the_order() -> None:
    found = extract("The bridge was built by Karl Voss for Elena Brandt. In spring, Otto Lang came.", "en")
    assert ("Karl Voss", "Elena Brandt") in pairs(found)
    assert ("Elena Brandt", "Karl Voss") not in pairs(found)
    assert not any("Otto Lang" in pair and "Karl Voss" in pair for pair in pairs(found))


def test_closer_names_weigh_more() -> None:
    found = extract("We saw Karl Voss, Elena Brandt, Otto Lang and Ida Moe.", "en")
    weights = {(one.source, one.target): one.weight for one in found.relations}
    assert weights["Karl Voss", "Elena Brandt"] > weights["Karl Voss", "Ida Moe"] > 0


def test_the_verb_between_two_names_is_the_label() -> None:
    found = extract("The film Red Harbour was directed by Ida Moe.", "en")
    assert [(one.source, one.label, one.target) for one in found.relations if one.target == "Ida Moe"][-1:] == [
        ("Red Harbour", "directed by", "Ida Moe")
    ]
    found = extract("王建国访问上海。", "zh")
    assert [(one.source, one.label, one.target) for one in found.relations] == [("王建国", "访问", "上海")]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_chunk_has_a_bounded_number_of_mentions_and_every_relation_joins_two(lang: str) -> None:
    rows = {
        "en": "Then Ab{0}x Cd{0}y met Ef{0}z Gh{0}w at the old mill house. ",
        "zh": "第{0}天，企业K{0}和公司Q{0}开会。",
    }
    text = "".join(rows[lang].format(number) for number in range(300))
    found = extract(text, lang)
    names = {one.name for one in found.mentions}
    assert FEWEST_ALLOWED < len(names) <= len(text) * MENTIONS_PER_1000[lang] // 1000
    assert all(one.source in names and one.target in names and one.source != one.target for one in found.relations)


def test_the_same_chunk_gives_the_same_extraction() -> None:
    text = "Ida Moe met Karl Voss in Oslo. 王建国访问上海。"
    assert extract(text, "en") == extract(text, "en")
    assert {"王建国", "上海"} <= set(named(text))


@pytest.mark.parametrize("text", ["", " \n", "!!!", "12 34", "·", "é½", "王", "A", "a·b", "“”", "《》"])
def test_texts_that_name_nothing(text: str) -> None:
    assert extract(text, "en").relations == extract(text, "zh").relations == ()


@pytest.mark.parametrize("unit", ["a", "A", "曹", "A1", "“A", "A.", "·王", "a-", "A'", "1 "])
def test_long_texts_without_sentences_take_linear_time(unit: str) -> None:
    def seconds(size: int) -> float:
        text = (unit * size)[:size]
        started = time.process_time()
        extract(text, "en")
        return time.process_time() - started

    seconds(1000)
    assert seconds(40_000) < 40 * max(seconds(4_000), 0.2)
