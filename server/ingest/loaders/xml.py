"""XML: paragraphs of documents, records of data, under the titles that sections have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape, unescape
from itertools import groupby
from typing import Any

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.errors import DamagedFile
from server.ingest.loaders.base import Loader, damaged, finish
from server.ingest.loaders.encoding import clean, decode
from server.ingest.loaders.headings import HeadingPath

# Elements are lxml's, which has no types.
Element = Any

_TITLES = frozenset({"title", "head", "heading"})
_DEEPEST_HEADING = 6
_RECORD = 2000
_PROSE = frozenset({"p", "para", "li", "td", "th", "entry", "caption", "abstract", "note", "text", *_TITLES})
# A charset that is declared wrongly or not at all; entities of HTML, and such as lie outside the file.
_MENDABLE = re.compile(r"encod|entity.*not defined", re.IGNORECASE)
_ENTITY = re.compile(r"&(?!(?:amp|lt|gt|quot|apos);)([A-Za-z][\w.-]*);")
_MARKUP = re.compile(r"<[a-zA-Z/!][^>]*>")


def parse_xml(data: bytes) -> Element:
    """The root element; raises DamagedFile for what is no XML.

    Nothing outside the file is read, and entities that multiply are refused.
    """
    from lxml import etree

    def parser(encoding: str | None = None) -> etree.XMLParser:
        return etree.XMLParser(
            resolve_entities="internal",
            load_dtd=False,
            no_network=True,
            huge_tree=False,
            remove_comments=True,
            remove_pis=True,
            encoding=encoding,
        )

    try:
        try:
            return etree.fromstring(data, parser())
        except etree.XMLSyntaxError as error:
            if not _MENDABLE.search(str(error)):
                raise
            return etree.fromstring(_without_unknown_entities(decode(data)).encode(), parser("utf-8"))
    except etree.XMLSyntaxError as error:
        raise _refusal(str(error)) from error
    except ValueError as error:
        raise damaged("XML 无法解析", f"malformed XML ({error})") from error


def _without_unknown_entities(text: str) -> str:
    """`text` with the characters that HTML names stand for; names that mean something outside the file go."""
    return _ENTITY.sub(lambda match: escape(_known(match[1])), text)


def _known(name: str) -> str:
    shown = unescape(f"&{name};")
    return "" if shown == f"&{name};" else shown


def _refusal(reason: str) -> DamagedFile:
    if "entity" in reason.lower():
        return damaged(f"XML 含有不允许的实体（{reason}）", f"XML with entities that are not allowed ({reason})")
    return damaged(f"XML 格式错误（{reason}）", f"malformed XML ({reason})")


class XmlLoader(Loader):
    """An element with text of its own is a paragraph, one of simple fields a record of `field: value` lines.

    Titles of sections become the path of what follows in the section. Text that is HTML loses its tags.
    """

    name = "xml"
    extensions = frozenset({".xml", ".rss", ".atom", ".xsd", ".opml", ".dbk"})

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        return finish(_blocks(parse_xml(data)), self.name)


def _blocks(root: Element) -> Iterator[Block]:
    """Goes through the tree without recursion: an element is a block, or its children are looked at."""
    path = HeadingPath()
    stack: list[tuple[Element, int]] = [(root, 1)]
    while stack:
        element, depth = stack.pop()
        if isinstance(element, list):
            record = "\n".join(f"{_name(field)}: {text}" for field in element if (text := _text(field)))
            yield Block(record, headings=path.titles, whole=len(record) < _RECORD)
        elif _name(element) in _TITLES and (title := _text(element)):
            yield path.enter(min(depth, _DEEPEST_HEADING), title)
        elif _is_paragraph(element):
            yield Block(_text(element), headings=path.titles)
        else:
            stack.extend((child, depth + 1) for child in reversed(_fields_together(element)))


def _is_paragraph(element: Element) -> bool:
    """Whether an element has text beside its children, or has none."""
    pieces = [element.text, *(child.tail for child in element)]
    return len(element) == 0 or any(piece and piece.strip() for piece in pieces)


def _fields_together(element: Element) -> list[Element]:
    """The children; simple fields that follow each other are one list."""
    feed = _name(element) in ("item", "entry")
    children = [child for child in element if isinstance(child.tag, str)]
    groups = groupby(children, lambda child: len(child) == 0 and (feed or _name(child) not in _PROSE))
    return [part for simple, group in groups for part in ([list(group)] if simple else list(group))]


def _name(element: Element) -> str:
    return str(element.tag).rpartition("}")[2].lower()


def _text(element: Element) -> str:
    raw = "".join(element.itertext())
    if _MARKUP.search(raw):
        raw = _without_tags(raw)
    return clean(" ".join(raw.split()))


def _without_tags(markup: str) -> str:
    from server.ingest.loaders.html import html_blocks

    return "\n".join(block.text for block in html_blocks(markup)) or markup
