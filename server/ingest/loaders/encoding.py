"""Bytes to text, whatever charset they are in."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from mmap import mmap

from server.ingest.loaders.base import damaged
from server.ingest.loaders.charsets import CANDIDATES, score

BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_BINARY_MAGIC = (
    b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"PK\x03\x04", b"%PDF-", b"\x7fELF", b"MZ\x90",
    b"\xd0\xcf\x11\xe0", b"\x1f\x8b\x08", b"7z\xbc\xaf", b"Rar!", b"RIFF", b"OggS", b"ID3",
)  # fmt: skip
_SAMPLE = 1 << 16
_SCORED = 1 << 14
_TERMINAL_COLOUR = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")
_NEWLINE = re.compile(r"\r\n?|\f")
_FROM_HIGH_BYTE = re.compile(rb"[\x00-\x7f]?[\x80-\xff][^\n]{0,16000}")
HIGH_BYTES = bytes(range(0x80, 0x100))
_MIN_SCORE = 0.12
_DECLARED_BONUS = 0.15
_DIRT = 0.15
_LEGACY_DIRT = 0.02


def decode(data: bytes, declared: str | None = None) -> str:
    """The text of a file: line ends are "\\n"; BOM, NUL and control characters are gone.

    `declared` is the charset that the file claims for itself; it is believed only when the bytes agree.
    Bytes that are almost UTF-8 stay UTF-8 with U+FFFD for what is broken. Raises DamagedFile when the
    bytes are no text in any charset.
    """
    if any(begins(data, magic) for magic in _BINARY_MAGIC):
        raise damaged("内容是二进制数据，不是文本", "its content is binary, not text")
    text, tolerated = _unicode(data), _DIRT
    if text is None:
        # Nothing proves that the bytes are text at all, so they have to look more like it.
        text, tolerated = _legacy(data, _python_codec(declared)), _LEGACY_DIRT
    if text is None or _dirt(text) > tolerated:
        raise damaged("内容不是文本，或编码无法识别", "not text, or in an unknown encoding")
    return clean(text)


def begins(data: bytes, magic: bytes) -> bool:
    """Whether the data begins with the mark of a binary format and is not text that happens to, as "ID3 tags" does."""
    return data.startswith(magic) and (not magic.isascii() or b"\0" in data[:4096])


def clean(text: str) -> str:
    """`text` with "\\n" line ends and without BOMs, NULs, control characters and lone surrogates."""
    text = _NEWLINE.sub("\n", text)
    text = _CONTROL.sub("", _TERMINAL_COLOUR.sub("", text))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def _unicode(data: bytes) -> str | None:
    """The text when the bytes are in a Unicode encoding, or in one that announces itself."""
    for bom, codec in BOMS:
        if data.startswith(bom):
            return data[len(bom) :].decode(codec, "replace")
    if b"\x1b$" in data and (text := _strict(data, "iso2022_jp_2")) is not None:
        return text
    wide = _wide_codec(data)
    return data.decode(wide, "replace") if wide else _utf8(data)


def _wide_codec(data: bytes) -> str | None:
    """UTF-16 or UTF-32 without a BOM, told by where the NUL bytes stand."""
    sample = data[: _SAMPLE // 4 * 4]
    quarter = len(sample) // 4
    nuls = sample.count(0)
    # A few NULs in what is UTF-8 are dirt; text in UTF-16 that is valid UTF-8 is half NULs.
    if not nuls or quarter < 1 or (6 * nuls < len(sample) and _strict(data, "utf-8") is not None):
        return None
    shares = [sample[i::4].count(0) / max(1, quarter) for i in range(4)]
    if min(shares[2], shares[3]) > 0.9 and shares[0] < 0.1:
        return "utf-32-le"
    if min(shares[0], shares[1]) > 0.9 and shares[3] < 0.1:
        return "utf-32-be"
    even, odd = (shares[0] + shares[2]) / 2, (shares[1] + shares[3]) / 2
    if odd > 0.02 and even < odd / 20 and _is_prose(sample, "utf-16-le"):
        return "utf-16-le"
    if even > 0.02 and odd < even / 20 and _is_prose(sample, "utf-16-be"):
        return "utf-16-be"
    return None


def _is_prose(sample: bytes, codec: str) -> bool:
    text = sample[: len(sample) // 2 * 2].decode(codec, "replace")
    ordinary = sum(char.isprintable() or char.isspace() for char in text)
    return ordinary > 0.97 * len(text)


def _utf8(data: bytes) -> str | None:
    text = _strict(data, "utf-8")
    if text is not None:
        return text
    text = data.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    sound = len(text) - broken - len(data.translate(None, HIGH_BYTES)) if broken < len(text) // 20 else 0
    # Other charsets hardly ever form valid multi-byte sequences; many beside few breaks are damage.
    return text if sound >= 20 * broken else None


def _legacy(data: bytes, declared: str | None) -> str | None:
    """The text in the charset that makes the best prose of the bytes; None when none does."""
    for name in likely_charsets(data, declared):
        text = _strict(data, name)
        if text is None and name in ("cp1252", "cp949", "cp932"):
            text = _with_few_losses(data, name)
        if text is not None:
            return text
    return None


def likely_charsets(data: bytes | mmap, declared: str | None = None) -> Iterator[str]:
    """Codecs in which bytes that are not Unicode look like prose, the best first; not all of the bytes need fit."""
    sample = b"\n".join(_samples(data))
    head = data[:_SCORED]
    points = {name: _sample_score(head if name.startswith("utf") else sample, name) for name in CANDIDATES}
    if declared:
        points[declared] = points.get(declared, 0.0) + _DECLARED_BONUS
    return iter([name for name in sorted(points, key=lambda name: -points[name]) if points[name] >= _MIN_SCORE])


def _samples(data: bytes | mmap) -> Iterator[bytes]:
    """Lines from their first byte above 0x7F on: where charsets differ; about 32 KB at most."""
    taken = 0
    for match in _FROM_HIGH_BYTE.finditer(data):
        yield match.group()
        taken += len(match.group())
        if taken > _SCORED:
            return


def _sample_score(sample: bytes, codec: str) -> float:
    text = sample.decode(codec, "replace")
    broken = text.count("\ufffd")
    high = sum(char > "\x7f" for char in text)
    return score(text, codec) - 3.0 * broken / max(1, high)


def _with_few_losses(data: bytes, codec: str) -> str | None:
    text = data.decode(codec, "replace")
    return text if text.count("\ufffd") * 100 < len(text) else None


def _strict(data: bytes, codec: str) -> str | None:
    try:
        return data.decode(codec)
    except (UnicodeDecodeError, LookupError):
        return None


_SUPERSETS = {
    "gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs", "shift_jis": "cp932",
    "euc_kr": "cp949", "iso8859-1": "cp1252", "ascii": "cp1252",
}  # fmt: skip


def _python_codec(declared: str | None) -> str | None:
    """The codec for a declared charset, as browsers read the name: as its largest superset."""
    try:
        name = codecs.lookup(declared.strip()).name if declared else None
    except (LookupError, ValueError):
        return None
    # Unicode was tried before, and some codecs of Python are no charsets at all (hex, rot13).
    if name is None or name.startswith("utf") or not codecs.lookup(name)._is_text_encoding:
        return None
    return _SUPERSETS.get(name, name)


def _dirt(text: str) -> float:
    """The share of characters that no text has: controls, breaks."""
    sample = text if len(text) <= 2 * _SAMPLE else text[:_SAMPLE] + text[-_SAMPLE:]
    strange = len(_CONTROL.findall(_TERMINAL_COLOUR.sub("", sample))) - sample.count("\ufeff") + sample.count("\ufffd")
    return strange / max(1, len(sample))
