"""What a splitter promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from server.domain import Block, Chunk, LoadedDocument, Reached
from server.errors import InvalidRequest
from server.models.rulers import Characters, Ruler

BLOCK_SEPARATOR = "\n\n"
"""What stands between two blocks in the canonical text."""
_LONGEST_SECTION = 500_000
"""Characters after which a section ends with its block: a file of any length is split a section at a time."""
_HEADING = "heading"


@dataclass(frozen=True, slots=True)
class Section:
    """Neighbouring blocks that may share a chunk: same page, same headings.

    `text` is that of its blocks in the canonical text, where it begins at `offset`; `starts` are the offsets of the
    blocks in `text`.
    """

    offset: int
    text: str
    blocks: list[Block]
    starts: list[int]

    def block_at(self, offset: int) -> int:
        """The number of the block at an offset of `text`, or before it."""
        return max(0, bisect_right(self.starts, offset) - 1)


class Splitter(ABC):
    """Cuts sections into passages of a size that can be embedded and cited.

    `chunk_size` is the most that a chunk may measure with the ruler, and never more than its model reads at once;
    `chunk_overlap` is what neighbours may share.
    Raises InvalidRequest for sizes that make no sense.
    """

    def __init__(self, chunk_size: int = 250, chunk_overlap: int = 50, ruler: Ruler | None = None) -> None:
        check_sizes(chunk_size, chunk_overlap)
        self._ruler = ruler or Characters()
        self._size = min(chunk_size, self._ruler.limit or chunk_size)
        self._overlap = min(chunk_overlap, self._size - 1)

    @abstractmethod
    def cut(self, section: Section) -> Iterator[Chunk]:
        """The chunks of a section in reading order; `start` and `end` are offsets into its text."""

    def split_section(self, section: Section) -> list[Chunk]:
        """The chunks of a section; `start` and `end` are offsets into the document's canonical text."""
        at = section.offset
        return [replace(chunk, start=at + (chunk.start or 0), end=at + (chunk.end or 0)) for chunk in self.cut(section)]

    def split(self, document: LoadedDocument) -> list[Chunk]:
        """The chunks of a whole document."""
        whole = (section for section in sections(document.blocks) if isinstance(section, Section))
        return [chunk for section in whole for chunk in self.split_section(section)]


def sections(blocks: Iterable[Block | Reached]) -> Iterator[Section | Reached]:
    """The sections of a document as its blocks come in; what tells how far reading is goes through."""
    offset, size = 0, 0
    gathered: list[Block] = []
    for block in blocks:
        if isinstance(block, Reached):
            yield block
            continue
        if gathered and (size > _LONGEST_SECTION or not _belong_together(gathered[-1], block)):
            section = _section(offset, gathered)
            yield section
            offset += len(section.text) + len(BLOCK_SEPARATOR)
            gathered, size = [], 0
        gathered.append(block)
        size += len(block.text)
    if gathered:
        yield _section(offset, gathered)


def _section(offset: int, blocks: list[Block]) -> Section:
    starts, at = [], 0
    for block in blocks:
        starts.append(at)
        at += len(block.text) + len(BLOCK_SEPARATOR)
    return Section(offset, BLOCK_SEPARATOR.join(block.text for block in blocks), blocks, starts)


def _belong_together(before: Block, block: Block) -> bool:
    if before.page != block.page:
        return False
    if before.headings == block.headings:
        return True
    # A title without a text of its own goes with the first section below it.
    below = block.headings[: len(before.headings)] == before.headings
    return below and before.metadata.get("kind") == _HEADING


def chunk_of(section: Section, start: int, end: int) -> Chunk:
    """The chunk of a stretch of a section, without white space at its end."""
    while section.text[end - 1].isspace():
        end -= 1
    first = section.blocks[section.block_at(start)]
    inside = section.blocks[section.block_at(start) : section.block_at(end - 1) + 1]
    place = next((block for block in inside if block.metadata.get("kind") != _HEADING), first)
    return Chunk(section.text[start:end], start, end, first.page, place.headings, dict(place.metadata))


def canonical_text(document: LoadedDocument) -> str:
    """The text of a document that all offsets refer to."""
    return BLOCK_SEPARATOR.join(block.text for block in document.blocks)


def check_sizes(chunk_size: int, chunk_overlap: int) -> None:
    """Raises InvalidRequest, naming the field, when no text could be split with these sizes."""
    if chunk_size < 1:
        raise InvalidRequest(
            f"chunk_size 必须大于 0 / chunk_size must be positive, not {chunk_size} (chunk_overlap {chunk_overlap})"
        )
    if chunk_overlap < 0:
        raise InvalidRequest(f"chunk_overlap 不能为负数 / chunk_overlap must not be negative, got {chunk_overlap}")
    if chunk_overlap >= chunk_size:
        raise InvalidRequest(
            f"chunk_overlap 必须小于 chunk_size / chunk_overlap ({chunk_overlap}) must be smaller "
            f"than chunk_size ({chunk_size})"
        )
