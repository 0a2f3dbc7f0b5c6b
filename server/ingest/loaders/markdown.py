"""Markdown: blocks keep their source text, and headings become the path of what follows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.base import Loader, finish
from server.ingest.loaders.encoding import decode
from server.ingest.loaders.headings import HeadingPath

if TYPE_CHECKING:
    from markdown_it.token import Token

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?\n)(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_WHOLE = frozenset({"fence", "code_block", "table_open"})


class MarkdownLoader(Loader):
    """Fences, tables, lists and paragraphs are blocks; front matter is a block of its own."""

    name = "markdown"
    extensions = frozenset({".md", ".mdx", ".markdown"})

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        text = decode(data)
        front = _FRONT_MATTER.match(text)
        blocks = list(markdown_blocks(text[front.end() :] if front else text))
        if front and blocks:
            blocks.insert(0, Block(front.group(1).strip(), whole=True, metadata={"kind": "front_matter"}))
        return finish(blocks, self.name)


def markdown_blocks(text: str) -> Iterator[Block]:
    """The blocks of a text in Markdown, with their source; notebooks use it too."""
    from markdown_it import MarkdownIt

    lines = text.split("\n")
    parser = MarkdownIt("commonmark").enable("table")
    # Only the places of blocks are asked for: what is inside a paragraph stays as it is.
    parser.core.ruler.disable("inline")
    tokens = parser.parse(text)
    path = HeadingPath()
    end = 0
    for index, token in enumerate(tokens):
        if token.level or token.nesting < 0 or not token.map:
            continue
        begin, stop = token.map
        # Link definitions make no token; they are text that people search for all the same.
        yield from _block(lines[end:begin], path, None)
        if token.type == "heading_open":
            yield path.enter(int(token.tag[1:]), tokens[index + 1].content, _source(lines[begin:stop]))
        else:
            yield from _block(lines[begin:stop], path, token)
        end = stop
    yield from _block(lines[end:], path, None)


def _block(lines: list[str], path: HeadingPath, token: Token | None) -> Iterator[Block]:
    if source := _source(lines):
        yield Block(source, headings=path.titles, whole=token is not None and token.type in _WHOLE)


def _source(lines: list[str]) -> str:
    return "\n".join(lines).strip("\n").rstrip()
