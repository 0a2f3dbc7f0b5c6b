"""Marks such as `[1]` in an answer, in streams and in whole texts.

    MarkFilter(count).feed(piece) … .finish()     an answer's stream without marks beyond 1..count
    drop_stray_marks(text, count)                 the same for a whole text
    marks(text)                                   [Mark(numbers, start, end)]

Marks are `[1]`, `[1][2]`, `[1, 2]`, `[1,3-5]`, also in full-width brackets `［1］` and `【1】`. What stands in code,
a link `[1](…)` and an index `a[1]` are text. All decisions are made from left to right, so a stream and a whole
text give the same; at most a bracket's few characters and the space before them are held back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_CLOSING = {"[": "]", "［": "］", "【": "】"}
_INNER = r"[\d ,，、;；\-–]"
_LONGEST_INNER = 40
_MARK = re.compile(rf"( ?)([\[［【])({_INNER}{{1,{_LONGEST_INNER}}})([\]］】])")
_MARK_BEGUN = re.compile(rf" ?(?:[\[［【]{_INNER}{{0,{_LONGEST_INNER}}})?")
_ITEM = re.compile(r"(\d{1,3})(?:[-–](\d{1,3}))?")
_PLAIN = re.compile(r"[^`~\n \[［【]+|.", re.DOTALL)
_TICKS = re.compile(r"`+")
_FENCE = re.compile(r"[ \t]{0,12}(`{3,}|~{3,})")
_FENCE_BEGUN = re.compile(r"[ \t]{0,12}(?:~+|`*)")
_FENCE_END = re.compile(r"[ \t]{0,12}(`{3,}|~{3,})[ \t]{0,12}(?=\n|$)")
_FENCE_END_BEGUN = re.compile(r"[ \t]{0,12}(?:~+|`*)[ \t]{0,12}")
_INDEXED = re.compile(
    r"(?:(?<![A-Za-z0-9_])(?:[a-z]|[a-z]{2,}[A-Z][a-z]\w*|arr|array|args|argv|buf|dict|list|lst|nums|tmp|tuple|vec)|_\w*)\Z",
    re.ASCII,
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_LOOKED_BACK = 40


class Mark(NamedTuple):
    """Numbers in one pair of brackets, and where it stands; `start` includes the space before it."""

    numbers: tuple[int, ...]
    start: int
    end: int


class _Token(NamedTuple):
    text: str
    numbers: tuple[int, ...] = ()
    opening: str = ""


class _Scanner:
    """Cuts text into marks and the rest, in pieces as they come."""

    def __init__(self) -> None:
        self._rest = ""
        self._before = "\n"  # the end of what was read
        self._indexed = False  # the last token was an index
        self._fence = ""
        self._ticks = 0

    def feed(self, text: str, *, last: bool = False) -> Iterator[_Token]:
        """Tokens that no further text can change; with `last` all that is left."""
        self._rest += text
        at = 0
        while at < len(self._rest):
            token = self._next(at, last)
            if token is None:
                break
            at += len(token.text)
            self._before = (self._before + token.text)[-_LOOKED_BACK:]
            yield token
        self._rest = self._rest[at:]

    def _next(self, at: int, last: bool) -> _Token | None:
        if self._before.endswith("\n"):
            self._ticks = 0
            begun = (_FENCE_END_BEGUN if self._fence else _FENCE_BEGUN).match(self._rest, at)
            if not last and begun and begun.end() == len(self._rest):
                return None
            if token := self._edge(at):
                return token
        if self._fence:
            return _Token(self._rest[at : self._rest.find("\n", at) + 1 or len(self._rest)])
        return self._code(at, last) if self._ticks or self._rest[at] == "`" else self._prose(at, last)

    def _edge(self, at: int) -> _Token | None:
        """The line's beginning that opens or closes a code fence."""
        match = (_FENCE_END if self._fence else _FENCE).match(self._rest, at)
        if match is None or not match[1].startswith(self._fence):
            return None
        self._fence = "" if self._fence else match[1]
        return _Token(match[0])

    def _code(self, at: int, last: bool) -> _Token | None:
        """Code inside a line ends with as many backticks as it began with, or with the line."""
        ticks = _TICKS.match(self._rest, at)
        if ticks is None:
            end = re.compile(r"[`\n]").search(self._rest, at)
            return _Token(self._rest[at : end.start() if end and end.start() > at else end.end() if end else None])
        if ticks.end() == len(self._rest) and not last:
            return None
        self._ticks = 0 if len(ticks[0]) == self._ticks else self._ticks or len(ticks[0])
        return _Token(ticks[0])

    def _prose(self, at: int, last: bool) -> _Token | None:
        match = _MARK.match(self._rest, at)
        if not last:
            unsure = match or _MARK_BEGUN.match(self._rest, at)
            if unsure and unsure.end() == len(self._rest) and unsure[0]:
                return None
        numbers = _numbers(match) if match else ()
        if match is None or not numbers:
            plain = _PLAIN.match(self._rest, at)
            return _Token(plain[0] if plain else "")
        self._indexed = self._is_index(match, numbers)
        linked = match[2] == "[" and self._rest.startswith("(", match.end())
        return _Token(match[0]) if self._indexed or linked else _Token(match[0], numbers, match[2])

    def _is_index(self, match: re.Match[str], numbers: tuple[int, ...]) -> bool:
        """`a[1]` and `a[1][2]`; `Paris[1]` is a mark, but nobody cites a source 0."""
        if match[1] or match[2] != "[":
            return False
        if self._before.endswith("]"):
            return self._indexed
        return bool(_INDEXED.search(self._before)) or (0 in numbers and bool(_IDENTIFIER.search(self._before)))


def _numbers(match: re.Match[str]) -> tuple[int, ...]:
    """The different numbers between brackets, in order; none when they are no list of numbers."""
    if _CLOSING[match[2]] != match[4]:
        return ()
    numbers: dict[int, None] = {}
    for item in re.split("[,，、;；]", match[3].replace(" ", "") if "," in match[3] else match[3].strip()):
        found = _ITEM.fullmatch(item.strip())
        if found is None:
            return ()
        first, final = int(found[1]), int(found[2] or found[1])
        numbers |= dict.fromkeys(range(first, final + 1))
    return tuple(numbers)


class MarkFilter:
    """Takes an answer's stream and leaves out the marks that name no source from 1 to `count`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._scanner = _Scanner()

    def feed(self, text: str) -> str:
        """The text that is certain by now."""
        return "".join(map(self._kept, self._scanner.feed(text)))

    def finish(self) -> str:
        """What was held back, at the end of the answer."""
        return "".join(map(self._kept, self._scanner.feed("", last=True)))

    def _kept(self, token: _Token) -> str:
        good = [number for number in token.numbers if 1 <= number <= self._count]
        if len(good) == len(token.numbers):
            return token.text
        space = " " if token.text.startswith(" ") else ""
        return f"{space}{token.opening}{', '.join(map(str, good))}{_CLOSING[token.opening]}" if good else ""


def drop_stray_marks(text: str, count: int) -> str:
    """The text without marks that name no source from 1 to `count`; the space before such a mark goes with it."""
    kept = MarkFilter(count)
    return kept.feed(text) + kept.finish()


def marks(text: str) -> list[Mark]:
    """All marks of a text, whatever they point to."""
    found, at = [], 0
    for token in _Scanner().feed(text, last=True):
        if token.numbers:
            found.append(Mark(token.numbers, at, at + len(token.text)))
        at += len(token.text)
    return found
