"""What a loader promises, and the words all loaders use when a file cannot be read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.errors import DamagedFile, EmptyDocument, LockedFile, UnsupportedFormat


class Loader(ABC):
    """Turns the bytes of one family of file formats into blocks of text; holds no state.

    `name` is stored with the file; `extensions` are lower case, with the leading dot. The content of a
    `binary` format never is text.
    """

    name: ClassVar[str]
    extensions: ClassVar[frozenset[str]]
    binary: ClassVar[bool] = False

    @abstractmethod
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        """The blocks of the file in reading order; at least one of them holds text.

        Raises EmptyDocument when the file is sound and has no text, DamagedFile when it cannot be read.
        `file_name` is a label: only its extension means anything.
        """

    def unlocked(self, password: str | None) -> Loader:  # noqa: ARG002 - most formats have no passwords
        """The loader for files that this password may open."""
        return self


_told: ContextVar[Callable[[int, int], None] | None] = ContextVar("pages", default=None)


@contextmanager
def pages_told(tell: Callable[[int, int], None]) -> Iterator[None]:
    """Let `tell` know of each page that a loader has read: its number and that of the last one."""
    token = _told.set(tell)
    try:
        yield
    finally:
        _told.reset(token)


def page_read(page: int, pages: int) -> None:
    """For loaders that take a while before they have their first block."""
    if (tell := _told.get()) is not None:
        tell(page, pages)


Read = Callable[[bytes, str], LoadedDocument]
"""Reads a member of a container by its bytes and name; raises LoadError."""


class Container(Loader):
    """A file that holds other files: an archive, a mail with attachments."""

    @abstractmethod
    def load_members(self, data: bytes, read: Read) -> LoadedDocument:
        """As `load`; every file inside is given to `read`, and one that cannot be read becomes a warning."""

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        return self.load_members(data, _refuse)


def _refuse(_data: bytes, file_name: str) -> LoadedDocument:
    raise UnsupportedFormat(f"不读取内含文件 / files inside are not read: {file_name}")


def damaged(zh: str, en: str) -> DamagedFile:
    """The error for a file that cannot be read; both reasons are shown to the user."""
    return DamagedFile(f"文件无法读取：{zh} / cannot read the file: {en}")


def locked(password: str | None) -> LockedFile:
    """The error for an encrypted file that `password` does not open; the password is not told."""
    if password is None:
        return LockedFile(
            "文件已加密，需要密码：上传时用 passwords 字段给出，或请去除密码后再上传 / encrypted, needs its password: "
            'send it in the field passwords, {"file name": "password"}, or remove it from the file'
        )
    return LockedFile(
        "密码不正确，请用 passwords 字段给出正确的密码 / wrong password: send the right one in the field passwords"
    )


def empty(zh: str = "文件中没有文本", en: str = "the file holds no text") -> EmptyDocument:
    """The error for a sound file without any text."""
    return EmptyDocument(f"{zh} / {en}")


def finish(blocks: Iterable[Block], loader: str, warnings: Iterable[str] = ()) -> LoadedDocument:
    """The loaded document made of those blocks that hold text; raises EmptyDocument when none does."""
    kept = tuple(block for block in blocks if block.text.strip())
    if not kept:
        raise empty()
    return LoadedDocument(blocks=kept, loader=loader, warnings=tuple(warnings))


def needs_extra(what: str, extra: str) -> UnsupportedFormat:
    """The error for a file that an optional package would read."""
    return UnsupportedFormat(
        f"{what}：服务器未安装所需组件，请管理员运行 pip install 'zhiku[{extra}]' / "
        f"unsupported here: ask the administrator to run pip install 'zhiku[{extra}]'"
    )


def extension_of(file_name: str) -> str:
    """The lower-cased extension with its dot, or "" when there is none."""
    base = file_name.replace("\\", "/").rpartition("/")[2]
    stem, dot, extension = base.rpartition(".")
    return f".{extension.lower()}" if dot and stem else ""
