"""Zip archives: every file inside that can be read, under its name."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.errors import DamagedFile, EmptyDocument, LoadError
from server.ingest.loaders.archive import UNREADABLE, is_encrypted, is_unsafe, member_name, open_zip, unreadable_member
from server.ingest.loaders.base import Container, Loader, Read, damaged, finish, locked
from server.ingest.loaders.members import member_blocks
from server.names import is_junk

_AES = 99
"""The method under which encrypted members of WinZip and 7-Zip hide the one they are packed with."""


class ZipLoader(Container):
    """Members are never written to a disk. Links, and names that lead elsewhere, are refused one by one."""

    name = "zip"
    extensions = frozenset({".zip"})
    binary = True

    def __init__(self, password: str | None = None) -> None:
        self._password = password

    @override
    def unlocked(self, password: str | None) -> Loader:
        return ZipLoader(password)

    @override
    def load_members(self, data: bytes, read: Read) -> LoadedDocument:
        warnings: list[str] = []
        with open_zip(data) as archive:
            blocks = list(_blocks(archive, self._password, read, warnings))
        if not blocks and warnings:
            raise DamagedFile(f"压缩包内没有可读的文件 / nothing in the archive could be read: {warnings[0]}")
        return finish(blocks, self.name, warnings)


def _blocks(archive: zipfile.ZipFile, password: str | None, read: Read, warnings: list[str]) -> Iterator[Block]:
    for member in archive.infolist():
        name = member_name(member)
        if member.is_dir() or is_junk(name):
            continue
        try:
            yield from member_blocks(_bytes(archive, member, name, password), name, read, warnings)
        except EmptyDocument:
            continue
        except LoadError as error:
            warnings.append(f"{name}: {error.message}")


def _bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, password: str | None) -> bytes:
    if is_unsafe(member):
        raise damaged("路径越界或是符号链接，已拒绝", "a link, or its path leads out of the archive; refused")
    if is_encrypted(member):
        return _decrypted(archive, member, password)
    try:
        return archive.read(member)
    except UNREADABLE as error:
        raise unreadable_member(name, error) from error


def _decrypted(archive: zipfile.ZipFile, member: zipfile.ZipInfo, password: str | None) -> bytes:
    if password is None:
        raise locked(None)
    try:
        if member.compress_type == _AES:
            return _aes_decrypted(archive, member, password)
        return archive.read(member, password.encode())
    except UNREADABLE:  # one wrong password in 256 is only noticed by the checksum
        raise locked(password) from None


def _aes_decrypted(archive: zipfile.ZipFile, member: zipfile.ZipInfo, password: str) -> bytes:
    from pyzipper import AESZipFile  # here, because its ciphers take a third of a second to load

    with AESZipFile(archive.fp) as twin:
        return bytes(twin.read(member.filename, password.encode()))
