"""Text files that are too large to be held in memory as one string several times over."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from mmap import mmap

from server.ingest.loaders.base import damaged, page_read
from server.ingest.loaders.encoding import BOMS, HIGH_BYTES, clean, decode, likely_charsets

LARGE = 16 << 20
"""Bytes from which on a text is decoded in parts."""
_PART = 4 << 20
_PARAGRAPH_END = "\n\n"


def decode_parts(data: bytes | mmap) -> Iterator[str]:
    """The text as `decode` gives it, in parts that end where a paragraph does, or a line if there is none."""
    if len(data) <= LARGE:
        yield decode(data[:])
        return
    codec, start = _codec(data)
    decoder = codecs.getincrementaldecoder(codec)("replace")
    kept = ""
    for at in range(start, len(data), _PART):
        text = kept + decoder.decode(data[at : at + _PART], at + _PART >= len(data)).replace("\r\n", "\n")
        cut = text.rfind(_PARAGRAPH_END) + 1 or text.rfind("\n") + 1 or max(0, len(text) - 1)
        yield clean(text[:cut])
        kept = text[cut:]
    yield clean(kept)


def _codec(data: bytes | mmap) -> tuple[str, int]:
    """The codec of the whole file, and where the text begins."""
    for bom, codec in BOMS:
        if data[: len(bom)] == bom:
            return codec, len(bom)
    decode(data[: data.rfind(b"\n", 0, _PART) + 1 or _PART])  # binary data is refused by its beginning
    fitting = (name for name in ("utf-8", *likely_charsets(data)) if _fits(data, name))
    codec = next(fitting, "")
    if not codec:
        raise damaged("内容不是文本，或编码无法识别", "not text, or in an unknown encoding")
    return codec, 0


def _fits(data: bytes | mmap, codec: str) -> bool:
    """Whether nothing is broken in this codec; next to nothing for UTF-8, as it is for smaller files."""
    decoder = codecs.getincrementaldecoder(codec)("replace")
    broken = sound = 0
    for at in range(0, len(data), _PART):
        part = data[at : at + _PART]
        page_read(at // _PART + 1, len(data) // _PART + 1)
        text = decoder.decode(part, at + _PART >= len(data))
        lost = text.count("\ufffd")
        broken += lost
        sound += len(text) - lost - len(part.translate(None, HIGH_BYTES))
    return not broken or (codec == "utf-8" and sound >= 20 * broken)
