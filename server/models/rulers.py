"""Measuring text in the unit of chunk sizes: the tokens of an embedding model, or characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

_SAMPLE = 200
_WIDE, _NARROW = 2, 6
"""Characters a token, with room to spare: of Chinese or Japanese, of everything else."""


class Ruler(Protocol):
    """Measures stretches of text; `limit` is what its model reads at once, if it is known."""

    limit: int | None

    def measure(self, text: str) -> int:
        """How long a text is."""

    def reach(self, text: str, start: int, size: int) -> int:
        """The largest `end` with `text[start:end]` at most `size` long; more than `start`."""

    def back(self, text: str, end: int, size: int) -> int:
        """The smallest `start` with `text[start:end]` at most `size` long."""


class Characters:
    """Counts characters."""

    limit: int | None = None

    def measure(self, text: str) -> int:
        """As `Ruler.measure`."""
        return len(text)

    def reach(self, text: str, start: int, size: int) -> int:  # noqa: ARG002  # as in Ruler
        """As `Ruler.reach`."""
        return start + size

    def back(self, text: str, end: int, size: int) -> int:  # noqa: ARG002  # as in Ruler
        """As `Ruler.back`."""
        return end - size


class Tokens:
    """Counts the tokens of a model: `ends` gives the offset at which each token of a text ends.

    Only a window around the place in question is looked at, so a long text costs no more than its chunks.
    """

    def __init__(self, ends: Callable[[str], Sequence[int]], limit: int | None = None) -> None:
        self._ends = ends
        self.limit = limit

    def measure(self, text: str) -> int:
        """As `Ruler.measure`."""
        return len(self._ends(text))

    def reach(self, text: str, start: int, size: int) -> int:
        """As `Ruler.reach`."""
        window = _window(text[start : start + _SAMPLE], size)
        while True:
            piece = text[start : start + window]
            ends = self._ends(piece)
            if len(ends) > size:
                return start + max(1, ends[size - 1])
            if start + window >= len(text):
                return len(text)
            window *= 2

    def back(self, text: str, end: int, size: int) -> int:
        """As `Ruler.back`."""
        window = _window(text[max(0, end - _SAMPLE) : end], size)
        while True:
            begin = max(0, end - window)
            ends = self._ends(text[begin:end])
            if len(ends) > size:
                return begin + ends[-size - 1]
            if begin == 0:
                return 0
            window *= 2


def guess() -> Tokens:
    """A ruler for models whose tokenizer is elsewhere; it rather counts too many tokens than too few.

    A character beyond Latin, Greek and Cyrillic is one token, and so are three others.
    """
    return Tokens(_guessed_ends)


def _window(sample: str, size: int) -> int:
    wide = sum(char > "\u2e80" for char in sample)
    return size * (_WIDE if wide * 2 > len(sample) else _NARROW) + 16


def _guessed_ends(text: str) -> list[int]:
    ends, begun = [], 0
    for end, char in enumerate(text, start=1):
        begun += 1
        if begun == 3 or char > "\u0530":
            ends.append(end)
            begun = 0
    if begun:
        ends.append(len(text))
    return ends
