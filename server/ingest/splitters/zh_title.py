"""Marking titles in Chinese text, and telling each passage which title it stands under."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from server.domain import Chunk

TITLE_CATEGORY = "cn_Title"
"""The value of a chunk's metadata `category` that marks a title."""

_MAX_LENGTH = 20
_HEAD = 5
_MAX_OTHER_SHARE = 0.5


def is_title(text: str) -> bool:
    """Whether a chunk looks like a numbered title: short, no mark at its end, a digit near its start."""
    text = text.strip()
    if not text or len(text) > _MAX_LENGTH or text.isnumeric():
        return False
    if not (text[-1].isalnum() or text[-1] == "_"):
        return False
    shown = [char for char in text if not char.isspace()]
    others = sum(not char.isalpha() for char in shown)
    return others <= _MAX_OTHER_SHARE * len(shown) and any(char.isnumeric() for char in text[:_HEAD])


class TitleEnhancer:
    """Marks titles, and puts the latest one in front of each chunk below it.

    Offsets stay those of the text without the words in front. The metadata of a marked title holds
    `category`.
    """

    def __init__(self) -> None:
        self._title = ""

    def enhance(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """The next chunks of a document."""
        return [self._enhanced(chunk) for chunk in chunks]

    def _enhanced(self, chunk: Chunk) -> Chunk:
        if is_title(chunk.text):
            self._title = chunk.text
            return replace(chunk, metadata={**chunk.metadata, "category": TITLE_CATEGORY})
        return replace(chunk, text=f"下文与({self._title})有关。{chunk.text}") if self._title else chunk
