"""Two services on one PostgreSQL, with one folder of files and indexes of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import engines
from tests.conftest import ServerProcess
from tests.crash_kit import SLOW, answers, text_of, wait_until_idle

PATIENCE = 90


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    common: dict[str, Any] = {"database_url": engines.postgres_url(), "embedding_models": SLOW}
    servers = [
        ServerProcess(tmp_path / name, tmp_path / "data", index_dir=tmp_path / name / "index", **common)
        for name in "ab"
    ]
    try:
        yield servers[0], servers[1]
    finally:
        for server in servers:
            server.kill()


@pytest.mark.slow
def test_what_one_takes_in_the_other_finds(pair: tuple[ServerProcess, ServerProcess]) -> None:
    first, second = (server.start().api() for server in pair)
    first.create("kb")
    first.upload("kb", {"a.txt": "the spare winch is in boathouse 27C", "b.txt": "海港的潮汐表每日更新"})
    for api in (second, first):
        assert api.texts("kb", "winch boathouse")[0] == "the spare winch is in boathouse 27C"
        assert api.texts("kb", "潮汐表", search_type="keyword") == ["海港的潮汐表每日更新"]
    second.upload("kb", {"a.txt": "the winch has moved"}, override="true")
    assert first.texts("kb", "winch", search_type="keyword") == ["the winch has moved"]
    second.delete_docs("kb", "b.txt", delete_content=True)
    assert first.texts("kb", "潮汐表", search_type="keyword") == []
    assert first.files("kb") == ["a.txt"]
    first.recreate("kb")
    assert answers(first, "kb") == answers(second, "kb")
    assert second.delete("kb")["code"] == 200
    assert first.http.get("/knowledge_base/list_knowledge_bases").json()["data"] == []


@pytest.mark.slow
def test_one_goes_on_with_what_the_other_left(pair: tuple[ServerProcess, ServerProcess]) -> None:
    first, second = (server.start().api() for server in pair)
    first.create("kb")
    sent = {f"f{n}.txt": text_of(n, lines=30) for n in range(10)}
    first.upload("kb", sent, chunk_size=20, chunk_overlap=0, wait="false")
    deadline = time.monotonic() + PATIENCE
    while not any(job["state"] == "done" for job in second.http.get("/jobs").json()):
        assert time.monotonic() < deadline
    pair[0].kill()
    wait_until_idle(second, PATIENCE)
    details = second.details("kb")
    assert {name: item["state"] for name, item in details.items()} == dict.fromkeys(sent, "ready")
    found = second.texts("kb", "v1", search_type="keyword", top_k=1000)
    assert sorted(found) == sorted(set(found))
    assert len(found) == sum(item["docs_count"] for item in details.values())
