"""Word and PowerPoint files of before 2007 (doc, ppt), by way of LibreOffice."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from server.domain import LoadedDocument
from server.errors import UnsupportedFormat
from server.ingest.loaders.base import Loader, damaged, extension_of
from server.ingest.loaders.docx import DocxLoader
from server.ingest.loaders.pptx import PptxLoader

_SECONDS = 120
_FLAG_AT, _ENCRYPTED = 11, 0x01
_WORD_MAGIC = b"\xec\xa5"
_SECTOR = 512


class LegacyLoader(Loader):
    """Converted to the new format and read as such; needs `soffice` on the PATH."""

    name = "doc"
    extensions = frozenset({".doc", ".dot", ".ppt", ".pps"})
    binary = True

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        slides = "PowerPoint Document".encode("utf-16-le") in data
        if not slides and _is_encrypted(data):
            raise damaged("文档已加密，请去除密码后再上传", "encrypted document, remove its password first")
        program = shutil.which("soffice") or shutil.which("libreoffice")
        if program is None:
            shown = extension_of(file_name) or ".doc"
            raise UnsupportedFormat(
                f"读取旧版 {shown} 需要服务器安装 LibreOffice（soffice），或请另存为 docx/pptx / "
                "unsupported here: the server needs LibreOffice (soffice on the PATH), or save it as docx or pptx"
            )
        converted = _convert(program, data, "pptx" if slides else "docx")
        loader: Loader = PptxLoader() if slides else DocxLoader()
        return replace(loader.load(converted, file_name), loader=self.name)


def _is_encrypted(data: bytes) -> bool:
    """Whether the header of the Word stream, at the start of a sector, says so."""
    for at in range(_SECTOR, min(len(data), 64 * _SECTOR), _SECTOR):
        if data[at : at + 2] == _WORD_MAGIC:
            return bool(data[at + _FLAG_AT] & _ENCRYPTED)
    return False


def _convert(program: str, data: bytes, target: str) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        source = folder / f"source.{'ppt' if target == 'pptx' else 'doc'}"
        source.write_bytes(data)
        # A profile of its own: two conversions at once would wait for each other.
        profile = f"-env:UserInstallation={(folder / 'profile').as_uri()}"
        command = [program, "--headless", profile, "--convert-to", target, "--outdir", scratch, str(source)]
        try:
            subprocess.run(command, timeout=_SECONDS, check=True, capture_output=True, cwd=scratch)
            return source.with_suffix(f".{target}").read_bytes()
        except (subprocess.SubprocessError, OSError) as error:
            reason = f"LibreOffice could not convert it ({type(error).__name__})"
            raise damaged("LibreOffice 无法转换此文件", reason) from error
