"""Fixtures: the service in this process, the service as a process of its own, and a scripted model."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import yaml
from fastapi import FastAPI
from fastapi.testclient import TestClient

from configs import ChatModelSettings, EmbeddingModelSettings, Settings
from server.app import create_app
from server.db.session import Database
from server.models.fake_llm import FakeLLM
from tests import engines, processes
from tests.engines import free_port

os.environ.setdefault("OMP_NUM_THREADS", "1")


def cost(work: Callable[[], object]) -> float:
    """CPU seconds of this thread, the least of three runs: what disturbs a run only ever makes it longer."""
    spent = []
    for _ in range(3):
        start = time.thread_time()
        work()
        spent.append(time.thread_time() - start)
    return min(spent) + 1e-4


def grows_linearly(work: Callable[[int], object]) -> bool:
    """Whether work of 16 times the size takes less than 100 times the time; 256 if it grew with the square. Asked up to
    six times: a machine that is busy for a moment makes linear work look slow, and never the other way round."""
    return any(cost(lambda: work(16)) < 100 * cost(lambda: work(1)) for _ in range(6))


@functools.cache
def _migrated() -> Path:
    """An empty database with all tables: making them takes longer than most tests."""
    path = Path(tempfile.mkdtemp()) / "zhiku.db"
    db = Database(f"sqlite:///{path}")
    db.migrate()
    db.scrub()
    db.close()
    return path


ON_POSTGRES = os.environ.get("ZHIKU_TEST_DATABASE", "sqlite") == "postgresql"
"""Whether the services of all tests keep their rows in PostgreSQL."""


@functools.cache
def _migrated_on_postgres() -> str:
    """The same on a server, where databases are copied too; its name."""
    url = engines.postgres_url()
    db = Database(url)
    db.migrate()
    db.close()
    return url.rpartition("/")[2]


def sql_url(data_dir: Path) -> str | None:
    """The database of a data root, with all tables; None for the one that lies in it."""
    data_dir.mkdir(parents=True, exist_ok=True)
    if ON_POSTGRES:
        if data_dir not in _URLS:
            _URLS[data_dir] = engines.postgres_url(_migrated_on_postgres())
        return _URLS[data_dir]
    if not (data_dir / "zhiku.db").exists():
        shutil.copy(_migrated(), data_dir / "zhiku.db")
    return None


_URLS: dict[Path, str] = {}


def fake_settings(data_dir: Path, **changes: Any) -> Settings:
    """Settings with an embedder of known vectors and no language model; the tables are there already."""
    url = changes["database_url"] if "database_url" in changes else sql_url(data_dir)
    fakes = [
        EmbeddingModelSettings(name="fake", provider="fake", options={"dimension": 16}),
        EmbeddingModelSettings(name="fake8", provider="fake", options={"dimension": 8}),
    ]
    values: dict[str, Any] = {
        "data_dir": data_dir,
        "embedding_models": fakes,
        "default_embed_model": "fake",
        **({"database_url": url} if url else {}),
        **changes,
    }
    return Settings(**values)


_FREE: list[FastAPI] = []
_LENT: list[FastAPI] = []


def app_of(settings: Settings) -> FastAPI:
    """The application with these settings, until the test ends.

    A new one spends half a second on its first request, so tests get one that an earlier test has used.
    """
    if settings.cors_origins:
        return create_app(settings)
    app = _FREE.pop() if _FREE else create_app(settings)
    app.state.settings = settings
    _LENT.append(app)
    return app


@pytest.fixture(autouse=True)
def _databases_go() -> Iterator[None]:
    """What a test has made on the server; what its module shares was there before."""
    before = set(_URLS)
    yield
    for data_dir in _URLS.keys() - before:
        engines.drop_database(_URLS.pop(data_dir))


@pytest.fixture(autouse=True)
def _apps_come_back() -> Iterator[None]:
    yield
    _FREE.extend(_LENT)
    _LENT.clear()


@pytest.fixture(autouse=True, scope="session")
def _engines_end() -> Iterator[None]:
    yield
    engines.remove_all()


class Api:
    """The routes as a client calls them."""

    def __init__(self, client: Any) -> None:
        self.http = client

    def post(self, path: str, **body: Any) -> Any:
        response = self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def create(self, name: str, **more: Any) -> Any:
        return self.post("/knowledge_base/create_knowledge_base", knowledge_base_name=name, **more)

    def delete(self, name: str) -> Any:
        response = self.http.post("/knowledge_base/delete_knowledge_base", json=name)
        assert response.status_code == 200
        return response.json()

    def upload(self, name: str, files: Mapping[str, str | bytes], **form: Any) -> Any:
        parts = [("files", (file, text.encode() if isinstance(text, str) else text)) for file, text in files.items()]
        data = {"knowledge_base_name": name, **{key: str(value) for key, value in form.items()}}
        response = self.http.post("/knowledge_base/upload_docs", files=parts, data=data)
        assert response.status_code == 200, response.text
        return response.json()

    def search(self, name: str, query: str, **more: Any) -> Any:
        return self.post("/knowledge_base/search_docs", knowledge_base_name=name, query=query, **more)

    def texts(self, name: str, query: str, **more: Any) -> list[str]:
        return [hit["page_content"] for hit in self.search(name, query, **{"score_threshold": 4, "top_k": 100, **more})]

    def files(self, name: str) -> list[str]:
        response = self.http.get("/knowledge_base/list_files", params={"knowledge_base_name": name})
        return list(response.json()["data"])

    def details(self, name: str) -> dict[str, Any]:
        response = self.http.get("/knowledge_base/list_file_details", params={"knowledge_base_name": name})
        return {item["file_name"]: item for item in response.json()}

    def delete_docs(self, name: str, *files: str, **more: Any) -> Any:
        return self.post("/knowledge_base/delete_docs", knowledge_base_name=name, file_names=list(files), **more)

    def events(self, path: str, **body: Any) -> list[Any]:
        response = self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return parse_events(response.text)

    def recreate(self, name: str, **more: Any) -> list[Any]:
        return self.events("/knowledge_base/recreate_vector_store", knowledge_base_name=name, **more)


def parse_events(text: str) -> list[Any]:
    """The JSON objects of an event stream, strictly: only data lines and comments, ended by blank lines."""
    parsed = []
    for block in text.split("\r\n\r\n"):
        if block.startswith("data: "):
            assert "\n" not in block
            parsed.append(json.loads(block.removeprefix("data: ")))
        else:
            assert block in ("",) or block.startswith(": ping"), block
    return parsed


@pytest.fixture
def settings_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def settings(settings_dir: Path) -> Settings:
    return fake_settings(settings_dir)


@pytest.fixture
def api(settings: Settings) -> Iterator[Api]:
    with TestClient(app_of(settings)) as client:
        yield Api(client)


class ThreadServer:
    """An ASGI application on a real port, in a thread."""

    def __init__(self, app: Any) -> None:
        self.port = free_port()
        config = uvicorn.Config(app, host="127.0.0.1", port=self.port, log_level="critical")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> ThreadServer:
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)


@pytest.fixture
def llm() -> Iterator[FakeLLM]:
    """A scripted model; `llm_url(llm)` is its address."""
    fake = FakeLLM()
    with ThreadServer(fake.app()) as server:
        URLS[id(fake)] = f"http://127.0.0.1:{server.port}/v1"
        yield fake


URLS: dict[int, str] = {}


def llm_model(fake: FakeLLM, **changes: Any) -> ChatModelSettings:
    return ChatModelSettings(name=changes.pop("name", "fake-llm"), base_url=URLS[id(fake)], **changes)


@pytest.fixture
def llm_api(tmp_path: Path, llm: FakeLLM) -> Iterator[Api]:
    settings = fake_settings(tmp_path / "data", llm_models=[llm_model(llm)])
    with TestClient(app_of(settings)) as client:
        yield Api(client)


class ServerProcess:
    """The service as users start it: a process with its own settings files, that can be killed."""

    def __init__(self, folder: Path, data: Path | None = None, **settings: Any) -> None:
        self.folder = folder
        self.data = data or folder / "data"
        self.port = free_port()
        self.config_dir = folder / "configs"
        self.config_dir.mkdir(parents=True, exist_ok=True)
        self.write(**settings)
        self._process: BaseProcess | None = None

    def write(self, **settings: Any) -> None:
        values = fake_settings(self.data, **settings).model_dump(mode="json", exclude_unset=True)
        (self.config_dir / "all.yaml").write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "ZHIKU_CONFIG_DIR": str(self.config_dir), "COLUMNS": "200", "NO_COLOR": "1"}

    def start(self, *options: str, patience: float = 90) -> ServerProcess:
        log = self.folder / "server.log"
        self._process = processes.start(("serve", "--port", str(self.port), *options), self.environment, log, log)
        deadline = time.monotonic() + patience  # a shared machine may be very slow for a while
        while self._process.is_alive() and time.monotonic() < deadline:
            with socket.socket() as probe:  # the service listens when all else is done
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.05)
        with self.api().http as client:
            try:
                assert client.get("/health").status_code == 200
            except httpx.TransportError:
                raise AssertionError(log.read_text(errors="replace")[-3000:]) from None
        return self

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self._process is not None and self._process.pid is not None:
            if self._process.is_alive():
                os.kill(self._process.pid, number)
            self._process.join(30)
            assert not self._process.is_alive()
            self._process = None

    def zhiku(self, *words: str) -> processes.Done:
        """`zhiku …` beside the service, which may run or not."""
        return processes.run(words, self.environment)

    def api(self) -> Api:
        return Api(httpx.Client(base_url=self.url, timeout=120, verify=False))  # what verifies takes long to load


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path)
    try:
        yield server
    finally:
        server.kill()
