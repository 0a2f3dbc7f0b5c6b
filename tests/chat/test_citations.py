"""Marks: which are marks, which point nowhere, and what they stand behind; whether a source bears a claim."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.chat.citations import MarkFilter, check, claims, drop_stray_marks, marks, verify
from server.chat.numbers import numbers, spoken_numbers

# ---- which are marks


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It is so [1].", [(1,)]),
        ("It is so[1][2].", [(1,), (2,)]),
        ("如此[1, 2]，如此[3，4]、[5、6]。", [(1, 2), (3, 4), (5, 6)]),
        ("All of it [1,3-5].", [(1, 3, 4, 5)]),
        ("如此［1］，如此【2】，如此【３】。", [(1,), (2,), (3,)]),
        ("Paris[1] in 1912[2], 维生素C[3], PostgreSQL[4], iPhone[5], v2[6].", [(1,), (2,), (3,), (4,), (5,), (6,)]),
        ("[12] first", [(12,)]),
    ],
)
def test_marks_are_numbers_in_brackets(text: str, numbers: list[tuple[int, ...]]) -> None:
    found = marks(text)
    assert [mark.numbers for mark in found] == numbers
    assert all(text[mark.end - 1] in "]］】" for mark in found)
    assert all(text[mark.start] in " [［【" for mark in found)


@pytest.mark.parametrize(
    "text",
    [
        "See [1](https://example.com/a).",
        "The value a[1] and m_x[2], rowIds[3], items[0], arr[1][2].",
        "Use `x [1]` and ``y ` [2]``.",
        "```python\nprint([1])\n```",
        "~~~\n[1]\n```\n[2]\n~~~",
        "    ```\n    [1]\n    ```",
        "[x] [] [1 2] [1-] [1,] [-1] [1234] [1】 ![1",
        "```\nnever closed [1]",
    ],
)
def test_code_links_and_indexes_are_not(text: str) -> None:
    assert marks(text) == []
    assert drop_stray_marks(text, 0) == text


def test_code_ends() -> None:
    assert [mark.numbers for mark in marks("`a` [1]\n```\n[2]\n```\n[3] a ` b\n[4]")] == [(1,), (3,), (4,)]


# ---- which point nowhere


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("So [1], so [4].", "So [1], so."),
        ("So [0][2].", "So[2]."),
        ("So [2, 9].", "So [2]."),
        ("So 【1，3-7】。", "So 【1, 3】。"),
        ("So[9](x) and a[9].", "So[9](x) and a[9]."),
    ],
)
def test_marks_that_point_nowhere_are_dropped(text: str, kept: str) -> None:
    assert drop_stray_marks(text, 3) == kept


def filtered(pieces: Iterable[str], count: int) -> str:
    kept = MarkFilter(count)
    return "".join([*map(kept.feed, pieces), kept.finish()])


PARTS = st.sampled_from(
    [
        *"[]［］【】(`~\n ,-",
        "[1]",
        "[9]",
        " [2]",
        "[1, 9]",
        "【3】",
        "```",
        "~~~",
        "``",
        "a",
        "x_",
        "中",
        "1",
        "12",
        "\n```\n",
        "[1](u)",
        "[9](u)",
    ]
)
TEXTS = st.lists(PARTS | st.text(max_size=3), max_size=25).map("".join)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(TEXTS, st.data())
def test_any_cutting_of_a_stream_gives_the_same(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = drop_stray_marks(text, 3)
    assert filtered(pieces, 3) == whole
    assert filtered(text, 3) == whole
    if not any(0 in mark.numbers for mark in marks(text)):
        assert filtered(text, 999) == text


def test_a_stream_holds_back_a_bracket_at_most() -> None:
    kept = MarkFilter(3)
    assert kept.feed("It is so") == "It is so"
    assert kept.feed(" [") == ""
    assert kept.feed("2") == ""
    assert kept.feed("] and") == " [2] and"
    assert kept.feed(" [not a mark") == " [not a mark"
    assert kept.feed(" ") == ""
    assert kept.finish() == " "
    long = MarkFilter(3)
    assert len(long.feed("[" + "1," * 500)) > 900


# ---- what they stand behind


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "北京是首都[1]，人口两千万[2]。上海很大。[3]",
            [((1,), "北京是首都"), ((2,), "人口两千万"), ((3,), "上海很大。")],
        ),
        ("It rained. Paris is big [1][2].", [((1, 2), "Paris is big")]),
        ("Paris is big. [1] It rains. [2]", [((1,), "Paris is big."), ((2,), "It rains.")]),
        ("Paris is big [1], and [2].", [((1, 2), "Paris is big")]),
        ("Dr. Li paid $3.50 in May [1].", [((1,), "Dr. Li paid $3.50 in May")]),
        ("According to [1], Paris is big. It rains.", [((1,), "Paris is big.")]),
        ("根据[1]和[2]，知库使用 SQLite。还有别的。", [((1, 2), "知库使用 SQLite。")]),
        ("- **Fact** one.[1]\n- Second thing [2]", [((1,), "Fact one."), ((2,), "Second thing")]),
        ("Nothing.\n\n[1] Third thing. End.", [((1,), "Third thing.")]),
        ("Paris is big [7] and old [1].", [((1,), "and old")]),
        ("Paris is big [7, 1].", [((1,), "Paris is big")]),
        ("[1]", []),
        ("[1]\n\nText without a mark.", []),
        ("", []),
    ],
)
def test_a_claim_is_the_sentence_or_the_part_of_it_before_its_mark(
    text: str, expected: list[tuple[tuple[int, ...], str]]
) -> None:
    assert [(claim.numbers, claim.text) for claim in claims(text, 3)] == expected


@settings(max_examples=200, deadline=None, derandomize=True)
@given(TEXTS)
def test_claims_have_a_place_and_no_marks(text: str) -> None:
    for claim in claims(text, 3):
        assert 0 <= claim.start < claim.end <= len(text)
        assert set(claim.numbers) <= {1, 2, 3}
        assert claim.text
        assert claim.text == claim.text.strip()


# ---- whether a source bears them

ENGLISH = (
    "The bridge is a landmark of the town. It was opened in May 1932 by Sir Arthur Reed, and cost 1,500,000 pounds. "
    "Trams do not cross it any more. In 1956 Reed handed it over to Lord Hale, who had it painted green."
)
CHINESE = "大桥是该市的标志。大桥于1932年5月由李文海主持通车，造价一百五十万元。如今电车不再通过大桥。北部的引桥建成于1956年。"


def supported(claim: str, source: str) -> bool:
    return verify(claim, source).verified


@pytest.mark.parametrize(
    ("claim", "source", "span"),
    [
        ("It was opened in May 1932 by Sir Arthur Reed", ENGLISH, "It was opened in May 1932 by Sir Arthur Reed"),
        ("Trams DO NOT cross it any more!", ENGLISH, "Trams do not cross it any more"),
        ("如今电车不再通过大桥", CHINESE, "如今电车不再通过大桥"),
        ("造价一百五十万元。", CHINESE, "造价一百五十万元"),
        ("it cost 50", "It cost 500, or it cost 50", "it cost 50"),
    ],
)
def test_a_quotation_is_found_where_it_stands(claim: str, source: str, span: str) -> None:
    verdict = verify(claim, source)
    assert (verdict.verified, verdict.support) == (True, 1.0)
    assert source[verdict.start : verdict.end] == span


@pytest.mark.parametrize(
    ("claim", "source", "held"),
    [
        ("In May 1932 Sir Arthur Reed opened the bridge", ENGLISH, "May 1932"),
        ("The bridge's cost was 1.5 million pounds", ENGLISH, "1,500,000"),
        ("No tram crosses the bridge any more", ENGLISH, "Trams"),
        ("1932年5月，李文海主持大桥通车", CHINESE, "李文海"),
        ("大桥的造价为150万元", CHINESE, "一百五十万"),
        ("电车如今不再通过这座大桥", CHINESE, "电车"),
    ],
)
def test_other_words_are_supported_by_the_sentence_that_says_so(claim: str, source: str, held: str) -> None:
    verdict = verify(claim, source)
    assert verdict.verified
    assert verdict.support < 1.0
    assert held in source[verdict.start : verdict.end]
    assert verdict.end - verdict.start < len(source)


@pytest.mark.parametrize(
    ("claim", "source"),
    [
        ("It was opened in May 1934 by Sir Arthur Reed", ENGLISH),  # a number
        ("It was opened in May 1932 by Sir Arthur Webb", ENGLISH),  # a name
        ("It was not opened in May 1932 by Sir Arthur Reed", ENGLISH),  # a negation
        ("Trams cross it any more", ENGLISH),
        ("In 1956 Hale handed it over to Lord Reed, who had it painted green", ENGLISH),  # names change places
        ("Whales are mammals that live in the sea", ENGLISH),
        ("大桥于1935年5月由李文海主持通车", CHINESE),
        ("大桥于1932年5月由王大明主持奠基", CHINESE),
        ("大桥不是该市的标志", CHINESE),
        ("如今电车通过大桥", CHINESE),
        ("南部的引桥建成于1956年", CHINESE),  # an opposite
        ("鲸鱼是生活在海里的哺乳动物", CHINESE),
        ("It cost 50", "It cost 500 pounds"),  # parts of a number or a word
        ("It cost 15 pounds", "It cost 1.5 pounds"),
        ("Art is old", "Bart is old"),
        ("支持 IPv6", "该版本不支持 IPv6"),
        ("supported on Windows", "It is not supported on Windows"),
        ("", ENGLISH),
        ("It was opened", ""),
        ("...", "!!!"),
    ],
)
def test_what_the_source_does_not_say_is_not_supported(claim: str, source: str) -> None:
    assert not supported(claim, source)


def test_the_context_names_the_subject() -> None:
    claim, source = "Brightwater Bridge 7 opened in 1932", "It opened in 1932."
    assert not supported(claim, source)
    assert verify(claim, source, context="Towns > Brightwater Bridge 7").verified


def test_over_another_language_the_nearest_sentence_decides_and_numbers_must_agree() -> None:
    asked: list[str] = []

    def closeness(text: str, texts: Sequence[str]) -> list[float]:
        asked.append(text)
        return [0.6 if "opened" in one else 0.0 for one in texts]

    verdict = verify("大桥于1932年5月通车", ENGLISH, closeness=closeness)
    assert verdict.verified
    assert ENGLISH[verdict.start : verdict.end].startswith("It was opened")
    assert not verify("大桥于1933年5月通车", ENGLISH, closeness=closeness).verified
    assert not verify("大桥不是1932年5月通车的", ENGLISH, closeness=closeness).verified
    assert not verify("鲸鱼生活在海里", ENGLISH, closeness=lambda _, texts: [0.1] * len(texts)).verified
    assert not verify("大桥通车了", ENGLISH).verified  # nobody to ask
    assert len(asked) == 3
    verify("The bridge was opened", ENGLISH, closeness=closeness)
    assert len(asked) == 3


def test_an_answer_is_checked_mark_by_mark() -> None:
    answer = "The bridge was opened in May 1932 [1] and painted red in 1960 [1]. 大桥的造价为150万元[2][9]。"
    found = check(answer, [ENGLISH, CHINESE])
    assert [(one.number, one.verdict.verified) for one in found] == [(1, True), (1, False), (2, True)]
    assert answer[found[0].claim.start : found[0].claim.end] == "The bridge was opened in May 1932"


def test_sources_may_bear_a_claim_together() -> None:
    answer = "The bridge was opened in May 1932, and whales are mammals [1][2]."
    whales = "Whales are mammals of the sea."
    found = check(answer, [ENGLISH, whales])
    assert [(one.number, one.verdict.verified) for one in found] == [(1, True), (2, True)]
    assert "opened in May 1932" in ENGLISH[found[0].verdict.start : found[0].verdict.end]
    assert whales[found[1].verdict.start : found[1].verdict.end] == "Whales are mammals"
    for other in ("Fish swim in the sea.", ""):
        assert not any(one.verdict.verified for one in check(answer, [ENGLISH, other]))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(TEXTS, st.lists(TEXTS | st.sampled_from([ENGLISH, CHINESE]), max_size=3).map("".join))
def test_spans_lie_in_the_source(claim: str, source: str) -> None:
    verdict = verify(claim, source)
    assert 0 <= verdict.start <= verdict.end <= len(source)
    assert 0 <= verdict.support <= 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,500,000 or 1.5 million or 150万", {"1500000"}),
        ("v1.2.3, 2.50, 007, 60%", {"1.2.3", "2.50", "7", "60"}),
        ("5亿 and ３ and " + "9" * 5000 + " million", {"500000000", "3", "9" * 5000}),
    ],
)
def test_numbers_in_digits(text: str, expected: set[str]) -> None:
    assert numbers(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("三百二十万", {"3200000"}),
        ("一九五五年", {"1955"}),
        ("十二 二十 两千零五 一万三千", {"12", "20", "2005", "13000"}),
        ("Twelve of thirty in May, twice", {"12", "30", "5", "2"}),
    ],
)
def test_numbers_in_words(text: str, expected: set[str]) -> None:
    assert spoken_numbers(text) == expected
