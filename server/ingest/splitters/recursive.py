"""The default splitter, for Chinese and English: cuts at the strongest boundary that fits."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from server.domain import Chunk
from server.ingest.splitters import boundaries
from server.ingest.splitters.base import Section, Splitter, chunk_of


class RecursiveTextSplitter(Splitter):
    """Chunks of at most `chunk_size` that overlap by at most `chunk_overlap`.

    Chunks are slices of the canonical text without white space at their ends; with overlap 0 they hold
    everything but white space. Blocks share a chunk only within one page and one heading; a `whole` block
    is cut only when it does not fit, and then between its lines. The overlap begins at a sentence or a
    word where it can, and never inside a whole block.
    """

    @override
    def cut(self, section: Section) -> Iterator[Chunk]:
        start = done = 0
        while (start := _skip_space(section.text, start)) < len(section.text):
            cut = self._end(section, start, max(start, done))
            yield chunk_of(section, start, cut)
            done = _skip_space(section.text, cut)
            start = self._next_start(section, start, cut, done)

    def _end(self, section: Section, start: int, done: int) -> int:
        """Where the chunk that begins at `start` ends; everything up to `done` is in earlier chunks."""
        text = section.text
        high = self._ruler.reach(text, start, self._size)
        if _skip_space(text, high) >= len(text):
            return len(text)
        begin, end, whole = _block_span(section, high)
        if done < end <= high:
            return end
        if whole and done < begin and self._fits(text, begin, end):
            # The block that would be cut begins the next chunk instead.
            return begin
        row = self._row_end(text, done, high, end) if whole else None
        return self._inside(text, done, high) if row is None else row

    def _fits(self, text: str, start: int, end: int) -> bool:
        return self._ruler.reach(text, start, self._size) >= end

    def _row_end(self, text: str, done: int, high: int, end: int) -> int | None:
        """The end of the last row in (done, high], unless the chunk stays short of it for a row that is too long."""
        row = boundaries.last_line(text, done, high)
        if row is None or row - done > (high - done) // 2:
            return row
        after = text.find("\n", row, end)
        return row if self._fits(text, row, end if after < 0 else after) else None

    def _inside(self, text: str, done: int, high: int) -> int:
        """The best cut in (done, high] of running text; a late cut of any kind is better than an early one."""
        middle = done + (high - done) // 2
        for find, low, end in (
            (boundaries.last_cut, middle, high),
            (boundaries.last_cut, done, middle),
            (boundaries.last_word, middle, high),
        ):
            cut = find(text, low, end)
            if cut is not None:
                return cut
        return boundaries.last_character(text, done, high)

    def _next_start(self, section: Section, start: int, cut: int, done: int) -> int:
        text = section.text
        if done >= len(text) or _block_span(section, cut - 1)[2]:
            return done
        low = max(self._ruler.back(text, cut, self._overlap), start + 1)
        if low >= cut:
            return done
        _, end, whole = _block_span(section, low)
        start = boundaries.first_start(text, max(low, end) if whole else low, cut)
        # At least one character has to be new behind the overlap and the white space that follows the cut.
        return start if self._ruler.reach(text, start, self._size) > done else done


def _block_span(section: Section, offset: int) -> tuple[int, int, bool]:
    """Start and end of the block at `offset`, or before it, and whether it is a whole one."""
    index = section.block_at(offset)
    block, begin = section.blocks[index], section.starts[index]
    return begin, begin + len(block.text), block.whole


def _skip_space(text: str, offset: int) -> int:
    while offset < len(text) and text[offset].isspace():
        offset += 1
    return offset
