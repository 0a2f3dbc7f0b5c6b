"""The packed RTF of Outlook mails (MS-OXRTFCP)."""

from __future__ import annotations

import struct

from server.ingest.loaders.base import damaged

_DICTIONARY = (
    b"{\\rtf1\\ansi\\mac\\deff0\\deftab720{\\fonttbl;}{\\f0\\fnil \\froman \\fswiss \\fmodern \\fscript \\fdecor MS "
    b"Sans SerifSymbolArialTimes New RomanCourier{\\colortbl\\red0\\green0\\blue0\r\n\\par \\pard\\plain\\f0\\fs20\\b"
    b"\\i\\u\\tab\\tx"
)
_WINDOW = 4096
_PACKED, _PLAIN = b"LZFu", b"MELA"


def unpack_rtf(data: bytes) -> bytes:
    """The RTF in a stream that Outlook packed; raises DamagedFile."""
    if len(data) < 16:
        raise damaged("邮件正文损坏", "the mail's body is broken")
    size, _, kind, _ = struct.unpack_from("<II4sI", data)
    body = data[16 : size + 4]
    if kind == _PLAIN:
        return body
    if kind != _PACKED:
        raise damaged("邮件正文损坏", "the mail's body is broken")
    return _unpack(body)


def _unpack(body: bytes) -> bytes:
    window = bytearray(_DICTIONARY.ljust(_WINDOW, b"\0"))
    write, at, out = len(_DICTIONARY), 0, bytearray()
    while at < len(body):
        control, at = body[at], at + 1
        for bit in range(8):
            if control >> bit & 1:
                if at + 2 > len(body):
                    return bytes(out)
                token, at = int.from_bytes(body[at : at + 2], "big"), at + 2
                offset, length = token >> 4, (token & 15) + 2
                if offset == write:
                    return bytes(out)
                chosen = [offset + step for step in range(length)]
            elif at < len(body):
                window[write] = body[at]
                at += 1
                chosen = [write]
            else:
                return bytes(out)
            for place in chosen:
                byte = window[place % _WINDOW]
                out.append(byte)
                window[write] = byte
                write = (write + 1) % _WINDOW
    return bytes(out)
