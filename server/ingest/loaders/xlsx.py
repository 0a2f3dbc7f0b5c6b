"""Excel workbooks (xlsx): every sheet that is shown, row by row under its header."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.archive import UNREADABLE, open_archive
from server.ingest.loaders.base import Loader, damaged, finish
from server.ingest.loaders.cells import shown
from server.ingest.loaders.encoding import clean
from server.ingest.loaders.sheet import sheet_blocks

_LARGE = 30 << 20
"""Bytes of unpacked sheets from which on a workbook is read row by row, without merged cells and comments:
the whole of it would take fifty times as much memory."""
_COLUMNS = 2000
_BROKEN = (*UNREADABLE, AttributeError, TypeError, IndexError, SyntaxError, ArithmeticError)
_NO_FORMULA_VALUE = "有 {n} 个公式没有保存计算结果，显示为公式 / {n} formulas have no stored result, shown as formulas"


class XlsxLoader(Loader):
    """Cells read as they are shown; formulas give their value; merged cells give their text to every row.

    `page` is the number of the sheet, hidden ones included in the count but not read.
    """

    name = "xlsx"
    extensions = frozenset({".xlsx", ".xlsm", ".xltx", ".xltm"})
    binary = True

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        with open_archive(data) as archive:
            large = _size_of_sheets(archive) > _LARGE
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of styles and rules that are not read anyway
                book = _Workbook(data, large=large)
                blocks = list(book.blocks())
            return finish(blocks, self.name, book.notes())
        except _BROKEN as error:
            reason = f"broken, or no Excel workbook ({type(error).__name__})"
            raise damaged("文件损坏，或不是 Excel 工作簿", reason) from error


def _size_of_sheets(archive: zipfile.ZipFile) -> int:
    return sum(member.file_size for member in archive.infolist() if member.filename.startswith("xl/worksheets/"))


class _Workbook:
    def __init__(self, data: bytes, *, large: bool) -> None:
        from openpyxl import load_workbook

        self._large = large
        self._book = load_workbook(io.BytesIO(data), read_only=large, data_only=True)
        # Programs other than Excel store formulas without their results; then the formula is all there is.
        self._formulas = None if large else load_workbook(io.BytesIO(data))
        self._unsolved = 0

    def blocks(self) -> Iterator[Block]:
        """The blocks of all sheets that are shown."""
        for number, sheet in enumerate(self._book.worksheets, start=1):
            if sheet.sheet_state == "visible":
                rows = self._streamed(sheet) if self._large else self._rows(sheet)
                yield from sheet_blocks(rows, number, sheet.title)

    def notes(self) -> Iterator[str]:
        """To be asked after the blocks."""
        if self._unsolved:
            yield _NO_FORMULA_VALUE.format(n=self._unsolved)

    def _streamed(self, sheet: Any) -> Iterator[list[str]]:
        sheet.reset_dimensions()  # what programs write there is not to be trusted
        for row in sheet.iter_rows(max_col=_COLUMNS):
            yield [_text(cell) for cell in row]

    def _rows(self, sheet: Any) -> Iterator[list[str]]:
        labels = _merged_labels(sheet)
        formulas = self._formulas[sheet.title] if self._formulas is not None else None
        # Cells that exist, by row: a stray one at the far end must not cost a million empty rows.
        by_row: dict[int, dict[int, Any]] = {}
        for (row, column), cell in sheet._cells.items():
            if column <= _COLUMNS:
                by_row.setdefault(row, {})[column] = cell
        for row in sorted(by_row.keys() | {row for row, _ in labels}):
            texts = {column: self._cell(cell, formulas) for column, cell in by_row.get(row, {}).items()}
            texts |= {column: label for (at, column), label in labels.items() if at == row}
            width = max((column for column, text in texts.items() if text), default=0)
            yield [texts.get(column, "") for column in range(1, width + 1)]

    def _cell(self, cell: Any, formulas: Any) -> str:
        text = _text(cell)
        if not text and cell.value is None and formulas is not None:
            formula = formulas.cell(cell.row, cell.column).value
            if isinstance(formula, str) and formula.startswith("="):
                self._unsolved += 1
                text = formula
        comment = getattr(cell, "comment", None)
        # Threads come with words for programs that do not know them.
        said = comment.text.rpartition("Comment:\n")[2] if comment and comment.text else ""
        return f"{text} ({clean(' '.join(said.split()))})" if said.strip() else text


def _text(cell: Any) -> str:
    return clean(shown(cell.value, getattr(cell, "number_format", None) or "General"))


def _merged_labels(sheet: Any) -> dict[tuple[int, int], str]:
    """The text of cells merged over several rows, for each row below the first."""
    labels = {}
    for area in sheet.merged_cells.ranges:
        text = _text(sheet.cell(area.min_row, area.min_col))
        for row in range(area.min_row + 1, min(area.max_row, area.min_row + 10_000) + 1):
            if text:
                labels[row, area.min_col] = text
    return labels
