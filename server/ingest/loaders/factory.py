"""Which loader reads which file."""

from __future__ import annotations

from server.errors import UnsupportedFormat
from server.ingest.loaders.base import Loader, extension_of
from server.ingest.loaders.docx import DocxLoader
from server.ingest.loaders.html import HtmlLoader
from server.ingest.loaders.json import JsonLoader
from server.ingest.loaders.markdown import MarkdownLoader
from server.ingest.loaders.pdf import PdfLoader
from server.ingest.loaders.table import TableLoader
from server.ingest.loaders.text import TextLoader

_LOADERS: tuple[Loader, ...] = (
    TextLoader(),
    MarkdownLoader(),
    HtmlLoader(),
    TableLoader(),
    JsonLoader(),
    PdfLoader(),
    DocxLoader(),
)
_BY_EXTENSION: dict[str, Loader] = {extension: loader for loader in _LOADERS for extension in loader.extensions}

SUPPORTED_EXTENSIONS: frozenset[str] = frozenset(_BY_EXTENSION)
"""Every extension that can be loaded: lower case, with the leading dot."""


def loader_for(file_name: str) -> Loader:
    """The loader for this file by its extension, in any case; raises UnsupportedFormat.

    The same object is returned every time; loaders may be used from several threads.
    """
    extension = extension_of(file_name)
    loader = _BY_EXTENSION.get(extension)
    if loader is None:
        shown = extension or "(无扩展名 / no extension)"
        supported = " ".join(sorted(SUPPORTED_EXTENSIONS))
        raise UnsupportedFormat(f"暂未支持的文件格式 {shown} / unsupported format {shown}, supported: {supported}")
    return loader
