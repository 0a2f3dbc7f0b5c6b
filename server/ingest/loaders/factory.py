"""Which loader reads which file."""

from __future__ import annotations

import mmap
import string
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from server.domain import Block, LoadedDocument
from server.errors import UnsupportedFormat
from server.ingest.loaders.base import Container, Loader, damaged, empty, extension_of
from server.ingest.loaders.docx import DocxLoader
from server.ingest.loaders.epub import EpubLoader
from server.ingest.loaders.html import HtmlLoader
from server.ingest.loaders.image import ImageLoader
from server.ingest.loaders.json import JsonLoader
from server.ingest.loaders.kinds import kind_of, text_kind
from server.ingest.loaders.large import LARGE
from server.ingest.loaders.legacy import LegacyLoader
from server.ingest.loaders.mail import MailLoader, MhtmlLoader
from server.ingest.loaders.markdown import MarkdownLoader
from server.ingest.loaders.msg import MsgLoader
from server.ingest.loaders.notebook import NotebookLoader
from server.ingest.loaders.odf import OdfLoader
from server.ingest.loaders.outline import OutlineLoader
from server.ingest.loaders.pdf import PdfLoader
from server.ingest.loaders.pptx import PptxLoader
from server.ingest.loaders.rtf import RtfLoader
from server.ingest.loaders.subtitles import SubtitleLoader
from server.ingest.loaders.table import TableLoader
from server.ingest.loaders.text import TextLoader
from server.ingest.loaders.xls import XlsLoader
from server.ingest.loaders.xlsx import XlsxLoader
from server.ingest.loaders.xml import XmlLoader
from server.ingest.loaders.zip import ZipLoader

_LOADERS: tuple[Loader, ...] = (
    TextLoader(),
    MarkdownLoader(),
    HtmlLoader(),
    TableLoader(),
    JsonLoader(),
    NotebookLoader(),
    XmlLoader(),
    OutlineLoader(),
    SubtitleLoader(),
    PdfLoader(),
    DocxLoader(),
    PptxLoader(),
    XlsxLoader(),
    XlsLoader(),
    OdfLoader(),
    EpubLoader(),
    RtfLoader(),
    LegacyLoader(),
    MailLoader(),
    MhtmlLoader(),
    MsgLoader(),
    ImageLoader(),
    ZipLoader(),
)
_BY_NAME: dict[str, Loader] = {loader.name: loader for loader in _LOADERS}
_BY_EXTENSION: dict[str, Loader] = {extension: loader for loader in _LOADERS for extension in loader.extensions}
_DEPTH = 3
"""How many containers (archives, mails) may lie in each other."""
_BLANK = 1 << 16
"""Bytes of a file that is looked at whole for being nothing but white space."""
_WHITE = "\0\ufeff\u3000\xa0" + string.whitespace
# Programs write text, HTML and mail under the extensions of these; under others it is a mistake worth telling.
_OFTEN_TEXT = frozenset({"doc", "xls", "rtf"})
_LIGHT = frozenset({"text", "markdown"})
_ZIPPED = frozenset({"docx", "pptx", "xlsx", "odf", "epub"})
_WAYS_OUT = {"xlsb": ("，请在 Excel 中另存为 xlsx", ", save it as xlsx in Excel")}
# One of these under the extension of another is nothing to warn of.
_SIMILAR = frozenset({"mail", "mhtml", "html", "xml"})

SUPPORTED_EXTENSIONS: frozenset[str] = frozenset(_BY_EXTENSION)
"""Every extension that can be loaded: lower case, with the leading dot."""


def loader_for(file_name: str) -> Loader:
    """The loader for this file by its extension, in any case; raises UnsupportedFormat.

    The same object is returned every time; loaders may be used from several threads. A name without any
    extension belongs to the loader of plain text: its content decides when it is loaded.
    """
    extension = extension_of(file_name)
    loader = _BY_EXTENSION.get(extension or ".txt")
    if loader is None or not file_name.strip() or _base(file_name).startswith("."):
        shown = extension or "(无扩展名 / no extension)"
        if extension[1:] in _WAYS_OUT:
            zh, en = _WAYS_OUT[extension[1:]]
            raise UnsupportedFormat(f"暂未支持的文件格式 {shown}{zh} / unsupported format {shown}{en}")
        supported = " ".join(sorted(SUPPORTED_EXTENSIONS))
        raise UnsupportedFormat(f"暂未支持的文件格式 {shown} / unsupported format {shown}, supported: {supported}")
    return loader


def load_document(data: bytes, file_name: str, depth: int = _DEPTH, password: str | None = None) -> LoadedDocument:
    """What the right loader makes of the bytes: the content decides, and the extension where it says nothing.

    The password is tried on the file and on the files inside.

    Raises:
        LoadError: no loader, no text, or the content cannot be read.
    """
    if _is_blank(data):
        loader_for(file_name)
        raise empty("文件为空", "the file is empty")
    loader = _choose(data, file_name).unlocked(password)
    if isinstance(loader, Container):
        if depth == 0:
            raise damaged(f"压缩包或邮件嵌套超过 {_DEPTH} 层", f"archives or mails nested deeper than {_DEPTH}")
        document = loader.load_members(data, lambda inner, name: load_document(inner, name, depth - 1, password))
    else:
        document = loader.load(data, file_name)
    named = _BY_EXTENSION.get(extension_of(file_name))
    if named is None or loader.name == named.name or {loader.name, named.name} <= _SIMILAR:
        return document
    note = f"扩展名与内容不符，按 {loader.name} 读取 / the extension is wrong, read as {loader.name}"
    return replace(document, warnings=(note, *document.warnings))


@dataclass(frozen=True, slots=True)
class OpenDocument:
    """A document whose blocks may be read one after another; otherwise as `LoadedDocument`."""

    blocks: Iterable[Block]
    loader: str
    warnings: tuple[str, ...] = ()


@contextmanager
def open_document(path: Path, file_name: str, password: str | None = None) -> Iterator[OpenDocument]:
    """As `load_document`, for a file on disk: huge plain text is read as its blocks are asked for."""
    if path.stat().st_size < LARGE:
        document = load_document(path.read_bytes(), file_name, password=password)
        yield OpenDocument(document.blocks, document.loader, document.warnings)
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        loader = _choose(data[:LARGE], file_name)
        if isinstance(loader, TextLoader):
            yield OpenDocument(loader.blocks(data), loader.name)
            return
        document = load_document(data[:], file_name, password=password)
    yield OpenDocument(document.blocks, document.loader, document.warnings)


def is_light(data: bytes, file_name: str) -> bool:
    """Whether a loader reads this that does no more than to go through plain text once."""
    try:
        return _choose(data, file_name).name in _LIGHT
    except UnsupportedFormat:
        return True


def _choose(data: bytes, file_name: str) -> Loader:
    kind = kind_of(data)
    if kind.startswith("foreign:"):
        zh, en = _WAYS_OUT.get(kind[8:], ("", ""))
        raise UnsupportedFormat(f"暂未支持的文件内容 {kind[8:]}{zh} / unsupported content: {kind[8:]}{en}")
    if kind == "encrypted":
        raise damaged("Office 文件已加密，请去除密码后再上传", "encrypted Office file, remove its password first")
    found = _BY_NAME.get(kind)
    if found is None:
        return _by_text(data, file_name)
    named = _BY_EXTENSION.get(extension_of(file_name))
    # An archive of anything is no document: the loader that its name asks for says so.
    return named if kind == "zip" and named is not None and named.name in _ZIPPED else found


def _is_blank(data: bytes) -> bool:
    return len(data) < _BLANK and not data.decode("utf-8", "replace").strip(_WHITE)


def _by_text(data: bytes, file_name: str) -> Loader:
    named = loader_for(file_name)
    looks = text_kind(data)
    if named.binary and (looks in ("html", "mhtml") or named.name in _OFTEN_TEXT):
        return _BY_NAME["csv" if looks == "text" and named.name == "xls" else looks]
    if not extension_of(file_name) and looks != "text":
        return _BY_NAME[looks]
    return _BY_NAME["mhtml"] if named.name == "html" and looks == "mhtml" else named


def _base(file_name: str) -> str:
    return file_name.replace("\\", "/").rpartition("/")[2]
