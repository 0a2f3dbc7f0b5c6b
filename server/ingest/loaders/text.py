"""Plain text and source code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.base import Loader, finish
from server.ingest.loaders.encoding import decode

_PROSE = ".txt .text .log"
_SOURCE = ".py .js .ts .java .go .rs .c .cpp .h .sh .sql .yaml .yml .toml .ini .cfg"
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


class TextLoader(Loader):
    """Paragraphs (stretches between blank lines) become blocks; indentation stays."""

    name = "text"
    extensions = frozenset(f"{_PROSE} {_SOURCE}".split())

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        return finish(paragraphs(decode(data)), self.name)


def paragraphs(text: str) -> Iterator[Block]:
    """One block for each stretch of `text` between blank lines, without trailing white space."""
    for paragraph in _BLANK_LINES.split(text):
        if stripped := paragraph.strip("\n").rstrip():
            yield Block(stripped)
