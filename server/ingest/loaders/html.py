"""HTML: the text of the article in blocks, without scripts, menus and hidden parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.base import Loader, damaged, finish
from server.ingest.loaders.encoding import decode
from server.ingest.loaders.headings import HeadingPath
from server.ingest.loaders.rows import table_blocks

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, Tag

_NEVER_TEXT = frozenset(
    ("audio", "button", "canvas", "datalist", "dialog", "head", "iframe", "noscript", "object")
    + ("script", "select", "style", "svg", "template", "video")
)
_BOILERPLATE = frozenset({"nav", "footer", "aside", "menu"})
_ROLES = frozenset({"navigation", "banner", "contentinfo", "search", "complementary"})
_WHOLE_PAGE = frozenset({"[document]", "html", "body"})
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_BLOCKS = frozenset(
    ("address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "div", "dl", "dt")
    + ("fieldset", "figcaption", "figure", "footer", "form", "header", "hr", "html", "legend", "li", "main", "nav")
    + ("ol", "p", "pre", "section", "summary", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul")
    + _HEADINGS
)
_HIDDEN_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_CHARSET = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_MAIN_SHARE = 0.4
_LAYOUT_CELL = 600


class HtmlLoader(Loader):
    """Paragraphs, list items, code and tables in reading order under their headings.

    A declared charset counts only when the bytes agree with it.
    """

    name = "html"
    extensions = frozenset({".html", ".htm", ".xhtml"})

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        return finish(html_blocks(decode_html(data)), self.name)


def decode_html(data: bytes) -> str:
    """The markup in `data`; the charset that it declares counts as far as the bytes agree."""
    declared = _CHARSET.search(data[:4096])
    return decode(data, declared.group(1).decode("ascii") if declared else None)


def html_blocks(markup: str) -> Iterator[Block]:
    """The blocks of an HTML text; other formats that hold HTML (mail, e-books) use it too."""
    from bs4 import BeautifulSoup
    from bs4.exceptions import ParserRejectedMarkup

    try:
        # The parser warns of what starts like XML or has no tag; here everything is HTML on purpose.
        soup = BeautifulSoup(f"<html>{markup}", "lxml")
    except (ParserRejectedMarkup, AssertionError) as error:
        raise damaged("HTML 无法解析", f"malformed HTML ({error})") from error
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    _remove_noise(soup)
    root = _main_part(soup)
    if root.name in _WHOLE_PAGE:
        _remove_boilerplate(root)
    first = root.find(_HEADINGS)
    if title and (first is None or " ".join(first.get_text().split()) != title):
        yield Block(title, metadata={"kind": "title"})
    yield from _Walker().walk(root)


def _remove_noise(soup: BeautifulSoup) -> None:
    from bs4 import Comment

    for comment in soup.find_all(string=lambda text: isinstance(text, Comment)):
        comment.extract()
    for tag in soup.find_all(_NEVER_TEXT):
        tag.extract()
    for tag in [tag for tag in soup.find_all(True) if _is_hidden(tag)]:
        tag.extract()


def _remove_boilerplate(page: Tag) -> None:
    """Takes menus and footers off a page that does not mark its main part; inside one they belong to it."""
    shown = len(page.get_text(strip=True))
    for tag in page.find_all(_BOILERPLATE):
        # A page may be nothing but an aside; its text must not vanish with it.
        if len(tag.get_text(strip=True)) < shown / 2:
            tag.extract()


def _is_hidden(tag: Tag) -> bool:
    if tag.name in ("html", "body"):
        return False
    style, role = tag.get("style"), tag.get("role")
    return (
        tag.has_attr("hidden")
        or (isinstance(style, str) and bool(_HIDDEN_STYLE.search(style)))
        or (isinstance(role, str) and role in _ROLES)
    )


def _main_part(soup: BeautifulSoup) -> Tag:
    """The element marked as the main part if it holds a good share of the text, else everything."""
    total = len(soup.get_text(strip=True))
    for found in (soup.find_all("main"), soup.select("[role=main]"), soup.find_all("article")):
        if len(found) == 1 and len(found[0].get_text(strip=True)) > _MAIN_SHARE * total:
            return found[0]
    return soup.body or soup


class _Walker:
    """Goes through the text nodes in order and gathers those of one block element."""

    def __init__(self) -> None:
        self._path = HeadingPath()
        self._home: Tag | None = None
        self._parts: list[str] = []
        self._done: set[int] = set()

    def walk(self, root: Tag) -> Iterator[Block]:
        from bs4 import Tag
        from bs4.element import NavigableString

        for node in root.descendants:
            if isinstance(node, Tag):
                yield from self._enter(node)
            elif type(node) is NavigableString and not self._in_table(node):
                home = _block_above(node)
                if home is not self._home:
                    yield from self._flush()
                    self._home = home
                self._parts.append(str(node))
        yield from self._flush()

    def _enter(self, tag: Tag) -> Iterator[Block]:
        if tag.name == "br":
            self._parts.append("\x00")
        elif tag.name == "table" and not self._in_table(tag) and _is_data(tag):
            yield from self._flush()
            self._done.add(id(tag))
            if caption := tag.find("caption"):
                yield Block(" ".join(caption.get_text().split()), headings=self._path.titles)
            yield from table_blocks(_cells(tag), self._path.titles)
        elif tag.name == "img" and tag.get("alt") and not self._in_table(tag):
            self._parts.append(f" {tag['alt']} ")

    def _in_table(self, node: object) -> bool:
        return bool(self._done) and any(id(parent) in self._done for parent in getattr(node, "parents", ()))

    def _flush(self) -> Iterator[Block]:
        raw, self._parts = "".join(self._parts), []
        home, self._home = self._home, None
        name = home.name if home else ""
        if name == "pre":
            text = raw.replace("\x00", "\n").strip("\n").rstrip()
        else:
            text = "\n".join(" ".join(line.split()) for line in raw.split("\x00")).strip()
        if not text:
            return
        if name in _HEADINGS:
            yield self._path.enter(int(name[1]), text)
        else:
            text = f"- {text}" if name == "li" else text
            yield Block(text, headings=self._path.titles, whole=name == "pre")


def _block_above(node: object) -> Tag | None:
    return next((tag for tag in getattr(node, "parents", ()) if tag.name in _BLOCKS), None)


def _is_data(table: Tag) -> bool:
    """Whether a table holds data; one that holds tables or long texts only arranges the page."""
    rows = table.find_all("tr")
    if table.find("table") or len(rows) < 2:
        return False
    cells = table.find_all(["td", "th"])
    return bool(cells) and max(len(cell.get_text()) for cell in cells) <= _LAYOUT_CELL


def _cells(table: Tag) -> list[list[str]]:
    """The texts of the cells; a cell that spans rows has its text in each of them, in the first column it spans."""
    rows: list[list[str]] = []
    hanging: dict[int, tuple[int, str]] = {}
    for tr in table.find_all("tr"):
        row: list[str] = []
        for cell in tr.find_all(["td", "th"]):
            _skip_hanging(row, hanging)
            texts = [_inner_text(cell), *[""] * (_span(cell, "colspan") - 1)]
            hanging |= {len(row) + at: (_span(cell, "rowspan") - 1, text) for at, text in enumerate(texts)}
            row.extend(texts)
        _skip_hanging(row, hanging)
        rows.append(row)
    return rows


def _inner_text(cell: Tag) -> str:
    """The text of a cell, with a space wherever a block or a line begins."""
    from bs4 import Tag

    nodes = cell.descendants
    return "".join(str(n) if not isinstance(n, Tag) else " " * (n.name == "br" or n.name in _BLOCKS) for n in nodes)


def _skip_hanging(row: list[str], hanging: dict[int, tuple[int, str]]) -> None:
    """Adds the cells of rows above that reach down to here."""
    while (place := len(row)) in hanging and hanging[place][0] > 0:
        left, text = hanging[place]
        hanging[place] = left - 1, text
        row.append(text)


def _span(cell: Tag, name: str) -> int:
    value = cell.get(name)
    return max(1, min(100, int(value))) if isinstance(value, str) and value.isdecimal() else 1
