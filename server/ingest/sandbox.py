"""Reading files in processes of their own, so that a file that kills its parser harms nothing else.

    with Sandbox(workers=2) as sandbox:
        document = sandbox.load(path, "report.pdf")

A worker is started when it is first needed and then kept. It gets the file's path, never its bytes, and sends the
blocks back in small parts, as JSON: what a parser was tricked into cannot run anything here.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import orjson

from server import errors
from server.domain import Block, LoadedDocument, Reached
from server.errors import DamagedFile, LoadError, NotFound, ZhikuError
from server.ingest.loaders.base import damaged
from server.ingest.loaders.factory import is_light, load_document

_ROOT = str(Path(__file__).parents[2])
# A parser needs no secrets; these are what an interpreter and its libraries look at.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONHOME", "TZ")
_LOOK = 0.1
_START = 120.0
"""Seconds that a worker may take to come up; they are not those of the file."""
READY = b"ready"
_LIGHT_SIZE = 32 * 1024
_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What one file may use; `cpu_seconds` and `memory` (bytes) are those of the worker, not of the service.

    Pictures whose text is recognised have CPU time of their own on top.
    """

    cpu_seconds: int = 300
    wall_seconds: float = 3600
    memory: int = 2048 * _MB
    characters: int = 1_500_000_000


@dataclass
class Reading:
    """A file that is being read; `loader` and `warnings` are known when the last block is in. Where all pages of a file
    are read before its first block comes, there are signs of life between."""

    blocks: Iterator[Block | Reached]
    loader: str = ""
    warnings: tuple[str, ...] = ()


class Sandbox:
    """A few worker processes that read files; may be used from several threads."""

    def __init__(self, workers: int = 2, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._slots: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._slots.put(None)
        self._started: set[_Worker] = set()
        self._guard = threading.Lock()
        # also when nobody closes it: when it is forgotten, and when the interpreter ends
        self._finalizer = weakref.finalize(self, _stop, self._started)

    @contextmanager
    def open(self, path: Path, file_name: str, password: str | None = None) -> Iterator[Reading]:
        """The file at `path` as a loader reads it, block by block; waits for a free worker.

        Small plain text is read right here: it costs less than the way to a worker, and cannot hurt.

        Raises, here or while the blocks come in:
            LoadError: unreadable, empty, unsupported, or the file used up what it may; the words say which.
            NotFound: there is no file at `path`.
        """
        try:
            light = path.stat().st_size <= _LIGHT_SIZE and is_light(data := path.read_bytes(), file_name)
        except FileNotFoundError:
            raise NotFound("文件内容不在服务器上 / the file's bytes are not on the server") from None
        if light:
            document = load_document(data, file_name)
            yield Reading(iter(document.blocks), document.loader, document.warnings)
            return
        with self._worker() as worker:
            reading = Reading(iter(()))
            blocks = worker.read(path, file_name, reading, password)
            reading.blocks = blocks
            with closing(blocks):
                yield reading

    def load(self, path: Path, file_name: str, password: str | None = None) -> LoadedDocument:
        """The whole file at once; otherwise as `open`."""
        with self.open(path, file_name, password) as reading:
            blocks = tuple(block for block in reading.blocks if isinstance(block, Block))
        return LoadedDocument(blocks, reading.loader, reading.warnings)

    def close(self) -> None:
        """End all workers; a file that is being read fails."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _worker(self) -> Iterator[_Worker]:
        worker = self._slots.get()
        try:
            if worker is not None and not worker.alive:  # ended while it had nothing to do
                self._forget(worker)
                worker = None
            if worker is None:
                worker = _Worker(self._limits)
                with self._guard:
                    self._started.add(worker)
            yield worker
        finally:
            if worker is not None and not worker.alive:
                self._forget(worker)
                worker = None
            self._slots.put(worker)

    def _forget(self, worker: _Worker) -> None:
        worker.kill()
        with self._guard:
            self._started.discard(worker)


def _stop(workers: set[_Worker]) -> None:
    for worker in list(workers):
        worker.kill()
    workers.clear()


class _Worker:
    """One process, which reads one file at a time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        ours, theirs = socket.socketpair()
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "server.ingest.worker", str(theirs.fileno()), json.dumps(asdict(limits))],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**kept, "PYTHONPATH": path, "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"},
                # a group of its own: what it has started (an office suite) is ended with it
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())
        try:
            if self._connection.poll(_START) and self._connection.recv_bytes() == READY:
                return
        except (EOFError, OSError):
            pass
        self.kill()
        raise LoadError("无法启动解析进程 / the process that reads files does not start")

    def read(
        self, path: Path, file_name: str, reading: Reading, password: str | None = None
    ) -> Generator[Block | Reached, None, None]:
        """As `Sandbox.open`; a worker that is not `alive` afterwards is of no more use."""
        deadline = time.monotonic() + self._limits.wall_seconds
        try:
            request = {"path": str(path.resolve()), "name": file_name, "password": password}
            self._connection.send_bytes(orjson.dumps(request))
            while "loader" not in (message := self._receive(deadline)) and "error" not in message:
                if "reached" in message:
                    yield Reached(*message["reached"])
                else:
                    yield from _blocks(message["blocks"])
        except (EOFError, OSError):
            raise self._post_mortem() from None
        except BaseException:  # also when nobody wants the rest
            self.kill()
            raise
        if message.get("retire"):
            self.kill()
        if "error" in message:
            _raise(message)
        reading.loader, reading.warnings = message["loader"], tuple(message["warnings"])

    @property
    def alive(self) -> bool:
        """Whether the process can read another file."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process and all that it started; nothing happens when it has ended."""
        if self.alive:  # else the number may be another's by now
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._connection.close()

    def _receive(self, deadline: float) -> dict[str, Any]:
        while not self._connection.poll(_LOOK):
            self._check(deadline)
        self._check(deadline)
        message: dict[str, Any] = orjson.loads(self._connection.recv_bytes())
        return message

    def _check(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            seconds = self._limits.wall_seconds
            raise damaged(f"解析超过 {seconds:g} 秒，已中止", f"reading took more than {seconds:g} s and was stopped")
        if self._resident() > self._limits.memory:
            raise memory_exceeded(self._limits.memory)

    def _resident(self) -> int:
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):  # gone, or a system without /proc: the limit of the address space is left
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _post_mortem(self) -> LoadError:
        """Why the process is no more."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        code = self._process.returncode
        self.kill()
        if code == -signal.SIGXCPU:
            seconds = self._limits.cpu_seconds
            return damaged(f"解析超过 {seconds} 秒 CPU 时间，已中止", f"reading took more than {seconds} s of CPU time")
        return damaged(f"解析程序崩溃（{code}）", f"its parser crashed ({code})")


def memory_exceeded(limit: int) -> DamagedFile:
    """The error for a file that needs more memory than it may."""
    return damaged(f"解析需要超过 {limit // _MB} MB 内存", f"reading needs more than {limit // _MB} MB of memory")


def _blocks(rows: list[list[Any]]) -> Iterator[Block]:
    path: tuple[str, ...] = ()
    for text, page, headings, whole, metadata in rows:
        if tuple(headings) != path:  # thousands of blocks share one path; it is kept once
            path = tuple(headings)
        yield Block(text, page, path, whole, metadata)


def _raise(message: dict[str, Any]) -> NoReturn:
    kind = getattr(errors, message["error"], LoadError)
    raise (kind if isinstance(kind, type) and issubclass(kind, ZhikuError) else LoadError)(message["message"])
