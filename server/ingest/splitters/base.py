"""What a splitter promises."""

from __future__ import annotations

from typing import Protocol

from server.domain import Block, Chunk, LoadedDocument
from server.errors import InvalidRequest

BLOCK_SEPARATOR = "\n\n"
"""What stands between two blocks in the canonical text."""


class Splitter(Protocol):
    """Cuts a document into passages of a size that can be embedded and cited."""

    def split(self, document: LoadedDocument) -> list[Chunk]:
        """The chunks in reading order; `start` and `end` are offsets into the document's canonical text."""


def canonical_text(document: LoadedDocument) -> str:
    """The text of a document that all offsets refer to."""
    return BLOCK_SEPARATOR.join(block.text for block in document.blocks)


def block_starts(blocks: tuple[Block, ...]) -> list[int]:
    """The offset of each block in the canonical text."""
    starts, offset = [], 0
    for block in blocks:
        starts.append(offset)
        offset += len(block.text) + len(BLOCK_SEPARATOR)
    return starts


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
