"""Mails (eml) and saved web pages (mhtml): both are MIME."""

from __future__ import annotations

import email
import email.policy
from collections.abc import Iterator
from email.errors import MessageError
from email.message import EmailMessage

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.errors import EmptyDocument, LoadError
from server.ingest.loaders.base import Container, Loader, Read, finish
from server.ingest.loaders.encoding import clean, decode
from server.ingest.loaders.headings import HEADING
from server.ingest.loaders.html import decode_html, html_blocks
from server.ingest.loaders.members import member_blocks
from server.ingest.loaders.text import paragraphs

_HEADERS = ("From", "To", "Cc", "Date")
_SEALED = frozenset({"application/pgp-encrypted", "application/pgp-signature", "application/pkcs7-signature"})
_BROKEN = (MessageError, ValueError, LookupError, AttributeError, TypeError, IndexError)


class MailLoader(Container):
    """Subject as the heading, who and when, the body as plain text (HTML when there is no other), attachments."""

    name = "mail"
    extensions = frozenset({".eml"})

    @override
    def load_members(self, data: bytes, read: Read) -> LoadedDocument:
        message = _parse(data)
        warnings: list[str] = []
        body = list(_body(message, warnings))
        attached = list(_attachments(message, read, warnings))
        if message.get_content_type() == "multipart/encrypted" or not (body or attached):
            raise EmptyDocument("邮件没有可读的正文（可能已加密） / the mail has no readable body (encrypted?)")
        subject = header(message, "Subject")
        path = (subject,) if subject else ()
        head = mail_head(subject, {name: header(message, name) for name in _HEADERS})
        return finish([*head, *(_under(block, path) for block in (*body, *attached))], self.name, warnings)


class MhtmlLoader(Loader):
    """The page itself; pictures and styles saved with it are left out."""

    name = "mhtml"
    extensions = frozenset({".mht", ".mhtml"})

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        pages = (part for part in _parse(data).walk() if part.get_content_type() == "text/html")
        page = next(pages, None)
        return finish(html_blocks(_text(page, page=True)) if page is not None else (), self.name)


def mail_head(subject: str, headers: dict[str, str]) -> Iterator[Block]:
    """The first blocks of any mail: its subject as a heading, and a block with who and when."""
    path = (subject,) if subject else ()
    if subject:
        yield Block(subject, headings=path, metadata={"kind": HEADING})
    yield Block("\n".join(f"{name}: {value}" for name, value in headers.items() if value), headings=path)


def attachment_blocks(data: bytes, name: str, read: Read, warnings: list[str]) -> Iterator[Block]:
    """The blocks of an attachment; one that cannot be read becomes a warning."""
    try:
        yield from member_blocks(data, name, read, warnings)
    except LoadError as error:
        warnings.append(f"{name}: {error.message}")


def header(message: EmailMessage, name: str) -> str:
    """A header as its reader sees it; "" when there is none, or none that can be read."""
    try:
        return clean(" ".join(str(message.get(name, "")).split()))
    except _BROKEN:
        return ""


def _parse(data: bytes) -> EmailMessage:
    # Mailbox files begin with a line that belongs to no header.
    return email.message_from_bytes(data.lstrip(), policy=email.policy.default)


def _under(block: Block, path: tuple[str, ...]) -> Block:
    return Block(block.text, block.page, (*path, *block.headings), block.whole, block.metadata)


def _body(message: EmailMessage, warnings: list[str]) -> Iterator[Block]:
    try:
        part = message.get_body(("plain", "html"))
    except _BROKEN:
        part = None
    if part is None:
        return
    assert isinstance(part, EmailMessage)
    try:
        if part.get_content_type() == "text/html":
            yield from html_blocks(_text(part, page=True))
        else:
            yield from paragraphs(_text(part, page=False))
    except LoadError as error:
        warnings.append(error.message)


def _text(part: EmailMessage, *, page: bool) -> str:
    """The part in its charset as far as its bytes agree with it."""
    data = part.get_payload(decode=True)
    if not isinstance(data, bytes):
        return ""
    charset = part.get_content_charset()
    return decode_html(data) if page and not charset else decode(data, charset)


def _attachments(message: EmailMessage, read: Read, warnings: list[str]) -> Iterator[Block]:
    for number, part in enumerate(_attached_parts(message), start=1):
        kind = part.get_content_type()
        if kind in _SEALED:
            continue
        name = _file_name(part) or (f"{number}.eml" if kind == "message/rfc822" else "")
        data = _content(part)
        # Pictures without a name are the layout of the mail.
        if name and data and not (kind.startswith("image/") and part.get_content_disposition() != "attachment"):
            yield from attachment_blocks(data, name, read, warnings)


def _attached_parts(message: EmailMessage) -> Iterator[EmailMessage]:
    try:
        yield from message.iter_attachments()
    except _BROKEN:
        return


def _file_name(part: EmailMessage) -> str:
    try:
        return clean(part.get_filename() or "").strip()
    except _BROKEN:
        return ""


def _content(part: EmailMessage) -> bytes:
    if part.get_content_type() == "message/rfc822":
        inner = part.get_payload(0)
        return inner.as_bytes() if isinstance(inner, EmailMessage) else b""
    data = part.get_payload(decode=True)
    return data if isinstance(data, bytes) else b""
