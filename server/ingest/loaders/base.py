"""What a loader promises, and the words all loaders use when a file cannot be read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from server.domain import Block, LoadedDocument
from server.errors import DamagedFile, EmptyDocument


class Loader(ABC):
    """Turns the bytes of one family of file formats into blocks of text; holds no state.

    `name` is stored with the file; `extensions` are lower case, with the leading dot.
    """

    name: ClassVar[str]
    extensions: ClassVar[frozenset[str]]

    @abstractmethod
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        """The blocks of the file in reading order; at least one of them holds text.

        Raises EmptyDocument when the file is sound and has no text, DamagedFile when it cannot be read.
        `file_name` is a label: only its extension means anything.
        """


def damaged(zh: str, en: str) -> DamagedFile:
    """The error for a file that cannot be read; both reasons are shown to the user."""
    return DamagedFile(f"文件无法读取：{zh} / cannot read the file: {en}")


def empty(zh: str = "文件中没有文本", en: str = "the file holds no text") -> EmptyDocument:
    """The error for a sound file without any text."""
    return EmptyDocument(f"{zh} / {en}")


def finish(blocks: Iterable[Block], loader: str, warnings: Iterable[str] = ()) -> LoadedDocument:
    """The loaded document made of those blocks that hold text; raises EmptyDocument when none does."""
    kept = tuple(block for block in blocks if block.text.strip())
    if not kept:
        raise empty()
    return LoadedDocument(blocks=kept, loader=loader, warnings=tuple(warnings))


def extension_of(file_name: str) -> str:
    """The lower-cased extension with its dot, or "" when there is none."""
    base = file_name.replace("\\", "/").rpartition("/")[2]
    stem, dot, extension = base.rpartition(".")
    return f".{extension.lower()}" if dot and stem else ""
