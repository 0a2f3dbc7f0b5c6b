"""Thinking and answer are told apart, wherever a stream is cut; JSON is found in talkative replies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.models.thinking import ThinkingSplitter, json_of, strip_thinking


def split(pieces: Iterable[str], *, opened: bool = False) -> tuple[str, str]:
    splitter = ThinkingSplitter(opened=opened)
    parts = [splitter.feed(piece) for piece in pieces] + [splitter.finish()]
    return "".join(answer for answer, _ in parts), "".join(thinking for _, thinking in parts)


@pytest.mark.parametrize(
    ("text", "answer", "thinking"),
    [
        ("<think>\n想一想\n</think>\n\n答案", "答案", "想一想"),
        ("\n <think>a</think>b", "b", "a"),
        ("<THINK>a</Think>b", "b", "a"),
        ("<thinking>a</thinking>b", "b", "a"),
        ("<think>\n\n</think>\n\nb", "b", ""),
        ("<think>a</think>\n<think>c</think>\nb", "b", "a\n\nc"),
        ("no thinking", "no thinking", ""),
        ("  indented\n", "  indented\n", ""),
        ("", "", ""),
        ("<think>never closed, 1 < 2", "", "never closed, 1 < 2"),
        ("<think>cut </thi", "", "cut </thi"),
        ("<thin", "<thin", ""),
        ("<thinker> is a word", "<thinker> is a word", ""),
        ("<think>a < b and </b> too</think>c", "c", "a < b and </b> too"),
    ],
)
def test_thinking_stands_at_the_beginning(text: str, answer: str, thinking: str) -> None:
    assert strip_thinking(text) == (answer, thinking)
    assert split([text]) == (answer, thinking)
    assert split(text) == (answer, thinking)


@pytest.mark.parametrize(
    "text",
    [
        "Write it so:\n```\n<think>\nhm\n</think>\n```\nand go on.",
        "The tag <think> opens it. Then more text.",
        "It ends with `</think>`, always.",
    ],
)
def test_a_tag_in_an_answer_is_text_and_swallows_nothing(text: str) -> None:
    assert strip_thinking(text) == (text, "")
    assert split(text) == (text, "")
    assert strip_thinking(f"<think>x</think>{text}") == (text, "x")


def test_a_whole_reply_without_the_opening_tag_is_understood() -> None:
    text = "Let me see. `x` is 3.\n</think>\n\nIt is 3."
    assert strip_thinking(text) == ("It is 3.", "Let me see. `x` is 3.")
    assert split(text, opened=True) == ("It is 3.", "Let me see. `x` is 3.")
    assert split("<think>a</think>b", opened=True) == ("b", "a")
    assert split(" <thi", opened=True) == ("", "<thi")


def test_the_answer_is_not_held_back() -> None:
    splitter = ThinkingSplitter()
    assert splitter.feed("<think>let me") == ("", "let me")
    assert splitter.feed(" see</think") == ("", " see")
    assert splitter.feed(">\n") == ("", "")
    assert splitter.feed("It <") == ("It <", "")
    assert splitter.feed("think>") == ("think>", "")


PARTS = st.sampled_from(
    ["<think>", "</think>", "<thinking>", "</thinking>", "<", "</", "think", ">", " ", "\n", "`", "a"]
)
TEXTS = st.lists(PARTS | st.text(max_size=4), max_size=14).map("".join)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(TEXTS, st.booleans(), st.data())
def test_any_cutting_gives_the_same(text: str, opened: bool, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(pieces, opened=opened) == split([text], opened=opened)
    if not opened and not text.lstrip().lower().startswith("<think"):
        assert split(pieces) == (text, "")


# ---- JSON


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ('<think>Maybe {"a": "WRONG"}</think>\n{"a": 1}', {"a": 1}),
        ('Here you are:\n```json\n{"a": [1, 2]}\n```\nDone {really}.', {"a": [1, 2]}),
        ('As {she} said [so], it is {"a": "}{"} and {"b": 2}', {"a": "}{"}),
        ("[1] and {x}", [1]),
        ('{"a": [1, 2,], "b": "x,}", }', {"a": [1, 2], "b": "x,}"}),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}),
        ('reasoning {"a": 0}\n</think>\n["关键词"]', ["关键词"]),
    ],
)
def test_json_is_found(text: str, expected: Any) -> None:
    assert json_of(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing here",
        "42",
        '{"a": [{"b": 1}], "c',  # cut: the inner array is not the answer
        '<think>{"a": 1}</think> none',
        '{"a": NaN}',
        "[" * 100_000,
        '{"a":' * 20_000,
    ],
)
def test_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="JSON"):
        json_of(text)
