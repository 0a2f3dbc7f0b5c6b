"""The smallest PDFs that hold lines of text, in the clear or encrypted with RC4."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence

_PAD = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
_ID = b"0123456789abcdef"
_FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
# No program needs the font itself to know its characters: their codes are UTF-16.
_CHINESE = (
    b"<< /Type /Font /Subtype /Type0 /BaseFont /STSong-Light /Encoding /UniGB-UTF16-H /DescendantFonts [<< /Type /Font "
    b"/Subtype /CIDFontType0 /BaseFont /STSong-Light /CIDSystemInfo << /Registry (Adobe) /Ordering (GB1) "
    b"/Supplement 5 >> >>] >>"
)

PICTURE = None
"""A page without text, on which something is drawn."""


def make_pdf(pages: Sequence[Sequence[str] | bytes | None], rotate: int = 0, password: str | None = None) -> bytes:
    """A PDF with one page for each list of lines; a password (that may be empty) encrypts it.

    Bytes are the content of a page as it lies in the file, deflated.
    """
    owner, user, key = _security(password or "")
    objects: list[bytes] = []
    kids = b" ".join(b"%d 0 R" % (4 + 2 * index) for index in range(len(pages)))
    objects.append(b"<< /Type /Catalog /Pages 2 0 R >>")
    objects.append(b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)))
    objects.append(_FONT)
    for index, lines in enumerate(pages):
        number = 4 + 2 * index
        page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Rotate %d /Contents %d 0 R" % (
            rotate,
            number + 1,
        )
        objects.append(page + b" /Resources << /Font << /F1 3 0 R /F2 %s >> >> >>" % _CHINESE)
        stream = _content(lines)
        if password is not None:
            stream = _rc4(hashlib.md5(key + (number + 1).to_bytes(3, "little") + b"\0\0").digest()[:10], stream)
        packed = b" /Filter /FlateDecode" if isinstance(lines, bytes) else b""
        objects.append(b"<< /Length %d%s >>\nstream\n%s\nendstream" % (len(stream), packed, stream))
    extra = b""
    if password is not None:
        values = (owner.hex().encode(), user.hex().encode())
        objects.append(b"<< /Filter /Standard /V 1 /R 2 /O <%s> /U <%s> /P -4 >>" % values)
        extra = b" /Encrypt %d 0 R /ID [<%s> <%s>]" % (len(objects), _ID.hex().encode(), _ID.hex().encode())
    return _file(objects, extra)


def placed(texts: Iterable[tuple[float, float, str]]) -> bytes:
    """The content of a page with these texts, each at x and y, written in this order."""
    shown = (
        f"BT /F1 10 Tf {x} {y} Td ({text}) Tj ET"
        if text.isascii()
        else f"BT /F2 10 Tf {x} {y} Td <{text.encode('utf-16-be').hex()}> Tj ET"
        for x, y, text in texts
    )
    return zlib.compress("\n".join(shown).encode())


def _content(lines: Sequence[str] | bytes | None) -> bytes:
    if isinstance(lines, bytes):
        return lines
    if lines is PICTURE:
        return b"20 20 400 400 re f"
    assert lines is not None
    shown = (line.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)") for line in lines)
    body = " T* ".join(f"({line}) Tj" for line in shown)
    return f"BT /F1 10 Tf 14 TL 50 780 Td {body} ET".encode("cp1252")


def _file(objects: list[bytes], extra: bytes) -> bytes:
    out, offsets = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer\n<< /Size %d /Root 1 0 R%s >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, extra, start)
    return bytes(out)


def _security(password: str) -> tuple[bytes, bytes, bytes]:
    padded = (password.encode() + _PAD)[:32]
    owner = _rc4(hashlib.md5((b"owner" + _PAD)[:32]).digest()[:5], padded)
    key = hashlib.md5(padded + owner + (-4).to_bytes(4, "little", signed=True) + _ID).digest()[:5]
    return owner, _rc4(key, _PAD), key


def _rc4(key: bytes, data: bytes) -> bytes:
    state, j = list(range(256)), 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    out, i, j = bytearray(), 0, 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)
