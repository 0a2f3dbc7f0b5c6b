"""Splitters by the names that settings and clients use."""

from __future__ import annotations

from collections.abc import Callable

from server.errors import ConfigurationError
from server.ingest.splitters.base import Splitter
from server.ingest.splitters.recursive import RecursiveTextSplitter

DEFAULT_SPLITTER = "ChineseRecursiveTextSplitter"

# The Markdown loader knows the headings already, so the other names of the contract need no code of their own.
_SPLITTERS: dict[str, Callable[[int, int], Splitter]] = {
    DEFAULT_SPLITTER: RecursiveTextSplitter,
    "RecursiveCharacterTextSplitter": RecursiveTextSplitter,
    "MarkdownHeaderTextSplitter": RecursiveTextSplitter,
    "ChineseTextSplitter": RecursiveTextSplitter,
}

SPLITTERS: tuple[str, ...] = tuple(_SPLITTERS)
"""The names that `splitter()` knows."""


def splitter(name: str = DEFAULT_SPLITTER, chunk_size: int = 250, chunk_overlap: int = 50) -> Splitter:
    """The splitter of that name; sizes are characters.

    Raises ConfigurationError for an unknown name and InvalidRequest for sizes that make no sense.
    """
    make = _SPLITTERS.get(name)
    if make is None:
        known = ", ".join(SPLITTERS)
        raise ConfigurationError(f"未知的分词器 {name} / unknown text splitter {name}, known: {known}")
    return make(chunk_size, chunk_overlap)
