"""Word documents (docx): paragraphs and tables in the order of the body."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import Any
from zipfile import BadZipFile

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.archive import open_archive
from server.ingest.loaders.base import Loader, damaged, finish
from server.ingest.loaders.docx_xml import (
    W,
    heading_level,
    heading_levels,
    margins,
    notes,
    paragraph_text,
    story,
    table_rows,
    text_boxes,
)
from server.ingest.loaders.encoding import clean
from server.ingest.loaders.headings import HeadingPath
from server.ingest.loaders.rows import table_blocks

# What python-docx, zipfile and lxml (whose syntax error is Python's) raise on broken files.
_BROKEN = (
    KeyError, ValueError, AttributeError, TypeError, IndexError, SyntaxError, OSError, EOFError,
    NotImplementedError, RuntimeError, BadZipFile, zlib.error,
)  # fmt: skip

_OTHER_KINDS = (
    "application/vnd.ms-word.document.macroEnabled.main+xml",
    "application/vnd.ms-word.template.macroEnabledTemplate.main+xml",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.template.main+xml",
)


class DocxLoader(Loader):
    """Paragraphs under their headings, tables as Markdown rows, then notes, headers and footers once."""

    name = "docx"
    extensions = frozenset({".docx", ".docm", ".dotx", ".dotm"})
    binary = True

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        from docx.opc.exceptions import OpcError

        if not data:
            raise damaged("文件为空（0 字节）", "the file is empty (0 bytes)")
        open_archive(data).close()
        try:
            blocks = list(_blocks(data))
        except (*_BROKEN, OpcError) as error:
            reason = f"broken, or no Word document ({type(error).__name__})"
            raise damaged("文件损坏，或不是 Word 文档", reason) from error
        return finish(blocks, self.name)


def _open(data: bytes) -> Any:
    """The document; those with macros and templates are the same content under other names."""
    from docx.opc.part import PartFactory
    from docx.package import Package
    from docx.parts.document import DocumentPart

    for kind in _OTHER_KINDS:
        PartFactory.part_type_for[kind] = DocumentPart
    part = Package.open(io.BytesIO(data)).main_document_part
    if not isinstance(part, DocumentPart):
        raise ValueError(part.content_type)
    return part.document


def _blocks(data: bytes) -> Iterator[Block]:
    document = _open(data)
    levels = heading_levels(document)
    path = HeadingPath()
    for element in story(document.element.body):
        if element.tag == f"{W}tbl":
            yield from table_blocks([[clean(cell) for cell in row] for row in table_rows(element)], path.titles)
        else:
            yield from _paragraph(element, levels, path)
    for text in notes(document):
        yield Block(clean(text), metadata={"kind": "note"})
    for text in margins(document):
        yield Block(clean(text), metadata={"kind": "margin"})


def _paragraph(element: Any, levels: dict[str, int], path: HeadingPath) -> Iterator[Block]:
    text = clean(paragraph_text(element)).strip()
    level = heading_level(element, levels)
    if text and level is not None:
        yield path.enter(level, text)
    elif text:
        yield Block(text, headings=path.titles)
    for box in text_boxes(element):
        yield Block(clean(box), headings=path.titles)
