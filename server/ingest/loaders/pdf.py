"""PDF: the text layer, page by page."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.errors import LoadError
from server.ingest.loaders.base import Loader, damaged, empty, finish
from server.ingest.loaders.pdf_text import page_lines, paragraphs, without_running_lines

# pdfium keeps state for the whole process and is not thread-safe.
_PDFIUM = threading.Lock()
_PASSWORD = 4


class PdfLoader(Loader):
    """A block for each page that has text; pages without a text layer are named in the warnings."""

    name = "pdf"
    extensions = frozenset({".pdf"})

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        if not data:
            raise damaged("文件为空（0 字节）", "the file is empty (0 bytes)")
        with _PDFIUM:
            texts = _page_texts(data)
        blank = [number for number, text in enumerate(texts, start=1) if not text.strip()]
        if len(blank) == len(texts):
            raise empty("PDF 没有文本层，可能是扫描件，需要 OCR", "no text layer, scanned? needs OCR")
        pages = without_running_lines([page_lines(text) for text in texts])
        blocks = (Block(paragraphs(lines), page=number) for number, lines in enumerate(pages, start=1) if any(lines))
        return finish(blocks, self.name, _blank_pages(blank))


def _page_texts(data: bytes) -> list[str]:
    """What pdfium reads on each page; raises DamagedFile."""
    import pypdfium2 as pdfium

    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        raise _refusal(error) from error
    try:
        return [_page_text(document, index) for index in range(len(document))]
    finally:
        document.close()


def _page_text(document: Any, index: int) -> str:
    import pypdfium2 as pdfium

    try:
        page = document[index]
    except pdfium.PdfiumError:
        # One broken page is as good as one without text; the others still count.
        return ""
    try:
        # On a turned page pdfium would put the lines in the order in which they are seen without turning it.
        page.set_rotation(0)
        layer = page.get_textpage()
        try:
            return str(layer.get_text_range())
        finally:
            layer.close()
    except pdfium.PdfiumError:
        return ""
    finally:
        page.close()


def _refusal(error: Exception) -> LoadError:
    if getattr(error, "err_code", None) == _PASSWORD or "password" in str(error).lower():
        return damaged("PDF 已加密，需要密码，请去除密码后再上传", "encrypted PDF, remove its password first")
    return damaged("PDF 已损坏或不是 PDF", f"broken, or no PDF at all ({error})")


def _blank_pages(numbers: Sequence[int]) -> Iterator[str]:
    if numbers:
        shown = ", ".join(_ranges(numbers))
        yield f"第 {shown} 页没有文本层（需要 OCR） / pages {shown} have no text layer (need OCR)"


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    begin = numbers[0]
    for number, after in zip(numbers, [*numbers[1:], None], strict=True):
        if after != number + 1:
            yield str(begin) if begin == number else f"{begin}-{number}"
            begin = after or 0
