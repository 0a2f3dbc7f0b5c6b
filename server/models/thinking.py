"""What reasoning models say before they answer: told apart from the answer, in streams and in whole texts.

    splitter = ThinkingSplitter()
    for piece in stream:
        answer, thinking = splitter.feed(piece)     # either may be empty
    answer, thinking = splitter.finish()            # what was held back

    strip_thinking(text) -> (answer, thinking)
    json_of(text) -> the object or array that the text holds

Thinking stands at the beginning of a reply: after white space alone, `<think>` opens it and `</think>` closes it.
A tag further on is text (an answer may explain these very tags), and never swallows what follows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, Never

_OPEN = re.compile(r"\s*<think(?:ing)?>", re.IGNORECASE)
_CLOSE = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_OPEN_TAGS = ("<think>", "<thinking>")
_CLOSE_TAGS = ("</think>", "</thinking>")
_LONGEST_TAG = max(map(len, _CLOSE_TAGS))
_BETWEEN = "\n\n"

_FENCED = re.compile(r"```[\w-]*[ \t]*\n(.*?)```", re.DOTALL)
_CONTAINER = re.compile(r"[{\[]")
_BEGUN = re.compile(r'\{\s*"|\[\s*[{"]')
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)
_MOST_TRIES = 200  # a text full of brackets is no reply that holds JSON


class ThinkingSplitter:
    """Tells the thinking of one reply from its answer while it streams, wherever the pieces are cut.

    White space around the thinking is dropped, several blocks of it are joined by an empty line. A block that
    is never closed is thinking to the end. `opened` is for models whose chat template has opened the
    block already, so that the reply begins inside it; an opening tag may still come.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self._state: Literal["start", "thinking", "answer"] = "start"
        self._opened = opened
        self._thought = False  # some block is behind us
        self._spoken = False  # some thinking was handed out
        self._gap = ""  # what stands before the next thinking, if any comes
        self._rest = ""

    def feed(self, text: str) -> tuple[str, str]:
        """(answer, thinking) that are certain by now."""
        self._rest += text
        answer, thinking = "", ""
        while self._rest and (step := self._step()) is not None:
            answer, thinking = answer + step[0], thinking + step[1]
        return answer, thinking

    def finish(self) -> tuple[str, str]:
        """(answer, thinking) that were held back, at the end of the reply."""
        rest, self._rest = self._rest, ""
        if self._state == "thinking":
            return "", self._said(rest.rstrip())
        if self._state == "start" and self._opened:
            return "", rest.strip()
        return ("" if self._thought and self._state == "start" else rest), ""

    def _step(self) -> tuple[str, str] | None:
        """What the next part of the buffer is; None when more text has to come first."""
        if self._state == "start":
            return self._start()
        if self._state == "thinking":
            return self._think()
        answer, self._rest = self._rest, ""
        return answer, ""

    def _start(self) -> tuple[str, str] | None:
        if match := _OPEN.match(self._rest):
            self._enter(self._rest[match.end() :])
        elif _is_begun(self._rest.lstrip(), _OPEN_TAGS):
            return None
        elif self._opened:
            self._enter(self._rest)
        else:
            self._state = "answer"
            self._rest = self._rest.lstrip() if self._thought else self._rest
        return "", ""

    def _enter(self, rest: str) -> None:
        self._state, self._opened, self._rest = "thinking", False, rest
        self._gap = _BETWEEN if self._spoken else ""

    def _think(self) -> tuple[str, str] | None:
        if match := _CLOSE.search(self._rest):
            thinking = self._said(self._rest[: match.start()].rstrip())
            self._state, self._thought, self._rest = "start", True, self._rest[match.end() :]
            return "", thinking
        certain = len(self._rest[: _tag_begins(self._rest)].rstrip())
        if not certain:
            return None
        thinking, self._rest = self._said(self._rest[:certain]), self._rest[certain:]
        return ("", thinking) if thinking else None

    def _said(self, text: str) -> str:
        """The text as it follows what was said before."""
        if self._gap or not self._spoken:
            text = text.lstrip()
        if not text:
            return ""
        gap, self._gap, self._spoken = self._gap, "", True
        return gap + text


def _is_begun(text: str, tags: tuple[str, ...]) -> bool:
    """Whether a text may become one of the tags."""
    return any(tag.startswith(text.lower()) for tag in tags)


def _tag_begins(text: str) -> int:
    """Where a closing tag may begin at the end of a text; its length when there is none."""
    at = text.rfind("<", max(0, len(text) - _LONGEST_TAG))
    return at if at >= 0 and _is_begun(text[at:], _CLOSE_TAGS) else len(text)


def strip_thinking(text: str) -> tuple[str, str]:
    """(answer, thinking) of a whole reply.

    Also where the server left the opening tag out: what stands before a lone `</think>` is thinking then.
    A stream cannot know that in time; give its splitter `opened=True` for such a model.
    """
    splitter = ThinkingSplitter(opened=_lacks_opening(text))
    answer, thinking = splitter.feed(text)
    rest, held = splitter.finish()
    return answer + rest, thinking + held


def _lacks_opening(text: str) -> bool:
    """Whether the first closing tag has no opening one before it, and is not just quoted as code."""
    match = _CLOSE.search(text)
    if match is None or "<think" in text[: match.start()].lower():
        return False
    line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
    return line.count("`") % 2 == 0


def json_of(text: str) -> Any:
    """The first object or array of a reply, without its thinking; what a code fence holds is looked at first.

    Commas before a closing bracket and line breaks inside strings are forgiven. An object that is broken or cut
    is an error: its inner parts are not what was asked for.

    Raises:
        ValueError: there is none.
    """
    answer, _ = strip_thinking(text)
    for candidate in (*_FENCED.findall(answer), answer):
        for found in _containers(candidate):
            return found
    raise ValueError("no JSON object or array in the text")


def _containers(text: str) -> Iterator[Any]:
    for match, _ in zip(_CONTAINER.finditer(text), range(_MOST_TRIES), strict=False):
        rest = text[match.start() :]
        for attempt in (rest, _TRAILING_COMMA.sub(lambda it: it[1] or "", rest)):
            try:
                yield _DECODER.raw_decode(attempt)[0]
            except (ValueError, RecursionError):
                continue
            return
        if _BEGUN.match(rest):
            return


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_constant)
