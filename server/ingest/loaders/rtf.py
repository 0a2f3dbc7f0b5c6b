"""Rich Text Format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.base import Loader, damaged, finish
from server.ingest.loaders.encoding import clean
from server.ingest.loaders.rows import table_blocks
from server.ingest.loaders.text import paragraphs

# Pictures and other binary parts are hexadecimal digits by the megabyte, and no text.
_PICTURE = re.compile(rb"(?:[0-9a-fA-F]{64,}[\r\n]*){2,}")
# Characters of symbol fonts; where they stand at all, they are bullets.
_SYMBOL = re.compile("[\uf020-\uf0ff]")


class RtfLoader(Loader):
    """Paragraphs; the cells of a table row stand between bars."""

    name = "rtf"
    extensions = frozenset({".rtf"})
    binary = True

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        if not data.lstrip().startswith(b"{\\rtf"):
            raise damaged("不是 RTF 文件", "no RTF file")
        return finish(_blocks(rtf_text(data)), self.name)


def _blocks(text: str) -> Iterator[Block]:
    for is_row, group in groupby(paragraphs(text), lambda block: block.text.endswith("|")):
        if is_row:
            yield from table_blocks([block.text[:-1].split("|") for block in group])
        else:
            yield from group


def rtf_text(data: bytes) -> str:
    """The text of an RTF file; raises DamagedFile."""
    from striprtf.striprtf import rtf_to_text

    source = _PICTURE.sub(b"", data).decode("latin-1")
    try:
        text: str = rtf_to_text(source, encoding=_code_page(source), errors="replace")  # type: ignore[no-untyped-call]
    except (ValueError, LookupError, IndexError, TypeError, AttributeError) as error:
        raise damaged("RTF 文件损坏", f"broken RTF ({type(error).__name__})") from error
    # A paragraph ends with one line break; blank lines between them make blocks of them.
    return re.sub(r"\n+", "\n\n", _SYMBOL.sub("•", clean(text)))


def _code_page(source: str) -> str:
    found = re.search(r"\\ansicpg(\d+)", source[:2000])
    name = f"cp{found[1]}" if found else "cp1252"
    try:
        "".encode(name)
    except LookupError:
        return "cp1252"
    return name
