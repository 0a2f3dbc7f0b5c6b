"""The service and a language model as processes of their own, and what they use up."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil
import yaml

FAKE = "fake"
"""An embedding model that costs next to nothing, as long as the embedded one in its vectors."""
_FAKE_MODEL = {"name": FAKE, "provider": "fake", "options": {"dimension": 384}}
_PATIENCE = 60.0
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Usage:
    """What a process has used since it began."""

    wall: float
    cpu: float
    written: int
    handed: int

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(
            self.wall - earlier.wall,
            self.cpu - earlier.cpu,
            self.written - earlier.written,
            self.handed - earlier.handed,
        )


class Program:
    """A Python program in a process of its own that answers on a port."""

    def __init__(self, arguments: Sequence[str], port: int, log: Path, environment: dict[str, str]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._arguments = arguments
        self._log = log
        self._environment = environment
        self._process: psutil.Popen | None = None

    def start(self, path: str) -> float:
        """Start, and wait until `path` answers 200; the seconds that it took."""
        started = time.monotonic()
        with self._log.open("ab") as log:
            self._process = psutil.Popen(
                [sys.executable, *self._arguments], env=self._environment, cwd=_ROOT, stdout=log, stderr=log
            )
        while time.monotonic() < started + _PATIENCE and self._process.poll() is None:
            try:
                if httpx.get(self.url + path, timeout=5).status_code == 200:
                    return time.monotonic() - started
            except httpx.HTTPError:
                time.sleep(0.01)
        raise RuntimeError(self._log.read_text(errors="replace")[-3000:])

    def usage(self) -> Usage:
        """CPU seconds of all threads, bytes sent to the disk, and bytes handed to the system in writes."""
        process = self._running()
        cpu, io = process.cpu_times(), process.io_counters()
        return Usage(time.monotonic(), cpu.user + cpu.system, io.write_bytes, io.write_chars)

    def resident(self) -> float:
        """Memory in MB: what is in RAM, file pages that are mapped included."""
        return float(self._running().memory_info().rss) / 1e6

    def private(self) -> float:
        """Memory in MB that nobody else could use: mapped files that the system may drop do not count."""
        return float(self._running().memory_full_info().uss) / 1e6

    def stop(self) -> None:
        """End it in the way a service manager would."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _running(self) -> psutil.Popen:
        if self._process is None:
            raise RuntimeError("the process was not started")
        return self._process


class Server(Program):
    """The service as users start it, with settings files of its own below `folder`."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        configs = folder / "configs"
        configs.mkdir(parents=True, exist_ok=True)
        # Vectors of the fake model say nothing about relevance: with this limit every search has hits, and the
        # check for relevance is still made.
        values = {"embedding_models": [_FAKE_MODEL], "score_threshold": 4.0, "data_dir": str(folder / "data")}
        (configs / "all.yaml").write_text(yaml.safe_dump({**values, **settings}))
        port = free_port()
        arguments = ["-m", "server.cli", "serve", "--port", str(port)]
        super().__init__(arguments, port, folder / "server.log", _environment(ZHIKU_CONFIG_DIR=str(configs)))

    def start(self, path: str = "/health") -> float:
        """Start, and wait until it is healthy; the seconds that it took."""
        return super().start(path)

    def client(self) -> Client:
        """A client with one connection."""
        return Client(self.url)


class Model(Program):
    """A language model that writes a token every so often and stamps it with the time (`benchmarks.llm`)."""

    def __init__(self, folder: Path, tokens: int, delay: float) -> None:
        port = free_port()
        arguments = ["-m", "benchmarks.llm", str(port), str(tokens), str(delay)]
        super().__init__(arguments, port, folder / "llm.log", _environment())

    def start(self, path: str = "/v1/models") -> float:
        """Start, and wait until it answers; the seconds that it took."""
        return super().start(path)

    def settings(self) -> dict[str, Any]:
        """How the service is told of it."""
        return {"name": "stamps", "base_url": f"{self.url}/v1", "concurrency": 256}


class Client:
    """The routes that are measured, over one connection that is kept."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=600)

    def post(self, path: str, **body: Any) -> Any:
        """The answer to a JSON request; a refusal is an error."""
        answer = self.http.post(path, json=body).raise_for_status().json()
        if isinstance(answer, dict) and answer.get("code", 200) != 200:
            raise RuntimeError(f"{path}: {answer}")
        return answer

    def create(self, name: str, model: str = FAKE) -> None:
        """Make a knowledge base."""
        self.post("/knowledge_base/create_knowledge_base", knowledge_base_name=name, embed_model=model)

    def upload(self, name: str, files: Mapping[str, str | Path], *, wait: bool = True) -> None:
        """Upload texts and files from the disk, and wait until they are searchable unless told not to."""
        parts = [
            ("files", (file, item.read_bytes() if isinstance(item, Path) else item.encode()))
            for file, item in files.items()
        ]
        form = {"knowledge_base_name": name, "wait": str(wait).lower()}
        answer = self.http.post("/knowledge_base/upload_docs", files=parts, data=form).raise_for_status().json()
        if answer["code"] != 200 or answer["data"]["failed_files"]:
            raise RuntimeError(str(answer))

    def search(self, name: str, query: str, **more: Any) -> list[dict[str, Any]]:
        """Hits."""
        found = self.post("/knowledge_base/search_docs", knowledge_base_name=name, query=query, **more)
        if not isinstance(found, list):
            raise RuntimeError(str(found))
        return found

    def chunks(self, name: str) -> int:
        """Number of chunks."""
        query = {"knowledge_base_name": name}
        details = self.http.get("/knowledge_base/list_file_details", params=query).raise_for_status().json()
        return sum(file["docs_count"] for file in details)

    def waiting_jobs(self) -> int:
        """Number of jobs that wait or run."""
        jobs = self.http.get("/health").raise_for_status().json()["jobs"]
        return int(jobs.get("queued", 0) + jobs.get("running", 0))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ZHIKU_")}
    return {**kept, "OMP_NUM_THREADS": "1", **more}
