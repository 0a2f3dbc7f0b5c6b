"""One section under a heading a chunk."""

from __future__ import annotations

from server.ingest.splitters.recursive import RecursiveTextSplitter
from server.models.rulers import Ruler

_SECTION = 480
"""Tokens that a section may have before it is cut; models of 512 see all of it."""


class MarkdownHeaderTextSplitter(RecursiveTextSplitter):
    """What stands under one heading is one chunk, unless it is longer than a model reads at once.

    `chunk_size` counts where it is larger than that.
    """

    def __init__(self, chunk_size: int = 250, chunk_overlap: int = 50, ruler: Ruler | None = None) -> None:
        super().__init__(chunk_size, chunk_overlap, ruler)
        self._size = max(self._size, min(_SECTION, self._ruler.limit or _SECTION))
