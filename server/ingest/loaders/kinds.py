"""What a file is by its first bytes, whatever its name says."""

from __future__ import annotations

import io
import re
import zipfile

from server.ingest.loaders.archive import UNREADABLE
from server.ingest.loaders.encoding import begins

_RTF = b"{\\rtf"
_PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"II*\x00", b"MM\x00*")
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ZIPS = (b"PK\x03\x04", b"PK\x05\x06")
# Streams in an OLE container that tell which program wrote it; the names are UTF-16 in its directory.
_OLE_KINDS = (
    ("__properties_version1.0", "msg"),
    ("EncryptedPackage", "encrypted"),
    ("WordDocument", "doc"),
    ("PowerPoint Document", "doc"),
    ("Workbook", "xls"),
    ("Book", "xls"),
)
_FOREIGN = (
    (b"\x1f\x8b", "gzip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x7fELF", "ELF"),
    (b"MZ\x90\x00", "exe"),
    (b"\xffWPC", "WordPerfect"),
    (b"SQLite format 3\x00", "SQLite"),
    (b"OggS", "ogg"),
    (b"fLaC", "flac"),
    (b"ID3", "mp3"),
    (b"\x00\x00\x01\x00", "ico"),
    (b"\xca\xfe\xba\xbe", "class"),
    (b"PAR1", "parquet"),
    (b"wOFF", "woff"),
    (b"\x1aE\xdf\xa3", "matroska"),
)
_HTML = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.I | re.S)
_MAIL = re.compile(rb"(?:From - |From:|Received:|Return-Path:|MIME-Version:|Subject:|Date:|Message-ID:)", re.I)


def kind_of(data: bytes) -> str:
    """The loader's name for contents that announce themselves; "" for others, text for instance.

    "encrypted", and "foreign:…" with the name of the format, are kinds that nothing here can read.
    """
    if data.startswith(b"%PDF-"):
        return "pdf"
    if data.startswith(_RTF):
        return "rtf"
    if (
        any(begins(data, magic) for magic in _PICTURES)
        or data[8:12] == b"WEBP"
        or (data[:2] == b"BM" and data[6:10] == bytes(4))
    ):
        return "image"
    if data.startswith(_ZIPS):
        return _zip_kind(data)
    if data.startswith(_OLE):
        return _ole_kind(data)
    if data[4:8] == b"ftyp":
        return "foreign:mp4"
    return next((f"foreign:{name}" for magic, name in _FOREIGN if begins(data, magic)), "")


def text_kind(data: bytes) -> str:
    """The loader's name for text that is markup or mail by its looks; "text" for any other."""
    head = data[:4096].lstrip(b"\xef\xbb\xbf \r\n\t")
    if _MAIL.match(head):
        return "mhtml" if b"multipart/related" in data[:4096].lower() else "mail"
    if _HTML.match(head):
        return "html"
    return "xml" if head.startswith(b"<?xml") else "text"


def _zip_kind(data: bytes) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = set(archive.namelist())
            declared = _mimetype(archive) if "mimetype" in names else ""
    except UNREADABLE:
        return "broken zip"
    if "xl/workbook.bin" in names:
        return "foreign:xlsb"
    for part, kind in (("word/", "docx"), ("ppt/", "pptx"), ("xl/", "xlsx")):
        if "[Content_Types].xml" in names and any(name.startswith(part) for name in names):
            return kind
    if "epub" in declared or "META-INF/container.xml" in names:
        return "epub"
    return "odf" if "opendocument" in declared else "zip"


def _mimetype(archive: zipfile.ZipFile) -> str:
    with archive.open("mimetype") as stream:
        return stream.read(100).decode("ascii", "replace")


def _ole_kind(data: bytes) -> str:
    # The directory may lie anywhere in the file, and its entries are 64 bytes of name each.
    for stream, kind in _OLE_KINDS:
        if f"{stream}\x00".encode("utf-16-le") in data:
            return kind
    return ""
