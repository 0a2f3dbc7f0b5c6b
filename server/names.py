"""Names from clients are labels, never paths: what may be one, and its canonical form."""

from __future__ import annotations

import hashlib
import re
import unicodedata

from server.errors import InvalidName

REFUSAL = "Don't attack me"
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u200b\u2028-\u202e\u2066-\u2069\ufeff]")
_DRIVE = re.compile(r"^[A-Za-z]:")
_MAX_KB_CHARACTERS = 100
_MAX_FILE_BYTES = 1024
_MAX_PART_BYTES = 255
_SYSTEM = frozenset({"thumbs.db", "desktop.ini", "__macosx"})
_NO_DOCUMENT = (".", "~$")


def _refuse(reason: str) -> InvalidName:
    return InvalidName(f"{REFUSAL}: {reason}")


def _check_characters(name: str) -> None:
    if _CONTROL.search(name) or any("\ud800" <= c <= "\udfff" for c in name):
        raise _refuse("名称含有控制字符 / the name holds control characters")


def kb_label(name: str) -> str:
    """The canonical form of a knowledge base's name.

    Raises:
        InvalidName: it holds a path separator or control characters, is `.` or `..`, or is too long.
    """
    label = unicodedata.normalize("NFC", name).strip()
    _check_characters(label)
    compatible = unicodedata.normalize("NFKC", label)
    if any(c in compatible for c in "/\\") or compatible.strip() in (".", ".."):
        raise _refuse("知识库名称不能包含路径 / a knowledge base's name cannot hold a path")
    if len(label) > _MAX_KB_CHARACTERS:
        raise _refuse(f"知识库名称最多 {_MAX_KB_CHARACTERS} 个字符 / at most {_MAX_KB_CHARACTERS} characters")
    return label


def kb_key(label: str) -> str:
    """What makes two names of knowledge bases the same: case and width do not count."""
    return unicodedata.normalize("NFKC", label).casefold().strip()


def file_label(name: str) -> str:
    """The canonical name of a file: NFC, relative, parts joined by `/`.

    Raises:
        InvalidName: empty, absolute, with `.` or `..` as a part, control characters, or too long.
    """
    label = unicodedata.normalize("NFC", name)
    _check_characters(label)
    label = label.replace("\\", "/")
    if label.startswith("/") or _DRIVE.match(label):
        raise _refuse("文件名必须是相对路径 / the file name must be relative")
    parts = label.split("/")
    if any(unicodedata.normalize("NFKC", part).strip() in ("", ".", "..") for part in parts):
        raise _refuse("文件名含有空的或指向上级的部分 / the file name has an empty part or one that leads upwards")
    encoded = [part.encode() for part in parts]
    if any(len(part) > _MAX_PART_BYTES for part in encoded) or len(label.encode()) > _MAX_FILE_BYTES:
        raise _refuse(f"文件名过长 / the file name is too long (a part has at most {_MAX_PART_BYTES} bytes)")
    return label


def is_junk(path: str) -> bool:
    """Whether what lies at this path in a folder or an archive is no document of anybody: hidden, the lock of an office
    program, or written there by an operating system."""
    parts = (part for part in path.replace("\\", "/").split("/") if part.strip("."))
    return any(part.startswith(_NO_DOCUMENT) or part.casefold() in _SYSTEM for part in parts)


def file_key(label: str) -> str:
    """A key of fixed length for a canonical file name, for indexes that limit theirs."""
    return hashlib.sha256(label.encode()).hexdigest()
