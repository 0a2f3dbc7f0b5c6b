"""reStructuredText and Org: blocks keep their source text, and titles become the path of what follows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.base import Loader, extension_of, finish
from server.ingest.loaders.encoding import decode
from server.ingest.loaders.headings import HeadingPath
from server.ingest.loaders.text import paragraphs

_LINE = re.compile(r"([!-/:-@\[-`{-~])\1{2,}[ \t]*$")
_STAR = re.compile(r"(\*+)\s+(?:(?:TODO|DONE)\s+)?(.*?)(?:\s+:[\w:@]+:)?\s*$")
_ORG_BEGIN = re.compile(r"\s*#\+begin_(\w+)", re.I)

# Parts of the text: (level and plain title, or None for what is no title; the source).
_Part = tuple[tuple[int, str] | None, str]


class OutlineLoader(Loader):
    """Titles by their marks; everything else, directives included, stays as it was written."""

    name = "outline"
    extensions = frozenset({".rst", ".rest", ".org"})

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        parts: Callable[[list[str]], Iterator[_Part]] = _org if extension_of(file_name) == ".org" else _rst
        return finish(_blocks(parts(decode(data).split("\n"))), self.name)


def _blocks(parts: Iterator[_Part]) -> Iterator[Block]:
    path = HeadingPath()
    for title, source in parts:
        if title:
            yield path.enter(*title, source)
        else:
            yield from (Block(block.text, headings=path.titles) for block in paragraphs(source))


def _rst(lines: list[str]) -> Iterator[_Part]:
    """Titles are underlined, some overlined too; a level is a style, in the order of appearance."""
    styles: list[str] = []
    kept: list[str] = []
    at = 0
    while at < len(lines):
        over, size = _rst_title(lines, at)
        if not size:
            kept.append(lines[at])
            at += 1
            continue
        yield None, "\n".join(kept)
        kept = []
        style = lines[at + size - 1][0] + ("^" if over else "")
        if style not in styles:
            styles.append(style)
        title = lines[at + 1 if over else at].strip()
        yield (styles.index(style) + 1, title), "\n".join(lines[at : at + size])
        at += size
    yield None, "\n".join(kept)


def _rst_title(lines: list[str], at: int) -> tuple[bool, int]:
    """Whether the title that begins here has a line above it, and its number of lines (0: none begins here)."""
    one, two, three = (lines[at + step] if at + step < len(lines) else "" for step in range(3))
    if _LINE.match(one) and two.strip() and three.rstrip() == one.rstrip():
        return True, 3
    alone = at == 0 or not lines[at - 1].strip()
    long_enough = len(two.rstrip()) >= min(len(one.rstrip()), 3)
    if alone and one.strip() and not one[0].isspace() and not _LINE.match(one) and _LINE.match(two) and long_enough:
        return False, 2
    return False, 0


def _org(lines: list[str]) -> Iterator[_Part]:
    kept: list[str] = []
    fence = ""
    for line in lines:
        if fence:
            fence = "" if line.strip().lower() == fence else fence
        elif begin := _ORG_BEGIN.match(line):
            fence = f"#+end_{begin[1].lower()}"
        elif star := _STAR.match(line):
            yield None, "\n".join(kept)
            kept = []
            yield (len(star[1]), star[2]), line
            continue
        kept.append(line)
    yield None, "\n".join(kept)
