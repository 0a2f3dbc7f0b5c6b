"""Opening the zip archives that office formats are, without letting them fill the memory."""

from __future__ import annotations

import io
import zipfile

from server.ingest.loaders.base import damaged

MAX_UNPACKED = 200 * 1024 * 1024
"""Bytes that all members of an archive may hold together."""
MAX_RATIO = 200
"""How many times smaller an archive may be than what it holds."""

# Small archives of very regular XML compress better than the ratio allows, and do no harm.
_HARMLESS = 10 * 1024 * 1024
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def open_archive(data: bytes) -> zipfile.ZipFile:
    """The archive in `data`; raises DamagedFile when it is none, is encrypted, or would unpack too much.

    Sizes are those of the directory; the zip reader never unpacks a member beyond its declared size.
    """
    if data.startswith(_OLE):
        raise damaged(
            "文件已加密，或是旧版 Office 格式，请去除密码并另存为新格式",
            "encrypted, or in an old Office format; remove the password or save it in the new format",
        )
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        raise damaged("文件损坏或不完整（不是有效的压缩包）", f"broken or cut off ({error})") from error
    members = archive.infolist()
    unpacked = sum(member.file_size for member in members)
    if unpacked > MAX_UNPACKED or (unpacked > _HARMLESS and unpacked > MAX_RATIO * len(data)):
        raise damaged(
            f"解压后达 {unpacked >> 20} MB，疑似压缩炸弹", f"unpacks to {unpacked >> 20} MB, maybe a zip bomb"
        )
    if any(member.flag_bits & 1 for member in members):
        raise damaged("压缩包已加密", "the archive is encrypted")
    return archive
