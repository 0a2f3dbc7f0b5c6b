"""The small parts: caches, locks, settings, stored bytes, jobs, migrations."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from configs import Settings
from configs.settings import PROJECT_ROOT
from server.api.events import MAX_EVENT, encode, split_docs
from server.db.session import Database
from server.errors import Busy, ConfigurationError, InvalidRequest, NotFound
from server.filestore import FileStore
from server.ingest.jobs import Signal
from server.knowledge_base.cache import CachePool, ReadWriteLock
from server.models.embeddings import EmbeddingModels
from server.models.fake import FakeEmbedding
from server.models.pool import LocalEmbedding
from server.models.rulers import Characters
from tests.conftest import Api, app_of, fake_settings


def test_a_pool_loads_once_and_evicts_the_least_used() -> None:
    loaded: list[int] = []
    closed: list[int] = []
    pool: CachePool[int, int] = CachePool(2, closed.append)

    def load(key: int) -> int:
        time.sleep(0.02)
        loaded.append(key)
        return key

    def use(key: int) -> int:
        with pool.acquire(key, lambda: load(key)) as value:
            return value

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(use, [1] * 8)) == [1] * 8
    assert loaded == [1]
    use(2), use(1), use(3)
    assert closed == [2]
    assert pool.keys() == [1, 3]


def test_a_value_in_use_is_never_closed() -> None:
    closed: list[int] = []
    pool: CachePool[int, int] = CachePool(1, closed.append)
    with pool.acquire(1, lambda: 1):
        with pool.acquire(2, lambda: 2):
            pass
        pool.pop(1)
        assert 1 not in closed
    assert 1 in closed


def test_a_failed_load_reaches_all_who_wait_and_is_tried_again() -> None:
    pool: CachePool[str, str] = CachePool(2)
    gate = threading.Event()

    def fail() -> str:
        gate.wait(5)
        raise ValueError("broken")

    def use() -> str:
        with pool.acquire("bad", fail) as value:
            return value

    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(use) for _ in range(4)]
        with pool.acquire("good", lambda: "fine") as value:
            assert value == "fine"  # nobody waits for another key
        gate.set()
        assert all(isinstance(future.exception(), ValueError) for future in waiting)
    with pool.acquire("bad", lambda: "mended") as value:
        assert value == "mended"


def test_a_load_that_hangs_does_not_hang_others_for_ever() -> None:
    pool: CachePool[str, str] = CachePool(2, patience=0.05)
    gate = threading.Event()

    def hang() -> str:
        gate.wait(5)
        return "late"

    with ThreadPoolExecutor(1) as threads:

        def first() -> str:
            with pool.acquire("k", hang) as value:
                return value

        future = threads.submit(first)
        while not pool.keys():
            time.sleep(0.001)
        with pytest.raises(Busy), pool.acquire("k", hang):
            pass
        gate.set()
        assert future.result() == "late"


def test_readers_share_and_a_writer_is_alone() -> None:
    lock, inside, most = ReadWriteLock(), [0, 0], [0]

    def read() -> None:
        with lock.read():
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            assert inside[1] == 0
            time.sleep(0.01)
            inside[0] -= 1

    def write() -> None:
        with lock.write():
            inside[1] += 1
            assert inside == [0, 1]
            time.sleep(0.005)
            inside[1] -= 1

    with ThreadPoolExecutor(8) as threads:
        for future in [threads.submit(read if n % 3 else write) for n in range(30)]:
            future.result()
    assert most[0] > 1


def test_a_question_goes_before_passages() -> None:
    class Slow:
        name, dimension, ruler = "slow", 2, Characters()
        order: list[str] = []

        def embed_passage(self, text: str):  # type: ignore[no-untyped-def]
            time.sleep(0.02)
            self.order.append(text)
            return FakeEmbedding(dimension=2).encode_query(text)

        embed_query = embed_passage

    model = LocalEmbedding(Slow(), threads=1)
    with ThreadPoolExecutor(1) as threads:
        batch = threads.submit(model.embed_passages, [f"p{n}" for n in range(20)])
        time.sleep(0.05)
        model.embed_query("question")
        assert Slow.order.index("question") <= 5
        assert batch.result().shape == (20, 2)
    model.close()


def test_settings_come_from_code_files_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kb.yaml").write_text("top_k: 7\nchunk_size: 300\n")
    monkeypatch.setenv("ZHIKU_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("ZHIKU_CHUNK_SIZE", "310")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    settings = Settings()
    assert (settings.top_k, settings.chunk_size, settings.chunk_overlap) == (7, 310, 50)
    assert settings.host == "127.0.0.1"
    assert settings.sql_url.startswith("sqlite:///")
    monkeypatch.setenv("DATABASE_URL", "postgresql://db/zhiku")
    assert Settings().sql_url == "postgresql://db/zhiku"
    (tmp_path / "kb.yaml").write_text("topk: 7\n")
    with pytest.raises(ValidationError, match="topk"):
        Settings()
    (tmp_path / "kb.yaml").write_text("")
    with pytest.raises(ValidationError, match="chunk_overlap"):
        Settings(chunk_size=10, chunk_overlap=10)


def test_every_setting_is_documented() -> None:
    text = (PROJECT_ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    missing = [
        name for name, field in Settings.model_fields.items() if f"`{name}`" not in text or not field.description
    ]
    assert missing == []


def test_keys_come_from_the_environment_and_are_not_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from configs import ChatModelSettings

    monkeypatch.setenv("MY_KEY", "sk-secret")
    model = ChatModelSettings(name="m", api_key_env="MY_KEY")
    assert model.api_key is not None
    assert model.api_key.get_secret_value() == "sk-secret"
    assert "sk-secret" not in repr(fake_settings(tmp_path, llm_models=[model]))


def test_bytes_are_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    store = FileStore(tmp_path, max_bytes=10)
    stored = store.put(1, io.BytesIO(b"12345"))
    assert store.path(1, stored.storage).read_bytes() == b"12345"
    assert stored.size == 5
    with pytest.raises(InvalidRequest):
        store.put(1, io.BytesIO(b"x" * 11))
    assert [path.name for path in (tmp_path / "1").iterdir()] == [stored.storage]
    for bad in ("../1", "", "a/b"):
        with pytest.raises(NotFound):
            store.path(1, bad)
    store.remove(1, stored.storage)
    assert not store.path(1, stored.storage).exists()


def test_the_tables_are_those_of_the_code(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from server.db.tables import Base

    db = Database(f"sqlite:///{tmp_path / 'x.db'}")
    db.migrate()
    db.migrate()
    with db.read() as sql:
        assert compare_metadata(MigrationContext.configure(sql), Base.metadata) == []
    db.close()


def test_sources_are_spread_over_events_that_old_clients_can_read() -> None:
    docs = [f"{n} " + "长" * 1800 for n in range(40)]
    groups = split_docs(docs)
    assert [doc for group in groups for doc in group] == docs
    assert all(len(encode({"docs": group})) < 65_536 for group in groups)
    assert len(groups) > 1
    huge = split_docs(["长" * 50_000])
    assert len(encode({"docs": huge[0]})) <= MAX_EVENT + 100
    assert huge[0][0].endswith("…")


def test_an_unknown_embedding_model_is_named() -> None:
    models = EmbeddingModels({"a": FakeEmbedding})
    assert models.get("a") is models.get("a")
    with pytest.raises(ConfigurationError, match="b"):
        models.get("b")


def test_jobs_can_be_seen_cancelled_and_retried(tmp_path: Path) -> None:
    from fastapi.testclient import TestClient

    from configs import EmbeddingModelSettings
    from tests.conftest import parse_events

    slow = [EmbeddingModelSettings(name="fake", provider="fake", options={"dimension": 4, "delay": 0.05})]
    with TestClient(app_of(fake_settings(tmp_path, embedding_models=slow))) as client:
        api = Api(client)
        api.create("kb")
        text = "\n\n".join(f"line {n}" for n in range(300))
        sent = api.upload("kb", {"long.txt": text}, wait="false", chunk_size=8, chunk_overlap=0)
        number = sent["data"]["jobs"][0]["id"]
        assert api.http.get(f"/jobs/{number}").json()["state"] in ("queued", "running")
        assert api.post(f"/jobs/{number}/cancel")["code"] == 200
        assert api.http.get(f"/jobs/{number}").json()["state"] == "cancelled"
        assert api.post(f"/jobs/{number}/cancel")["code"] == 409
        assert parse_events(client.get(f"/jobs/{number}/events").text)[-1]["state"] == "cancelled"
        assert api.post(f"/jobs/{number}/retry")["code"] == 200
        assert api.http.get("/jobs", params={"knowledge_base_name": "kb"}).json()[0]["file_name"] == "long.txt"
        assert api.http.get("/jobs/999").json()["code"] == 404
        assert api.delete("kb")["code"] == 200
        assert api.http.get("/jobs").json() == []


def test_yaml_files_hold_only_known_settings() -> None:
    for path in (PROJECT_ROOT / "configs").glob("*.yaml"):
        keys = set(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
        assert keys <= Settings.model_fields.keys()


@pytest.mark.parametrize(
    ("headers", "peer", "wanted"),
    [
        ({"x-forwarded-proto": "https", "x-forwarded-host": "kb.example"}, "10.1.2.3", "https://kb.example/"),
        (
            {"x-forwarded-host": "kb.example:8443", "x-forwarded-prefix": "/a/b/"},
            "10.1.2.3",
            "http://kb.example:8443/a/b/",
        ),
        ({"x-forwarded-host": "outer, inner"}, "10.1.2.3", "http://outer/"),
        ({"x-forwarded-host": "kb.example"}, "11.1.2.3", "http://here/"),
        ({"x-forwarded-host": 'evil/"><script>'}, "10.1.2.3", "http://here/"),
        ({"x-forwarded-proto": "javascript"}, "10.1.2.3", "http://here/"),
        ({"x-forwarded-prefix": "//evil.example"}, "10.1.2.3", "http://here/"),
        ({}, "10.1.2.3", "http://here/"),
    ],
)
def test_only_trusted_proxies_say_where_we_are(headers: dict[str, str], peer: str, wanted: str) -> None:
    from fastapi import Request

    from server.api.proxies import base_url

    raw = [(key.encode(), value.encode()) for key, value in {"host": "here", **headers}.items()]
    scope = {"type": "http", "scheme": "http", "path": "/x", "root_path": "", "headers": raw, "client": (peer, 1),
             "server": ("here", 80), "query_string": b""}  # fmt: skip
    assert base_url(Request(scope), ["10.0.0.0/8"]) == wanted


def test_a_notice_between_the_look_and_the_wait_is_not_missed() -> None:
    signal = Signal()
    ticket = signal.ticket
    signal.notify()
    begun = time.monotonic()
    signal.wait_thread(ticket, 20)
    asyncio.run(signal.wait(ticket, 20))
    assert time.monotonic() - begun < 10
    signal.wait_thread(signal.ticket, 0.01)  # and without one the time runs out
