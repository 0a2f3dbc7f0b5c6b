"""The nouns of the service: frozen values that every part takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Metadata = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Block:
    """One stretch of a loaded document that belongs together: a paragraph, a table, a code fence, a row.

    `page` counts from 1 (page, slide or sheet). `headings` is the path of titles above the block,
    outermost first. A `whole` block (a table row group, a code fence) should not be cut while it
    fits into one chunk.
    """

    text: str
    page: int | None = None
    headings: tuple[str, ...] = ()
    whole: bool = False
    metadata: Metadata = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadedDocument:
    """What a loader made of a file: its blocks in reading order, and what it could not read.

    `warnings` are for people ("pages 3-7 have no text layer; OCR is not installed").
    """

    blocks: tuple[Block, ...]
    loader: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage that is indexed and cited.

    `start` and `end` are character offsets into the canonical text of the file version, which is the
    texts of its blocks joined by two newlines; they are None for chunks that a client supplied.
    """

    text: str
    start: int | None = None
    end: int | None = None
    page: int | None = None
    headings: tuple[str, ...] = ()
    metadata: Metadata = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result.

    `score` is the squared L2 distance of unit vectors (0 = same, lower is better, at most 4), scaled as
    the embedding model's transform says; `similarity` is the same on a scale from 0 to 1, higher is
    better. A hit has no score while its vector is not in yet. `ranks` tells the place in each ranking
    that found it, counted from 1 (`dense`, `keyword`, `fused`).
    """

    id: str
    text: str
    file_name: str
    score: float | None
    similarity: float | None
    page: int | None = None
    headings: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None
    metadata: Metadata = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
