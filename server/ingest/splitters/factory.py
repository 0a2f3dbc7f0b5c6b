"""Splitters by the names that settings and clients use."""

from __future__ import annotations

from server.errors import InvalidRequest
from server.ingest.splitters.base import Splitter
from server.ingest.splitters.markdown import MarkdownHeaderTextSplitter
from server.ingest.splitters.recursive import RecursiveTextSplitter
from server.ingest.splitters.sentence import SentenceTextSplitter
from server.models.rulers import Ruler

DEFAULT_SPLITTER = "ChineseRecursiveTextSplitter"

_SPLITTERS: dict[str, type[Splitter]] = {
    DEFAULT_SPLITTER: RecursiveTextSplitter,
    "RecursiveCharacterTextSplitter": RecursiveTextSplitter,
    "MarkdownHeaderTextSplitter": MarkdownHeaderTextSplitter,
    "SentenceTextSplitter": SentenceTextSplitter,
    "ChineseTextSplitter": SentenceTextSplitter,
}

SPLITTERS: tuple[str, ...] = tuple(_SPLITTERS)
"""The names that `splitter()` knows."""


def splitter(
    name: str = DEFAULT_SPLITTER, chunk_size: int = 250, chunk_overlap: int = 50, ruler: Ruler | None = None
) -> Splitter:
    """The splitter of that name; sizes are in the ruler's unit, characters by default.

    Raises InvalidRequest for an unknown name and for sizes that make no sense.
    """
    make = _SPLITTERS.get(name)
    if make is None:
        known = ", ".join(SPLITTERS)
        raise InvalidRequest(f"未知的分词器 {name} / unknown text splitter {name}, known: {known}")
    return make(chunk_size, chunk_overlap, ruler)
