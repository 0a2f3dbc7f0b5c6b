"""CSV and TSV: every row is a block that names its columns."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.base import Loader, damaged, finish
from server.ingest.loaders.encoding import decode

_DELIMITERS = ",\t;|"
_SNIFFED_ROWS = 50
_NUMBER = re.compile(r"[-+]?[\d.,]*\d%?")


class TableLoader(Loader):
    """Delimited text: `column: value; column: value`, one block a row; the delimiter is found out.

    Cells beyond the header stand without a name, missing ones are empty.
    """

    name = "csv"
    extensions = frozenset({".csv", ".tsv"})

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        text = decode(data)
        # The limit is the interpreter's; its default refuses cells that real exports have.
        csv.field_size_limit(sys.maxsize)
        try:
            return finish(_blocks(_rows(text, _delimiter(text))), self.name)
        except csv.Error as error:
            raise damaged("CSV 格式错误", f"malformed CSV ({error})") from error


def _rows(text: str, delimiter: str) -> Iterator[list[str]]:
    lines = io.StringIO(text, newline="")
    if _has_stray_quote(text, delimiter):
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, delimiter=delimiter)
    for row in reader:
        cells = [" ".join(cell.split()) for cell in row]
        if any(cells):
            yield cells


def _has_stray_quote(text: str, delimiter: str) -> bool:
    """Whether a quote is opened and never closed, so that it would swallow the rest of the file."""
    if text.count('"') % 2 == 0:
        return False
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for _ in reader:
            pass
    except csv.Error as error:
        return "end of data" in str(error)
    return False


def _delimiter(text: str) -> str:
    """The delimiter that cuts the first rows into the steadiest number of columns."""
    head = text[: 1 << 16]
    return max(_DELIMITERS, key=lambda delimiter: _steadiness(head, delimiter))


def _steadiness(head: str, delimiter: str) -> float:
    rows = islice(csv.reader(io.StringIO(head, newline=""), delimiter=delimiter), _SNIFFED_ROWS)
    widths = Counter(len(row) for row in rows if row)
    wide = {width: count for width, count in widths.items() if width > 1}
    if not wide:
        return 0.0
    width, count = max(wide.items(), key=lambda item: item[1])
    return count / widths.total() + min(width, 20) / 1000


def _blocks(rows: Iterator[list[str]]) -> Iterator[Block]:
    first = list(islice(rows, _SNIFFED_ROWS))
    titles, header = _titles(first), None
    yield from (Block(" ".join(filter(None, row))) for row in first[:titles])
    rest = first[titles:]
    if len(rest) > 1 and not all(_NUMBER.fullmatch(cell) for cell in rest[0] if cell):
        header, rest = rest[0], rest[1:]
    for row in chain(rest, rows):
        yield Block(_named(row, header or []), whole=True)


def _titles(rows: list[list[str]]) -> int:
    """How many rows stand above the header: those with one filled cell while most rows have more."""
    filled = [sum(map(bool, row)) for row in rows]
    if sum(count > 1 for count in filled) <= len(rows) // 2:
        return 0
    return next(index for index, count in enumerate(filled) if count > 1)


def _named(row: list[str], header: list[str]) -> str:
    missing = [""] * (len(header) - len(row))
    names = [*header, *[""] * (len(row) - len(header))]
    cells = zip(names, [*row, *missing], strict=True)
    return "; ".join(f"{name}: {cell}" if name else cell for name, cell in cells if name or cell)
