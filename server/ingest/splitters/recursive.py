"""The default splitter, for Chinese and English: cuts at the strongest boundary that fits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from server.domain import Block, Chunk, LoadedDocument
from server.ingest.splitters import boundaries
from server.ingest.splitters.base import block_starts, canonical_text, check_sizes

_HEADING = "heading"


@dataclass(frozen=True, slots=True)
class _Section:
    """Neighbouring blocks that may share a chunk: same page, same headings."""

    start: int
    end: int
    blocks: list[Block]
    starts: list[int]


class RecursiveTextSplitter:
    """Chunks of at most `chunk_size` characters that overlap by at most `chunk_overlap`.

    Chunks are slices of the canonical text without white space at their ends; with overlap 0 they hold
    everything but white space. Blocks share a chunk only within one page and one heading; a `whole` block
    is cut only when it does not fit, and then between its lines. The overlap begins at a sentence or a
    word where it can, and never inside a whole block. Raises InvalidRequest for sizes that make no sense.
    """

    def __init__(self, chunk_size: int = 250, chunk_overlap: int = 50) -> None:
        check_sizes(chunk_size, chunk_overlap)
        self._size = chunk_size
        self._overlap = chunk_overlap

    def split(self, document: LoadedDocument) -> list[Chunk]:
        """The chunks of a document in reading order."""
        text = canonical_text(document)
        return [chunk for section in _sections(document.blocks) for chunk in self._cut(text, section)]

    def _cut(self, text: str, section: _Section) -> Iterator[Chunk]:
        start = done = section.start
        while (start := _skip_space(text, start, section.end)) < section.end:
            cut = self._end(text, section, start, max(start, done))
            yield _chunk(text, start, cut, section)
            done = _skip_space(text, cut, section.end)
            start = self._next_start(text, section, start, cut, done)

    def _end(self, text: str, section: _Section, start: int, done: int) -> int:
        """Where the chunk that begins at `start` ends; everything up to `done` is in earlier chunks."""
        high = start + self._size
        if _skip_space(text, high, section.end) >= section.end:
            return section.end
        begin, end, whole = _block_span(section, high)
        if done < end <= high:
            return end
        if whole and done < begin and end - begin <= self._size:
            # The block that would be cut begins the next chunk instead.
            return begin
        row = self._row_end(text, done, high, end) if whole else None
        return self._inside(text, done, high) if row is None else row

    def _row_end(self, text: str, done: int, high: int, end: int) -> int | None:
        """The end of the last row in (done, high], unless the chunk stays short of it for a row that is too long."""
        row = boundaries.last_line(text, done, high)
        if row is None or row - done > self._size // 2:
            return row
        after = text.find("\n", row, end)
        return row if (end if after < 0 else after) - row <= self._size else None

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

    def _next_start(self, text: str, section: _Section, start: int, cut: int, done: int) -> int:
        # At least one character has to be new behind the overlap and the white space that follows the cut.
        low = max(cut - self._overlap, done - self._size + 1, start + 1)
        if low >= cut or done >= section.end:
            return done
        _, end, whole = _block_span(section, low)
        if _block_span(section, cut - 1)[2]:
            return done
        return boundaries.first_start(text, max(low, end) if whole else low, cut)


def _sections(blocks: tuple[Block, ...]) -> Iterator[_Section]:
    starts = block_starts(blocks)
    first = 0
    for index in range(1, len(blocks) + 1):
        if index < len(blocks) and _belong_together(blocks[index - 1], blocks[index]):
            continue
        end = starts[index - 1] + len(blocks[index - 1].text)
        yield _Section(starts[first], end, list(blocks[first:index]), starts[first:index])
        first = index


def _belong_together(before: Block, block: Block) -> bool:
    if before.page != block.page:
        return False
    if before.headings == block.headings:
        return True
    # A title without a text of its own goes with the first section below it.
    below = block.headings[: len(before.headings)] == before.headings
    return below and before.metadata.get("kind") == _HEADING


def _block_at(section: _Section, offset: int) -> int:
    return max(0, bisect_right(section.starts, offset) - 1)


def _block_span(section: _Section, offset: int) -> tuple[int, int, bool]:
    """Start and end of the block at `offset`, or before it, and whether it is a whole one."""
    index = _block_at(section, offset)
    block, begin = section.blocks[index], section.starts[index]
    return begin, begin + len(block.text), block.whole


def _skip_space(text: str, offset: int, end: int) -> int:
    while offset < end and text[offset].isspace():
        offset += 1
    return offset


def _chunk(text: str, start: int, end: int, section: _Section) -> Chunk:
    while text[end - 1].isspace():
        end -= 1
    first = section.blocks[_block_at(section, start)]
    inside = section.blocks[_block_at(section, start) : _block_at(section, end - 1) + 1]
    place = next((block for block in inside if block.metadata.get("kind") != _HEADING), first)
    return Chunk(text[start:end], start, end, first.page, place.headings, dict(place.metadata))
