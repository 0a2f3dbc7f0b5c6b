"""Opening zip archives, office formats among them, without letting them fill the memory or the disk."""

from __future__ import annotations

import io
import lzma
import stat
import zipfile
import zlib

from server.errors import DamagedFile
from server.ingest.loaders.base import damaged
from server.ingest.loaders.encoding import decode

MAX_UNPACKED = 400 * 1024 * 1024
"""Bytes that all members of an archive may hold together."""
MAX_RATIO = 200
"""How many times smaller an archive may be than what it holds."""
MAX_MEMBERS = 20_000
"""Entries of one archive."""

UNREADABLE = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OSError, EOFError, KeyError,
    zlib.error, lzma.LZMAError,
)  # fmt: skip
"""What the zip reader raises on members that are broken, encrypted or packed in an unknown way."""

# Small archives of very regular XML compress better than the ratio allows, and do no harm.
_HARMLESS = 10 * 1024 * 1024
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_UTF8_NAME = 0x800


def open_archive(data: bytes) -> zipfile.ZipFile:
    """The archive that an office file or a book is; raises DamagedFile as `open_zip`, and when it is encrypted."""
    if data.startswith(_OLE):
        raise damaged(
            "文件已加密，或是旧版 Office 格式，请去除密码并另存为新格式",
            "encrypted, or in an old Office format; remove the password or save it in the new format",
        )
    archive = open_zip(data)
    if any(is_encrypted(member) for member in archive.infolist()):
        raise damaged("压缩包已加密", "the archive is encrypted")
    return archive


def open_zip(data: bytes) -> zipfile.ZipFile:
    """The archive in `data`; raises DamagedFile when it is none, or would unpack too much.

    Sizes are those of the directory; the zip reader never unpacks a member beyond its declared size.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except UNREADABLE as error:
        raise damaged("文件损坏或不完整（不是有效的压缩包）", f"broken or cut off ({error})") from error
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise damaged(f"压缩包内文件超过 {MAX_MEMBERS} 个", f"the archive has more than {MAX_MEMBERS} members")
    unpacked = sum(member.file_size for member in members)
    if unpacked > MAX_UNPACKED or (unpacked > _HARMLESS and unpacked > MAX_RATIO * len(data)):
        raise damaged(
            f"解压后达 {unpacked >> 20} MB，疑似压缩炸弹", f"unpacks to {unpacked >> 20} MB, maybe a zip bomb"
        )
    return archive


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of a member; raises DamagedFile when it is not there or cannot be unpacked."""
    try:
        return archive.read(name)
    except UNREADABLE as error:
        raise unreadable_member(name, error) from error


def unreadable_member(name: str, error: Exception) -> DamagedFile:
    """The error for a member that cannot be unpacked."""
    return damaged(f"压缩包内 {name} 损坏或缺失", f"{name} in it is broken or missing ({type(error).__name__})")


def is_encrypted(member: zipfile.ZipInfo) -> bool:
    """Whether a password is needed."""
    return bool(member.flag_bits & 1)


def is_unsafe(member: zipfile.ZipInfo) -> bool:
    """Whether a member is a link, or its name leads out of the folder that it would be unpacked into."""
    name = member.filename.replace("\\", "/")
    leaves = name.startswith("/") or name[1:2] == ":" or ".." in name.split("/")
    return leaves or stat.S_ISLNK(member.external_attr >> 16)


def member_name(member: zipfile.ZipInfo) -> str:
    """The name as its writer saw it; old programs wrote their own code page and did not say which."""
    if member.flag_bits & _UTF8_NAME or member.filename.isascii():
        return member.filename
    try:
        raw = member.filename.encode("cp437")
    except UnicodeEncodeError:
        return member.filename
    for codec in ("utf-8", "gb18030"):
        try:
            return raw.decode(codec)
        except UnicodeDecodeError:
            continue
    try:
        return decode(raw)
    except DamagedFile:
        return member.filename
