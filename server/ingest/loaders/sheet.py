"""What all spreadsheets have in common: a sheet is a place, with rows under a header."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from server.domain import Block
from server.ingest.loaders.headings import HEADING
from server.ingest.loaders.table import named_rows


def sheet_blocks(rows: Iterator[list[str]], number: int, title: str) -> Iterator[Block]:
    """The name of the sheet as a heading, then its rows; nothing for a sheet without text.

    Columns on the left that are empty in all of the first rows are left out by the way rows are named.
    """
    filled = (row for row in rows if any(row))
    first = next(filled, None)
    if first is None:
        return
    path = (title,)
    yield Block(title, number, path, metadata={"kind": HEADING})
    yield from named_rows(chain([first], filled), path, number)
