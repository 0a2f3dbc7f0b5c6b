"""E-books (epub): the chapters in the order of the book's spine."""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.errors import LoadError
from server.ingest.loaders.archive import open_archive, read_member
from server.ingest.loaders.base import Loader, damaged, finish
from server.ingest.loaders.html import decode_html, html_blocks
from server.ingest.loaders.xml import parse_xml

_OPF = "{http://www.idpf.org/2007/opf}"
_CONTAINER = "META-INF/container.xml"
_PAGES = frozenset({"application/xhtml+xml", "text/html", "application/x-dtbook+xml"})


class EpubLoader(Loader):
    """`page` is the number of the chapter's file in the spine; a chapter that cannot be read is a warning."""

    name = "epub"
    extensions = frozenset({".epub"})
    binary = True

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        with open_archive(data) as archive:
            if "META-INF/encryption.xml" in archive.namelist() and "META-INF/rights.xml" in archive.namelist():
                raise damaged("电子书有 DRM 保护，无法读取", "the book is protected by DRM")
            warnings: list[str] = []
            return finish(list(_blocks(archive, warnings)), self.name, warnings)


def _blocks(archive: zipfile.ZipFile, warnings: list[str]) -> Iterator[Block]:
    package_name = _package_name(archive)
    package = parse_xml(read_member(archive, package_name))
    folder = posixpath.dirname(package_name)
    for number, href in enumerate(_spine(package), start=1):
        name = posixpath.normpath(posixpath.join(folder, unquote(href)))
        try:
            blocks = list(html_blocks(decode_html(read_member(archive, name))))
        except LoadError as error:
            warnings.append(f"{name}: {error.message}")
            continue
        # The title in a chapter's head is a label for programs; the chapter has its own heading.
        shown = blocks[1:] if len(blocks) > 1 and blocks[0].metadata.get("kind") == "title" else blocks
        yield from (replace(block, page=number) for block in shown)


def _package_name(archive: zipfile.ZipFile) -> str:
    container = parse_xml(read_member(archive, _CONTAINER))
    for element in container.iter():
        if isinstance(element.tag, str) and element.tag.endswith("}rootfile") and element.get("full-path"):
            return str(element.get("full-path"))
    raise damaged("电子书缺少目录文件", "the book has no package document")


def _spine(package: Any) -> Iterator[str]:
    items = {item.get("id"): item for item in package.iter(f"{_OPF}item")}
    for reference in package.iter(f"{_OPF}itemref"):
        item = items.get(reference.get("idref"))
        if item is not None and item.get("media-type") in _PAGES and "nav" not in item.get("properties", "").split():
            yield item.get("href", "")
