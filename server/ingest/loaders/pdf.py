"""PDF: the text layer, page by page."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.errors import LoadError
from server.ingest.loaders.base import Loader, damaged, empty, finish, locked, page_read
from server.ingest.loaders.columns import layer_text
from server.ingest.loaders.ocr import ocr_installed, read_picture
from server.ingest.loaders.pdf_text import page_lines, paragraphs, without_running_lines

# pdfium keeps state for the whole process and is not thread-safe.
_PDFIUM = threading.Lock()
_PASSWORD = 4
_STAMP = 30
"""Characters below which the text of a page that shows a picture may be a stamp on a scan."""
_OCR_SECONDS = 3000.0
"""CPU time for all pictures of one file; a page takes 10 to 60 seconds, and pages beyond are named as unread."""
_OCR_SCALE = 200 / 72
_OCR_SIDE = 3500


class PdfLoader(Loader):
    """A block for each page that has text. Pages without a text layer are read as pictures when the extra for it
    is installed, and are named in the warnings when it is not.
    """

    name = "pdf"
    extensions = frozenset({".pdf"})
    binary = True

    def __init__(self, password: str | None = None) -> None:
        self._password = password

    @override
    def unlocked(self, password: str | None) -> Loader:
        return PdfLoader(password)

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        if not data:
            raise damaged("文件为空（0 字节）", "the file is empty (0 bytes)")
        with _PDFIUM:
            pages = _read(data, self._password)
        unread = [number for number, page in enumerate(pages, start=1) if page.unread]
        if not any(page.text.strip() for page in pages):
            raise _no_text(unread)
        lines = without_running_lines([page_lines(page.text) for page in pages])
        blocks = (Block(paragraphs(page), page=number) for number, page in enumerate(lines, start=1) if any(page))
        return finish(blocks, self.name, _blank_pages(unread))


@dataclass(frozen=True, slots=True)
class _Page:
    """What is known of a page; one that is `unread` shows something and has no text layer."""

    text: str
    unread: bool = False


def _read(data: bytes, password: str | None = None) -> list[_Page]:
    """All pages; raises DamagedFile."""
    document = _open(data, password)
    reader = _PageReader(document)
    try:
        return list(_read_pages(reader, len(document)))
    finally:
        document.close()


def _read_pages(reader: _PageReader, count: int) -> Iterator[_Page]:
    for index in range(count):
        yield reader.read(index)
        page_read(index + 1, count)


def _open(data: bytes, password: str | None) -> Any:
    """The document; one that opens with the empty password needs no other."""
    import pypdfium2 as pdfium

    try:
        return pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        if error.err_code != _PASSWORD:
            raise damaged("PDF 已损坏或不是 PDF", f"broken, or no PDF at all ({error})") from error
    if password is None:
        raise locked(None)
    try:
        return pdfium.PdfDocument(data, password)
    except (pdfium.PdfiumError, ValueError):
        raise locked(password) from None


class _PageReader:
    def __init__(self, document: Any) -> None:
        self._document = document
        self._ocr_until = time.process_time() + _OCR_SECONDS if ocr_installed() else 0.0

    def read(self, index: int) -> _Page:
        """One page; a broken one is as good as one without text, the others still count."""
        import pypdfium2 as pdfium

        try:
            page = self._document[index]
        except pdfium.PdfiumError:
            return _Page("", unread=True)
        try:
            text = _text_layer(page)
            if len(text.strip()) >= _STAMP or not _shows_more(page, text):
                return _Page(text)
            return self._seen(page, text)
        except pdfium.PdfiumError:
            return _Page("", unread=True)
        finally:
            page.close()

    def _seen(self, page: Any, text: str) -> _Page:
        """A page that is a picture, perhaps with a stamp on it as its only text."""
        if time.process_time() > self._ocr_until:
            return _Page(text, unread=True)
        # Pages may be of any size; a picture of one must not be.
        scale = min(_OCR_SCALE, _OCR_SIDE / max(page.get_size()))
        found = read_picture(page.render(scale=scale, rev_byteorder=True).to_numpy()[:, :, :3])
        return _Page(max(found, text, key=len))


def _text_layer(page: Any) -> str:
    # On a turned page pdfium would put the lines in the order in which they are seen without turning it.
    rotation = page.get_rotation()
    page.set_rotation(0)
    layer = page.get_textpage()
    try:
        return layer_text(layer)
    finally:
        layer.close()
        page.set_rotation(rotation)


def _shows_more(page: Any, text: str) -> bool:
    """Whether something is drawn on a page without text, or a picture fills a page with little."""
    import pypdfium2.raw as pdfium

    if not text.strip():
        return any(True for _ in page.get_objects(max_depth=3))
    width, height = page.get_size()
    boxes = (image.get_bounds() for image in page.get_objects([pdfium.FPDF_PAGEOBJ_IMAGE], max_depth=3))
    return any((right - left) * (top - bottom) > width * height / 2 for left, bottom, right, top in boxes)


def _no_text(unread: Sequence[int]) -> LoadError:
    if not unread:
        return empty()
    if not ocr_installed():
        return empty(
            "PDF 没有文本层，可能是扫描件，需要 OCR（请管理员运行 pip install 'zhiku[ocr]'）",
            "no text layer, scanned? needs OCR (pip install 'zhiku[ocr]')",
        )
    return empty("PDF 没有文本层，也没有识别出文字", "no text layer, and no text was found in its pictures")


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
