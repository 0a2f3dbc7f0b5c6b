"""The process that reads files for a `Sandbox`: python -m server.ingest.worker FD LIMITS."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import orjson

from server.domain import Block
from server.errors import NotFound, ZhikuError
from server.ingest.loaders.base import damaged, pages_told
from server.ingest.loaders.factory import open_document
from server.ingest.sandbox import READY, Limits, memory_exceeded

_PART = 1 << 18
"""Characters in one message."""
_FILES = 500
"""Files that a worker reads before it makes room for a fresh one: parsers leak."""
_NICENESS = 10
_TELL_EVERY = 1.0
"""Seconds between two words on how far it is."""
_SPARE = 1024 << 20


def main() -> None:
    """Answer requests until the other side hangs up."""
    connection = Connection(int(sys.argv[1]))
    limits = Limits(**json.loads(sys.argv[2]))
    _confine(limits)
    connection.send_bytes(READY)
    for served in range(1, _FILES + 1):
        try:
            request = orjson.loads(connection.recv_bytes())
        except EOFError:
            return
        _grant_cpu(limits.cpu_seconds)
        answer, fit = _serve(connection, request, limits)
        connection.send_bytes(orjson.dumps({**answer, "retire": served == _FILES or not fit}))


def _confine(limits: Limits) -> None:
    # Searches go first.
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Libraries reserve more than they use; what is really used is watched from outside.
    space = limits.memory + _SPARE
    resource.setrlimit(resource.RLIMIT_AS, (space, space))


def _grant_cpu(seconds: int) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, hard))


def _serve(connection: Connection, request: dict[str, Any], limits: Limits) -> tuple[dict[str, Any], bool]:
    """Sends the blocks; returns the last message, and whether this process is fit for another file."""
    told = time.monotonic()

    def tell(page: int, pages: int) -> None:
        nonlocal told
        if time.monotonic() - told > _TELL_EVERY:
            told = time.monotonic()
            connection.send_bytes(orjson.dumps({"reached": (page, pages)}))

    try:
        path, name, password = Path(request["path"]), request["name"], request["password"]
        with pages_told(tell), open_document(path, name, password) as document:
            for part in _parts(document.blocks, limits.characters):
                connection.send_bytes(orjson.dumps({"blocks": part}))
    except FileNotFoundError:
        return _failure(NotFound("文件内容不在服务器上 / the file's bytes are not on the server")), True
    except MemoryError:
        return _failure(memory_exceeded(limits.memory)), False
    except ZhikuError as error:
        return _failure(error), True
    except Exception as error:  # noqa: BLE001 - whatever a parser raises is about this one file
        kind = type(error).__name__
        return _failure(damaged(f"解析失败（{kind}）", f"its parser failed ({kind}: {str(error)[:200]})")), True
    return {"loader": document.loader, "warnings": document.warnings}, True


def _failure(error: ZhikuError) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": error.message}


def _parts(blocks: Iterable[Block], most: int) -> Iterator[list[tuple[Any, ...]]]:
    part: list[tuple[Any, ...]] = []
    used = total = 0
    for block in blocks:
        total += len(block.text)
        if total > most:
            raise damaged(f"文本超过 {most} 个字符", f"it holds more than {most} characters of text")
        part.append(_row(block))
        used += len(block.text)
        if used > _PART:
            yield part
            part, used = [], 0
    yield part


def _row(block: Block) -> tuple[Any, ...]:
    return block.text, block.page, block.headings, block.whole, dict(block.metadata)


if __name__ == "__main__":
    main()
