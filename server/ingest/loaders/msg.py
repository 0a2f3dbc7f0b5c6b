"""Outlook mails (msg): property streams in an OLE container."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.base import Container, Read, damaged, finish
from server.ingest.loaders.encoding import clean, decode
from server.ingest.loaders.headings import HEADING
from server.ingest.loaders.html import decode_html, html_blocks
from server.ingest.loaders.mail import attachment_blocks, mail_head
from server.ingest.loaders.rtf import rtf_text
from server.ingest.loaders.rtf_packed import unpack_rtf
from server.ingest.loaders.text import paragraphs

# MAPI property tags (MS-OXPROPS).
_SUBJECT, _SENDER, _SENDER_MAIL, _TO, _CC = "0037", "0C1A", "0C1F", "0E04", "0E03"
_BODY, _HTML, _RTF = "1000", "1013", "1009"
_NAME, _SHORT_NAME, _SHOWN_NAME, _ATTACHED = "3707", "3704", "3001", "3701"
_SENT, _RECEIVED = 0x00390040, 0x0E060040
_UNICODE, _BYTES, _BINARY = "001F", "001E", "0102"
_PROPERTIES = "__properties_version1.0"
_MAIL = "__substg1.0_3701000D"
"""The storage of a mail that is attached as such."""
_ROOT_HEADER, _INNER_HEADER = 32, 24
_DEPTH = 3
"""How many mails may lie in each other inside one file."""
_EPOCH = datetime(1601, 1, 1, tzinfo=UTC)


class MsgLoader(Container):
    """As other mails: subject, who and when, body, attachments."""

    name = "msg"
    extensions = frozenset({".msg"})
    binary = True

    @override
    def load_members(self, data: bytes, read: Read) -> LoadedDocument:
        import olefile

        try:
            with olefile.OleFileIO(io.BytesIO(data)) as container:
                mail = _Mail(container)
                warnings: list[str] = []
                blocks = [*mail.head(), *mail.body(), *mail.attachments(read, warnings)]
        except (OSError, ValueError, IndexError, KeyError, TypeError, AttributeError, struct.error) as error:
            raise damaged("Outlook 邮件损坏", f"broken Outlook mail ({type(error).__name__})") from error
        return finish(blocks, self.name, warnings)


class _Mail:
    """The mail of a container, or one that lies in the storage `at` of it."""

    def __init__(self, container: Any, at: tuple[str, ...] = (), depth: int = 0) -> None:
        self._container = container
        self._at = at
        self._depth = depth

    def head(self) -> Iterator[Block]:
        """Subject, sender, recipients and date."""
        sender = " ".join(filter(None, (self._string(_SENDER), self._string(_SENDER_MAIL))))
        headers = {"From": sender, "To": self._string(_TO), "Cc": self._string(_CC), "Date": self._date()}
        yield from mail_head(self._string(_SUBJECT), headers)

    def body(self) -> Iterator[Block]:
        """The plain text if there is one, else the HTML, else the RTF."""
        subject = self._string(_SUBJECT)
        path = (subject,) if subject else ()
        for block in self._text_blocks():
            yield Block(block.text, headings=(*path, *block.headings), whole=block.whole, metadata=block.metadata)

    def attachments(self, read: Read, warnings: list[str]) -> Iterator[Block]:
        """The files and mails attached."""
        level = len(self._at)
        paths = (path for path in self._container.listdir() if tuple(path[:level]) == self._at)
        for folder in sorted({path[level] for path in paths if path[level].startswith("__attach")}):
            name = self._string(_NAME, folder) or self._string(_SHORT_NAME, folder)
            if self._container.exists([*self._at, folder, _MAIL]):
                yield from self._attached_mail(folder, name, read, warnings)
                continue
            content = self._stream(_ATTACHED, _BINARY, folder)
            if name and content:
                yield from attachment_blocks(content, name, read, warnings)

    def _attached_mail(self, folder: str, name: str, read: Read, warnings: list[str]) -> Iterator[Block]:
        inner = _Mail(self._container, (*self._at, folder, _MAIL), self._depth + 1)
        name = name or self._string(_SHOWN_NAME, folder) or inner._string(_SUBJECT) or "mail"
        if inner._depth > _DEPTH:
            warnings.append(f"{name}: 邮件嵌套超过 {_DEPTH} 层 / mails nested deeper than {_DEPTH}")
            return
        yield Block(name, headings=(name,), metadata={"kind": HEADING})
        for block in (*inner.head(), *inner.body(), *inner.attachments(read, warnings)):
            yield replace(block, headings=(name, *block.headings))

    def _text_blocks(self) -> Iterator[Block]:
        if text := self._string(_BODY):
            yield from paragraphs(text)
        elif page := self._stream(_HTML, _BINARY):
            yield from html_blocks(decode_html(page))
        elif page_text := self._string(_HTML):
            yield from html_blocks(page_text)
        elif packed := self._stream(_RTF, _BINARY):
            yield from paragraphs(rtf_text(unpack_rtf(packed)))

    def _string(self, tag: str, folder: str = "") -> str:
        wide = self._stream(tag, _UNICODE, folder)
        if wide:
            return clean(wide.decode("utf-16-le", "replace")).strip()
        narrow = self._stream(tag, _BYTES, folder)
        return decode(narrow).strip() if narrow else ""

    def _stream(self, tag: str, kind: str, folder: str = "") -> bytes:
        path = [*self._at, *([folder] if folder else []), f"__substg1.0_{tag}{kind}"]
        if not self._container.exists(path):
            return b""
        with self._container.openstream(path) as stream:
            return bytes(stream.read())

    def _date(self) -> str:
        with self._container.openstream([*self._at, _PROPERTIES]) as stream:
            table = stream.read()[_INNER_HEADER if self._at else _ROOT_HEADER :]
        for at in range(0, len(table) - 15, 16):
            tag, _flags, value = struct.unpack_from("<IIQ", table, at)
            if tag in (_SENT, _RECEIVED):
                return (_EPOCH + timedelta(microseconds=value // 10)).strftime("%Y-%m-%d %H:%M UTC")
        return ""
