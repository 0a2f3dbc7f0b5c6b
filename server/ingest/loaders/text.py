"""Plain text and source code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from mmap import mmap

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.base import Loader, finish
from server.ingest.loaders.large import decode_parts

_PROSE = ".txt .text .log .tex"
_SOURCE = """
.py .pyi .js .jsx .mjs .ts .tsx .vue .java .kt .scala .groovy .go .rs .c .h .cc .cpp .hpp .cs .swift .m .rb .php
.pl .lua .r .jl .sh .bash .bat .ps1 .sql .yaml .yml .toml .ini .cfg .conf .properties .proto .graphql .css .scss
"""
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


class TextLoader(Loader):
    """Paragraphs (stretches between blank lines) become blocks; indentation stays."""

    name = "text"
    extensions = frozenset(f"{_PROSE} {_SOURCE}".split())

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        return finish(self.blocks(data), self.name)

    def blocks(self, data: bytes | mmap) -> Iterator[Block]:
        """The paragraphs, one after another; a file that is mapped into memory is never there as a whole."""
        return (block for part in decode_parts(data) for block in paragraphs(part))


def paragraphs(text: str) -> Iterator[Block]:
    """One block for each stretch of `text` between blank lines, without trailing white space."""
    for paragraph in _BLANK_LINES.split(text):
        if stripped := paragraph.strip("\n").rstrip():
            yield Block(stripped)
