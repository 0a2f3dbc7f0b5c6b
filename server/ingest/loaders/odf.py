"""OpenDocument: texts (odt), sheets (ods) and slides (odp)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.archive import open_archive, read_member
from server.ingest.loaders.base import Loader, damaged, finish
from server.ingest.loaders.encoding import clean
from server.ingest.loaders.headings import HeadingPath
from server.ingest.loaders.rows import table_blocks
from server.ingest.loaders.sheet import sheet_blocks
from server.ingest.loaders.xml import parse_xml

Element = Any

_NS = "{urn:oasis:names:tc:opendocument:xmlns:%s:1.0}"
TEXT, TABLE, OFFICE, DRAW = (_NS % name for name in ("text", "table", "office", "drawing"))
_PRESENTATION = _NS % "presentation"
_PARAGRAPHS = (f"{TEXT}p", f"{TEXT}h")
_NOT_SHOWN = frozenset({f"{TEXT}tracked-changes", f"{OFFICE}annotation", f"{TEXT}note", f"{TEXT}sequence-decls"})
_SPACES = {f"{TEXT}tab": "\t", f"{TEXT}line-break": "\n"}
_REPEATED = 1000
"""Repeated cells and rows are written once with a number; those that fill a sheet to its end are empty."""


class OdfLoader(Loader):
    """Paragraphs and tables under their headings; a sheet or slide is a `page`. Notes follow the text."""

    name = "odf"
    extensions = frozenset({".odt", ".ods", ".odp", ".ott", ".ots", ".otp"})
    binary = True

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        with open_archive(data) as archive:
            if b"encryption-data" in read_member(archive, "META-INF/manifest.xml"):
                raise damaged("文档已加密，请去除密码后再上传", "encrypted document, remove its password first")
            root = parse_xml(read_member(archive, "content.xml"))
        body = root.find(f"{OFFICE}body")
        if body is None or len(body) == 0:
            raise damaged("不是 OpenDocument 文档", "no OpenDocument file")
        return finish(_blocks(body[0]), self.name)


def _blocks(body: Element) -> Iterator[Block]:
    kind = body.tag.rpartition("}")[2]
    if kind == "spreadsheet":
        for number, sheet in enumerate(body.findall(f"{TABLE}table"), start=1):
            yield from sheet_blocks(_rows(sheet), number, sheet.get(f"{TABLE}name", str(number)))
    elif kind == "presentation":
        for number, slide in enumerate(body.findall(f"{DRAW}page"), start=1):
            yield from _story(slide, number)
    else:
        yield from _story(body)
        for note in body.iter(f"{TEXT}note-body"):
            yield Block(_cell_text(note), metadata={"kind": "note"})


def _story(element: Element, page: int | None = None) -> Iterator[Block]:
    """Paragraphs and tables in order, wherever they stand: in sections, lists, frames."""
    path = HeadingPath()
    stack = list(reversed(element))
    while stack:
        child = stack.pop()
        if child.tag in _PARAGRAPHS:
            yield from _paragraph(child, page, path)
            stack.extend(reversed([box for box in child.iter(f"{DRAW}text-box") if _outermost(box, child)]))
        elif child.tag == f"{TABLE}table":
            yield from table_blocks(list(_rows(child)), path.titles, page)
        elif child.tag == f"{_PRESENTATION}notes":
            yield from _notes(child, page, path)
        elif child.tag not in _NOT_SHOWN:
            stack.extend(reversed(child))


def _outermost(box: Element, paragraph: Element) -> bool:
    """Whether the next paragraph above a text box is this one."""
    return next(box.iterancestors(*_PARAGRAPHS), None) is paragraph


def _paragraph(element: Element, page: int | None, path: HeadingPath) -> Iterator[Block]:
    text = clean(paragraph_text(element)).strip()
    if not text:
        return
    if element.tag == f"{TEXT}h" or _is_slide_title(element):
        level = element.get(f"{TEXT}outline-level", "1")
        heading = path.enter(int(level) if level.isdecimal() else 1, text)
        yield Block(heading.text, page, heading.headings, metadata=heading.metadata)
    else:
        bullet = next(element.iterancestors(f"{TEXT}list-item"), None) is not None
        yield Block(f"- {text}" if bullet else text, page, path.titles)


def _is_slide_title(element: Element) -> bool:
    frame = next(element.iterancestors(f"{DRAW}frame"), None)
    return frame is not None and frame.get(f"{_PRESENTATION}class") == "title"


def _notes(element: Element, page: int | None, path: HeadingPath) -> Iterator[Block]:
    if text := "\n".join(filter(None, (paragraph_text(p).strip() for p in element.iter(*_PARAGRAPHS)))):
        yield Block(clean(text), page, path.titles, metadata={"kind": "note"})


def paragraph_text(paragraph: Element) -> str:
    """The text of a paragraph without that of its notes, comments and text boxes."""
    parts: list[str] = [paragraph.text or ""]
    stack = [(child, False) for child in reversed(paragraph)]
    while stack:
        node, left = stack.pop()
        if left:
            parts.append(node.tail or "")
            continue
        stack.append((node, True))
        if node.tag == f"{TEXT}s":
            parts.append(" " * _number(node, f"{TEXT}c"))
        elif node.tag in _SPACES:
            parts.append(_SPACES[node.tag])
        elif node.tag not in _NOT_SHOWN and node.tag != f"{DRAW}text-box" and isinstance(node.tag, str):
            parts.append(node.text or "")
            stack.extend((child, False) for child in reversed(node))
    return "".join(parts)


def _rows(table: Element) -> Iterator[list[str]]:
    for row in table.iter(f"{TABLE}table-row"):
        if next(row.iterancestors(f"{TABLE}table"), None) is not table:
            continue
        cells: list[str] = []
        for cell in row.iterchildren(f"{TABLE}table-cell", f"{TABLE}covered-table-cell"):
            text = _cell_text(cell)
            cells.extend([text] * _number(cell, f"{TABLE}number-columns-repeated"))
        while cells and not cells[-1]:
            cells.pop()
        for _ in range(_number(row, f"{TABLE}number-rows-repeated") if cells else 1):
            yield cells


def _cell_text(cell: Element) -> str:
    texts = (paragraph_text(paragraph) for paragraph in cell.iter(*_PARAGRAPHS))
    return clean(" ".join(" ".join(text.split()) for text in texts)).strip()


def _number(element: Element, name: str) -> int:
    value = element.get(name, "1")
    return min(int(value), _REPEATED) if value.isdecimal() else 1
