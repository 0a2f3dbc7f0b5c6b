"""Jupyter notebooks: texts, code and what the code printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.base import Loader, damaged, finish
from server.ingest.loaders.encoding import clean, decode
from server.ingest.loaders.headings import HEADING
from server.ingest.loaders.markdown import markdown_blocks

_OUTPUT = 5000
"""Characters of one output that are kept: logs and arrays print without end."""


class NotebookLoader(Loader):
    """Cells in order; headings of text cells become the path of the cells that follow."""

    name = "notebook"
    extensions = frozenset({".ipynb"})

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        text = decode(data)
        try:
            notebook = json.loads(text)
            cells = notebook["cells"] if "cells" in notebook else notebook["worksheets"][0]["cells"]
            return finish(list(_blocks(cells)), self.name)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            raise damaged("不是有效的 Jupyter 笔记本", f"no valid notebook ({type(error).__name__})") from error


def _blocks(cells: list[dict[str, Any]]) -> Iterator[Block]:
    # One text of all cells of prose, so that headings go on over the cells between them.
    path: tuple[str, ...] = ()
    levels: list[str] = []
    for cell in cells:
        source = clean(_joined(cell.get("source", cell.get("input", "")))).strip("\n")
        if cell.get("cell_type") == "markdown":
            for block in markdown_blocks(source):
                if block.metadata.get("kind") == HEADING:
                    levels = _entered(levels, block)
                    path = tuple(title for title in levels if title)
                yield replace(block, headings=path)
        elif source.strip():
            yield Block(source, headings=path, whole=cell.get("cell_type") == "code")
            yield from _outputs(cell.get("outputs", []), path)


def _entered(levels: list[str], heading: Block) -> list[str]:
    """The titles by level with this one in its place, as the number of its marks says."""
    marks = len(heading.text) - len(heading.text.lstrip("#"))
    level = marks or (1 if heading.text.rstrip().endswith("=") else 2)
    return [*levels[: level - 1], *[""] * (level - 1 - len(levels)), heading.headings[-1] if heading.headings else ""]


def _outputs(outputs: list[dict[str, Any]], path: tuple[str, ...]) -> Iterator[Block]:
    for output in outputs:
        printed = output.get("text") or output.get("data", {}).get("text/plain") or ""
        if text := clean(_joined(printed)).strip("\n"):
            yield Block(text[:_OUTPUT], headings=path, metadata={"kind": "output"})


def _joined(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)
