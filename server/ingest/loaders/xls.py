"""Excel workbooks of before 2007 (xls)."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.base import Loader, damaged, finish
from server.ingest.loaders.cells import Value, is_date_format, moment, shown
from server.ingest.loaders.encoding import clean
from server.ingest.loaders.sheet import sheet_blocks

_BROKEN = (
    struct.error, ValueError, KeyError, IndexError, AttributeError, TypeError, AssertionError, OSError,
    EOFError, NotImplementedError, UnicodeError,
)  # fmt: skip


class XlsLoader(Loader):
    """As the newer format: cells as shown, one block a row, `page` is the number of the sheet."""

    name = "xls"
    extensions = frozenset({".xls", ".xlt"})
    binary = True

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        from xlrd import XLRDError, open_workbook
        from xlrd.compdoc import CompDocError

        try:
            # it writes what it finds odd to standard output unless told where else
            book = open_workbook(file_contents=data, formatting_info=True, on_demand=True, logfile=io.StringIO())
            return finish(_blocks(book), self.name)
        except (*_BROKEN, XLRDError, CompDocError) as error:
            if "encrypted" in str(error):
                raise damaged(
                    "Excel 文件已加密，请去除密码", "encrypted workbook, remove its password first"
                ) from error
            reason = f"broken, or no Excel workbook ({type(error).__name__})"
            raise damaged("文件损坏，或不是 Excel 工作簿", reason) from error


def _blocks(book: Any) -> Iterator[Block]:
    for index in range(book.nsheets):
        sheet = book.sheet_by_index(index)
        if sheet.visibility == 0:
            yield from sheet_blocks(_rows(book, sheet), index + 1, clean(sheet.name))
        book.unload_sheet(index)


def _rows(book: Any, sheet: Any) -> Iterator[list[str]]:
    above = {
        (row, left): (top, left)
        for top, bottom, left, _ in sheet.merged_cells
        for row in range(top + 1, min(bottom, sheet.nrows))
    }
    for row in range(sheet.nrows):
        places = (above.get((row, column), (row, column)) for column in range(sheet.row_len(row)))
        yield [_cell(book, sheet, *place) for place in places]


def _cell(book: Any, sheet: Any, row: int, column: int) -> str:
    import xlrd

    if column >= sheet.row_len(row):
        return ""
    cell = sheet.cell(row, column)
    value: Value = cell.value
    number_format = book.format_map[book.xf_list[cell.xf_index].format_key].format_str
    if cell.ctype == xlrd.XL_CELL_ERROR:
        value = xlrd.error_text_from_code.get(cell.value, "#ERROR")
    elif cell.ctype == xlrd.XL_CELL_BOOLEAN:
        value = bool(cell.value)
    elif cell.ctype == xlrd.XL_CELL_DATE and is_date_format(number_format):
        value = moment(cell.value + (1462 if book.datemode else 0))
    return clean(shown(value, number_format or "General"))
