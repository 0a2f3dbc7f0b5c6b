"""Zip archives: every file inside that can be read, under its name."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.errors import DamagedFile, EmptyDocument, LoadError
from server.ingest.loaders.archive import UNREADABLE, is_encrypted, is_unsafe, member_name, open_zip, unreadable_member
from server.ingest.loaders.base import Container, Read, damaged, finish
from server.ingest.loaders.members import member_blocks

_JUNK = ("__MACOSX/", ".DS_Store", "Thumbs.db", "desktop.ini")


class ZipLoader(Container):
    """Members are never written to a disk. Links, and names that lead elsewhere, are refused one by one."""

    name = "zip"
    extensions = frozenset({".zip"})
    binary = True

    @override
    def load_members(self, data: bytes, read: Read) -> LoadedDocument:
        warnings: list[str] = []
        with open_zip(data) as archive:
            blocks = list(_blocks(archive, read, warnings))
        if not blocks and warnings:
            raise DamagedFile(f"压缩包内没有可读的文件 / nothing in the archive could be read: {warnings[0]}")
        return finish(blocks, self.name, warnings)


def _blocks(archive: zipfile.ZipFile, read: Read, warnings: list[str]) -> Iterator[Block]:
    for member in archive.infolist():
        name = member_name(member)
        if member.is_dir() or name.startswith(_JUNK[0]) or name.endswith(_JUNK[1:]):
            continue
        try:
            yield from member_blocks(_bytes(archive, member, name), name, read, warnings)
        except EmptyDocument:
            continue
        except LoadError as error:
            warnings.append(f"{name}: {error.message}")


def _bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> bytes:
    if is_unsafe(member):
        raise damaged("路径越界或是符号链接，已拒绝", "a link, or its path leads out of the archive; refused")
    if is_encrypted(member):
        raise damaged("已加密", "encrypted")
    try:
        return archive.read(member)
    except UNREADABLE as error:
        raise unreadable_member(name, error) from error
