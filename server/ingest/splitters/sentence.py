"""One sentence a chunk."""

from __future__ import annotations

from typing_extensions import override

from server.ingest.splitters import boundaries
from server.ingest.splitters.base import Section
from server.ingest.splitters.recursive import RecursiveTextSplitter
from server.models.rulers import Ruler


class SentenceTextSplitter(RecursiveTextSplitter):
    """A chunk ends with the first sentence, line or block that ends in it; a longer one is cut at its best places.

    Sentences do not overlap, whatever `chunk_overlap` is.
    """

    def __init__(self, chunk_size: int = 250, chunk_overlap: int = 50, ruler: Ruler | None = None) -> None:
        super().__init__(chunk_size, chunk_overlap, ruler)
        self._overlap = 0

    @override
    def _end(self, section: Section, start: int, done: int) -> int:
        end = super()._end(section, start, done)
        if section.blocks[section.block_at(done)].whole:
            return end
        return boundaries.first_sentence(section.text, done, end) or end
