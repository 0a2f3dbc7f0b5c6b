"""CSV and TSV: every row is a block that names its columns."""

from __future__ import annotations

import csv
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
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
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
            return finish(named_rows(_rows(text, _delimiter(text))), self.name)
        except csv.Error as error:
            raise damaged("CSV 格式错误", f"malformed CSV ({error})") from error


def _rows(text: str, delimiter: str) -> Iterator[list[str]]:
    lines = _lines(text)
    if _has_stray_quote(text, delimiter):
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, delimiter=delimiter)
    for row in reader:
        cells = [" ".join(cell.split()) for cell in row]
        if any(cells):
            yield cells


def _lines(text: str) -> Iterator[str]:
    # A stream over the text would be a copy of it, with four bytes for each character.
    return (match.group() for match in _LINE.finditer(text))


def _has_stray_quote(text: str, delimiter: str) -> bool:
    """Whether a quote is opened and never closed, so that it would swallow the rest of the file."""
    if text.count('"') % 2 == 0:
        return False
    reader = csv.reader(_lines(text), delimiter=delimiter, strict=True)
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
    rows = islice(csv.reader(_lines(head), delimiter=delimiter), _SNIFFED_ROWS)
    widths = Counter(len(row) for row in rows if row)
    wide = {width: count for width, count in widths.items() if width > 1}
    if not wide:
        return 0.0
    width, count = max(wide.items(), key=lambda item: item[1])
    return count / widths.total() + min(width, 20) / 1000


def named_rows(rows: Iterator[list[str]], headings: tuple[str, ...] = (), page: int | None = None) -> Iterator[Block]:
    """One whole block a row, `column: value; column: value`; titles above the header come as they are.

    `rows` are cells without line breaks, none of them all empty; sheets use it as well as delimited text.
    """
    first = list(islice(rows, _SNIFFED_ROWS))
    titles = _titles(first)
    yield from (Block(" ".join(filter(None, row)), page, headings) for row in first[:titles])
    rest = first[titles:]
    header, taken = _header(rest)
    for row in chain(rest[taken:], rows):
        yield Block(_named(row, header), page, headings, whole=True)


def _titles(rows: list[list[str]]) -> int:
    """How many rows stand above the header: those with one filled cell while most rows have more."""
    filled = [sum(map(bool, row)) for row in rows]
    if sum(count > 1 for count in filled) <= len(rows) // 2:
        return 0
    return next(index for index, count in enumerate(filled) if count > 1)


def _header(rows: list[list[str]]) -> tuple[list[str], int]:
    """The names of the columns, and how many rows they take: none, one or two."""
    if len(rows) < 2 or _has_numbers_only(rows[0]):
        return [], 0
    if len(rows) > 2 and _is_second_header(*rows[:3]):
        return _joined(rows[0], rows[1]), 2
    return rows[0], 1


def _has_numbers_only(row: list[str]) -> bool:
    return all(_NUMBER.fullmatch(cell) for cell in row if cell)


def _is_second_header(upper: list[str], lower: list[str], below: list[str]) -> bool:
    """Whether `lower` divides the columns of a header with gaps: all words, above what is not."""
    gaps = any(cell and not above for above, cell in zip(_padded(upper, lower)[1:], lower[1:], strict=False))
    words = not any(_NUMBER.fullmatch(cell) for cell in lower if cell)
    numbers = any(_NUMBER.fullmatch(cell) and above for above, cell in zip(lower, below, strict=False))
    return gaps and words and numbers and bool(upper[0] or lower[0])


def _joined(upper: list[str], lower: list[str]) -> list[str]:
    names, group = [], ""
    for above, name in zip(_padded(upper, lower), _padded(lower, upper), strict=True):
        group = above or (group if name else "")
        names.append(" / ".join(dict.fromkeys(part for part in (group, name) if part)))
    return names


def _padded(row: list[str], other: list[str]) -> list[str]:
    return [*row, *[""] * (len(other) - len(row))]


def _named(row: list[str], header: list[str]) -> str:
    missing = [""] * (len(header) - len(row))
    names = [*header, *[""] * (len(row) - len(header))]
    cells = zip(names, [*row, *missing], strict=True)
    return "; ".join(f"{name}: {cell}" if name else cell for name, cell in cells if name or cell)
