"""What PostgreSQL has to do as SQLite does: tables, turns of writers, one state for a reader, jobs that are given once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from server.db import files, jobs, kbs
from server.db.session import Database, url_of
from server.db.tables import Base, JobRow, KnowledgeBaseRow
from server.domain import KnowledgeBase
from server.errors import ConfigurationError, MissingDependency
from tests import engines
from tests.engines import free_port

WORKERS = 6


@pytest.fixture
def db() -> Iterator[Database]:
    database = Database(engines.postgres_url())
    database.migrate()
    yield database
    database.close()


def made(db: Database, name: str = "kb") -> KnowledgeBase:
    with db.write() as sql:
        return kbs.create(sql, name, "", "faiss", "fake", {})


def test_the_tables_are_those_of_the_code(db: Database) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with db.read() as sql:
        assert compare_metadata(MigrationContext.configure(sql), Base.metadata) == []


def test_services_that_start_together_make_the_tables_once() -> None:
    url = engines.postgres_url()
    services = [Database(url) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(Database.migrate, services))
    assert {one.revision() for one in services} != {None}
    assert len({one.revision() for one in services}) == 1
    for one in services:
        one.close()


def test_each_job_is_given_to_one_worker_and_a_file_to_one_job(db: Database) -> None:
    kb, other = made(db), made(db, "other")
    with db.write() as sql:
        for n in range(30):
            jobs.add(sql, "ingest", kb.id if n % 2 else other.id, n // 3, {})
    taken: list[int] = []
    at_work: set[int] = set()
    clashes: list[int] = []

    def work(worker: int) -> None:
        while True:
            with db.write() as sql:
                job = jobs.claim(sql, f"w{worker}", time.time(), 60, per_kb=WORKERS)
                left = jobs.counts(sql).get("queued", 0)
            if job is None:
                if not left:
                    return
                continue
            assert job.file_id is not None
            if job.file_id in at_work:
                clashes.append(job.file_id)
            at_work.add(job.file_id)
            taken.append(job.id)
            time.sleep(0.002)
            at_work.discard(job.file_id)
            with db.write() as sql:
                sql.execute(update(JobRow).where(JobRow.id == job.id).values(state="done"))

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(work, range(WORKERS)))
    assert sorted(taken) == sorted(set(taken))
    assert len(taken) == 30
    assert clashes == []


def test_writers_take_turns(db: Database) -> None:
    kb = made(db)

    def add(_: int) -> None:
        with db.write(kb.id) as sql:
            before = kbs.get(sql, kb.id)
            assert before is not None
            kbs.set_attributes(sql, kb.id, {"n": before.attributes.get("n", 0) + 1})

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(add, range(40)))
    with db.read() as sql:
        now = kbs.get(sql, kb.id)
    assert now is not None
    assert now.attributes == {"n": 40}


@pytest.mark.parametrize(
    ("held", "wanted", "waits"),
    [(1, 2, False), (1, 1, True), (1, 0, True), (0, 1, True), (0, 0, True)],
    ids=["another one", "the same one", "all after one", "one after all", "all"],
)
def test_writers_wait_for_those_that_they_could_meet(db: Database, held: int, wanted: int, waits: bool) -> None:
    inside = threading.Event()

    def write() -> None:
        with db.write(wanted):
            inside.set()

    with db.write(held):
        writer = threading.Thread(target=write)
        writer.start()
        assert inside.wait(0.5 if waits else 20) is not waits
    writer.join(20)
    assert inside.is_set()


def test_a_reader_sees_one_state(db: Database) -> None:
    made(db)
    with db.read() as sql:
        before = len(kbs.list_all(sql))
        made(db, "second")
        assert len(kbs.list_all(sql)) == before
    with db.read() as sql:
        assert len(kbs.list_all(sql)) == before + 1


def test_names_are_the_same_where_they_are_the_same_in_sqlite(db: Database) -> None:
    kb = made(db, "Docs")
    with db.write() as sql:
        assert (found := kbs.find(sql, "docs")) is not None
        assert found.id == kb.id
        for number, name in enumerate(("a.txt", "A.txt", "ß.txt", "50%_x.txt", "back\\slash.txt")):
            files.put(sql, kb.id, name, f"s{number}", "", 5_000_000_000)
        assert files.find(sql, kb.id, "b.txt") is None
        assert (lower := files.find(sql, kb.id, "a.txt")) is not None
        assert (lower.storage, lower.size) == ("s0", 5_000_000_000)
        assert files.list_like(sql, kb.id, "a.t%") == ["a.txt", "A.txt"]
        assert files.list_like(sql, kb.id, "%\\") == []
        assert files.list_like(sql, kb.id, "back\\%") == ["back\\slash.txt"]
    with pytest.raises(Exception, match="name_key"), db.write() as sql:
        sql.execute(insert(KnowledgeBaseRow).values(name="DOCS", name_key=kbs._key("DOCS", ""), generation_id=0))


def test_ids_are_never_used_twice(db: Database) -> None:
    first = made(db)
    with db.write() as sql:
        kbs.drop(sql, first.id)
    assert made(db).id > first.id


def test_what_a_failed_writer_wrote_is_not_there(db: Database) -> None:
    def fail() -> None:
        with db.write() as sql:
            kbs.create(sql, "half", "", "faiss", "fake", {})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with db.read() as sql:
        assert sql.scalars(select(KnowledgeBaseRow.name)).all() == []


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        pytest.param(
            f"postgresql://u:secret@127.0.0.1:{free_port()}/x",
            ConfigurationError,
            "cannot reach the database",
            marks=pytest.mark.skipif(find_spec("psycopg") is None, reason="no psycopg here: pip install -e '.[pg]'"),
        ),
        ("postgresql+nodriver://u:secret@127.0.0.1/x", MissingDependency, "needs its driver"),
        ("no url", ConfigurationError, "is no URL"),
    ],
    ids=["no server", "no driver", "no url"],
)
def test_a_database_that_cannot_be_used_is_told_in_both_languages(url: str, error: Any, words: str) -> None:
    with pytest.raises(error, match=words) as told:
        Database(url).migrate(patience=0.3)
    assert "数据库" in str(told.value) or "database_url" in str(told.value)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_any_spelling_of_the_url_uses_the_driver_that_is_tested(scheme: str) -> None:
    assert url_of(f"{scheme}://u:p@h:1/db").drivername == "postgresql+psycopg"


def test_nul_is_left_out_in_text_and_in_json(db: Database) -> None:
    kb = made(db)
    said: dict[str, Any] = {"k\0ey": ["a\0b", r"back\u0000slash", "\\\0"], "plain": "中文"}
    with db.write() as sql:
        kbs.set_info(sql, kb.id, "in\0fo")
        kbs.set_attributes(sql, kb.id, said)
    with db.read() as sql:
        found = kbs.get(sql, kb.id)
    assert found is not None
    assert found.info == "info"
    assert found.attributes == {"key": ["ab", r"back\u0000slash", "\\"], "plain": "中文"}
