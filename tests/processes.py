"""`zhiku …` in processes of their own, forked from one that has imported the service: importing it costs many times
what tests ask of most of these processes. They share nothing else: each has its own environment, files and death.

Some are still started the long way: the commands of the README, and those of `test_cli.test_the_long_way`.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

# `server.cli` is not among them: its consoles are as wide as the environment says at the time of the import.
_WARM = (
    "alembic.command", "anyio._backends._asyncio", "faiss", "rich.progress", "rich.table", "server.app",
    "server.knowledge_base.backends.faiss", "server.knowledge_base.backends.graph", "server.knowledge_base.doctor",
    "server.models.fake", "tantivy", "tests.processes", "typer", "uvicorn.lifespan.on", "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
)  # fmt: skip


@functools.cache
def _forks() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_WARM))
    return context


@dataclass(frozen=True)
class Done:
    """How a process ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


def start(words: tuple[str, ...], environment: Mapping[str, str], stdout: Path, stderr: Path) -> ForkServerProcess:
    """`zhiku …`, which writes to the ends of these files."""
    process = _forks().Process(target=_main, args=(words, dict(environment), stdout, stderr), daemon=True)
    process.start()
    return process


def run(words: tuple[str, ...], environment: Mapping[str, str], patience: float = 300) -> Done:
    """`zhiku …` from start to end."""
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder) / "stdout", Path(folder) / "stderr"
        process = start(words, environment, stdout, stderr)
        process.join(patience)
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"zhiku {' '.join(words)} takes more than {patience} s")
        return Done(process.exitcode, stdout.read_text("utf-8"), stderr.read_text("utf-8"))


def _main(words: tuple[str, ...], environment: dict[str, str], stdout: Path, stderr: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for path, stream in ((stdout, sys.stdout), (stderr, sys.stderr)):
        with path.open("ab") as file:
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = ["zhiku", *words]
    from server.cli import main

    main()
