"""The text of a PDF page whose columns are written row by row: one column after the other.

Most programs write a column to its end before the next; such pages, tables, forms and tables of contents are left
in the order of the file. A page is turned only when the same strip stays empty through many rows, and what stands
beside it is prose: lines of letters that fill their column.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from server.ingest.loaders.pdf_text import text_width

_GAP = 0.6
"""How wide a gap is that words of one line do not have, in heights of a character."""
_BESIDE = 0.3
"""How much of their height two characters share at least when they are in one row."""
_SPACE = 1.6
"""Empty heights across the page that end a group of rows: under a running header, around a figure."""
_MAX_GUTTERS = 3
_MIN_ROWS = 8
_MIN_GROUP = 3
"""Rows from which on a group is turned, once the page is known to have columns."""
_FULL, _FULL_SHARE = 0.75, 0.7
_LETTERS_SHARE = 0.7
_MIN_WIDTH = 16
_BREAK = 1.25
_MIN_SHARED = 2


@dataclass(frozen=True, slots=True)
class _Piece:
    """Characters `start` to `end` of the page, which stand in one line without a gap."""

    start: int
    end: int
    left: float
    bottom: float
    right: float
    top: float

    @property
    def height(self) -> float:
        return self.top - self.bottom

    def beside(self, other: _Piece) -> bool:
        """Whether both are in one row."""
        shared = min(self.top, other.top) - max(self.bottom, other.bottom)
        return shared > _BESIDE * min(self.height, other.height)

    def joined(self, other: _Piece) -> _Piece:
        """Both as one."""
        return _Piece(
            self.start, other.end, min(self.left, other.left), min(self.bottom, other.bottom),
            max(self.right, other.right), max(self.top, other.top),
        )  # fmt: skip


def layer_text(layer: Any) -> str:
    """The text of a page (a text page of pdfium) in reading order; linear in its length, but for sorting gaps."""
    text = str(layer.get_text_range())
    pieces = list(_pieces(layer, text))
    gaps = [(one.right, two.left) for one, two in pairwise(pieces) if two.left > one.right and one.beside(two)]
    gutters = _gutters(gaps)
    while gutters:
        groups = _groups(pieces, gutters)
        if _has_columns(layer, groups, gutters):
            return "\n".join(_turned(layer, groups, gutters))
        gutters = gutters[:-1]
    return text


def _pieces(layer: Any, text: str) -> Iterator[_Piece]:
    # A page has thousands of characters: no object is made for each.
    characters = _boxes(layer, text)
    start, left, bottom, right, top = next(characters, (-1, 0.0, 0.0, 0.0, 0.0))
    end = start
    for at, new_left, new_bottom, new_right, new_top in characters:
        height, new_height = top - bottom, new_top - new_bottom
        tallest, shortest = (height, new_height) if height > new_height else (new_height, height)
        shared = (top if top < new_top else new_top) - (bottom if bottom > new_bottom else new_bottom)
        if shared > _BESIDE * shortest and -2 * tallest < new_left - right < _GAP * tallest:
            end = at
            left, bottom = min(left, new_left), min(bottom, new_bottom)
            right, top = max(right, new_right), max(top, new_top)
        else:
            yield _Piece(start, end + 1, left, bottom, right, top)
            start = end = at
            left, bottom, right, top = new_left, new_bottom, new_right, new_top
    if start >= 0:
        yield _Piece(start, end + 1, left, bottom, right, top)


def _boxes(layer: Any, text: str) -> Iterator[tuple[int, float, float, float, float]]:
    """The characters that show something, by index, with left, bottom, right and top."""
    import pypdfium2.raw as pdfium

    raw, count = layer.raw, layer.count_chars()
    if len(text) != count:  # some characters are two units, or none, in the text
        text = "".join(chr(pdfium.FPDFText_GetUnicode(raw, at)) for at in range(count))
    box = pdfium.FS_RECTF()
    reference = ctypes.byref(box)
    for at, character in enumerate(text):
        if not character.isspace() and pdfium.FPDFText_GetLooseCharBox(raw, at, reference):
            yield at, box.left, box.bottom, box.right, box.top


def _gutters(gaps: Sequence[tuple[float, float]]) -> list[float]:
    """Where the most rows have a gap, the likeliest place first."""
    found: list[float] = []
    while len(gaps) >= _MIN_ROWS and len(found) < _MAX_GUTTERS:
        place, rows = _deepest(gaps)
        if rows < _MIN_ROWS:
            break
        found.append(place)
        gaps = [(left, right) for left, right in gaps if not left < place < right]
    return found


def _deepest(gaps: Sequence[tuple[float, float]]) -> tuple[float, int]:
    """The middle of the strip that lies in the most gaps, and their number."""
    edges = sorted([(left, 1) for left, _ in gaps] + [(right, -1) for _, right in gaps])
    place, most, open_gaps = 0.0, 0, 0
    for (at, step), (following, _) in pairwise([*edges, (edges[-1][0], 0)]):
        open_gaps += step
        if open_gaps > most:
            place, most = (at + following) / 2, open_gaps
    return place, most


def _groups(pieces: Iterable[_Piece], gutters: Sequence[float]) -> list[list[_Piece]]:
    """Neighbouring pieces, cut where one crosses a gutter (it is alone), the page is empty, or the text jumps up."""
    groups: list[list[_Piece]] = []
    floor = 0.0
    for piece in pieces:
        crosses = any(piece.left < gutter < piece.right for gutter in gutters)
        before = groups[-1][-1] if groups and groups[-1] else None
        space = _SPACE * piece.height
        if before is None or crosses or piece.top < floor - space or piece.bottom > before.top + space:
            groups.append([piece])
            floor = piece.bottom
        else:
            groups[-1].append(piece)
            floor = min(floor, piece.bottom)
        if crosses:
            groups.append([])
    return [group for group in groups if group]


def _column(piece: _Piece, gutters: Sequence[float]) -> int:
    return sum(gutter < (piece.left + piece.right) / 2 for gutter in gutters)


def _rows(group: Sequence[_Piece], gutters: Sequence[float]) -> int:
    """How many rows of a group have something in more than one column."""
    return sum(
        one.beside(two) and _column(one, gutters) < _column(two, gutters) == len(gutters)
        for one, two in pairwise(group)
    )


def _columns(group: Iterable[_Piece], gutters: Sequence[float]) -> list[list[_Piece]]:
    """The lines of each column, in the order of the file."""
    columns: list[list[_Piece]] = [[] for _ in range(len(gutters) + 1)]
    last: list[_Piece] | None = None
    for piece in group:
        lines = columns[_column(piece, gutters)]
        if lines is last and lines[-1].beside(piece):
            lines[-1] = lines[-1].joined(piece)
        else:
            lines.append(piece)
        last = lines
    return columns


def _has_columns(layer: Any, groups: Sequence[Sequence[_Piece]], gutters: Sequence[float]) -> bool:
    rows = [(group, count) for group in groups if (count := _rows(group, gutters)) >= _MIN_GROUP]
    if sum(count for _, count in rows) < _MIN_ROWS:
        return False
    columns = _columns([piece for group, _ in rows for piece in group], gutters)
    return all(_is_prose(layer, lines) for lines in columns) and not any(
        _begin_together(one, two) for one, two in pairwise(columns)
    )


def _is_prose(layer: Any, lines: Sequence[_Piece]) -> bool:
    if len(lines) < _MIN_ROWS:
        return False
    texts = ["".join(_text(layer, line).split()) for line in lines]
    letters = sum(character.isalpha() for text in texts for character in text)
    # the column's edges, without a line that hangs out
    width = sorted(line.right for line in lines)[-1 - len(lines) // 10] - median(line.left for line in lines)
    full = sum(line.right - line.left >= _FULL * width for line in lines)
    return (
        letters >= _LETTERS_SHARE * sum(map(len, texts))
        and full >= _FULL_SHARE * len(lines)
        and median(map(text_width, texts)) >= _MIN_WIDTH
    )


def _begin_together(one: Sequence[_Piece], two: Sequence[_Piece]) -> bool:
    """Whether what follows an empty space in one column mostly does so beside it too, as the cells of a table do."""
    breaks, others = _after_breaks(one), _after_breaks(two)
    tops = {round(line.top / line.height): line for line in others}
    places = ((round(line.top / line.height) + step, line) for line in breaks for step in (-1, 0, 1))
    shared = sum(abs(tops[at].top - line.top) < 0.3 * line.height for at, line in places if at in tops)
    return shared >= max(_MIN_SHARED, (len(breaks) + len(others)) / 4)


def _after_breaks(lines: Sequence[_Piece]) -> list[_Piece]:
    steps = [before.top - line.top for before, line in pairwise(lines)]
    usual = median(steps)
    return [line for line, step in zip(lines[1:], steps, strict=True) if step > _BREAK * usual]


def _turned(layer: Any, groups: Iterable[Sequence[_Piece]], gutters: Sequence[float]) -> Iterator[str]:
    for group in groups:
        if _rows(group, gutters) < _MIN_GROUP:
            yield _text(layer, replace(group[0], end=group[-1].end))
        else:
            yield from (_text(layer, line) for lines in _columns(group, gutters) for line in lines)


def _text(layer: Any, piece: _Piece) -> str:
    return str(layer.get_text_range(piece.start, piece.end - piece.start))
