"""The bytes of files, under names of the server's own."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from server.errors import InvalidRequest, NotFound

_BLOCK = 1 << 20
_UPLOAD_TIME = 600.0
"""Seconds in which another process may still be writing the row of a blob."""


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """What was written: its storage name, SHA-256 in hex, and length in bytes."""

    storage: str
    sha256: str
    size: int


class FileStore:
    """Keeps blobs at `<root>/<kb id>/<random name>`; a blob appears whole or not at all."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root = root
        self.max_bytes = max_bytes

    def path(self, kb_id: int, storage: str) -> Path:
        """Where a blob lies. `storage` is a name that `put` gave, never a client's."""
        if not storage.isalnum():
            raise NotFound("文件不存在 / no such file")
        return self.root / str(int(kb_id)) / storage

    def put(self, kb_id: int, stream: BinaryIO) -> StoredBytes:
        """Write a stream: temporary file, hash, fsync, rename.

        Raises:
            InvalidRequest: the file is larger than the server accepts.
        """
        storage = uuid.uuid4().hex
        target = self.path(kb_id, storage)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        digest, size = hashlib.sha256(), 0
        try:
            with part.open("wb") as out:
                while block := stream.read(_BLOCK):
                    size += len(block)
                    if size > self.max_bytes:
                        limit = self.max_bytes >> 20
                        raise InvalidRequest(f"文件超过 {limit} MiB 的上限 / the file exceeds the limit of {limit} MiB")
                    digest.update(block)
                    out.write(block)
                out.flush()
                os.fsync(out.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        return StoredBytes(storage, digest.hexdigest(), size)

    def remove(self, kb_id: int, storage: str | None) -> None:
        """Delete a blob; nothing happens when it is gone already."""
        if storage:
            self.path(kb_id, storage).unlink(missing_ok=True)

    def remove_all(self, kb_id: int) -> None:
        """Delete all blobs of a knowledge base."""
        shutil.rmtree(self.root / str(int(kb_id)), ignore_errors=True)

    def sweep(self, kb_id: int, known: set[str]) -> int:
        """Delete blobs that no row names (left by a crash between disk and SQL); returns how many."""
        folder = self.root / str(int(kb_id))
        if not folder.is_dir():
            return 0
        before = time.time() - _UPLOAD_TIME
        orphans = [path for path in folder.iterdir() if path.name not in known and path.stat().st_mtime < before]
        for path in orphans:
            path.unlink(missing_ok=True)
        return len(orphans)
