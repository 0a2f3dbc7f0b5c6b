"""The path of titles that a place in a document stands under."""

from __future__ import annotations

from server.domain import Block

HEADING = "heading"
"""The value of a block's metadata `kind` that marks a title: it belongs to what follows it."""


class HeadingPath:
    """Follows the headings of a document as they come; `titles` is the current path."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    @property
    def titles(self) -> tuple[str, ...]:
        """The titles above the current place, outermost first."""
        return tuple(title for _, title in self._open)

    def enter(self, level: int, title: str, text: str | None = None) -> Block:
        """The block of a heading, which closes all headings of its level and deeper.

        `title` is the plain title for the path, `text` what stands in the document (default: the title).
        """
        title = " ".join(title.split())
        while self._open and self._open[-1][0] >= level:
            self._open.pop()
        if title:
            self._open.append((level, title))
        return Block(title if text is None else text, headings=self.titles, metadata={"kind": HEADING})
