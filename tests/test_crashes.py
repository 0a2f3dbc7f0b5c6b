"""Killed at many points, the service comes back with everything that it acknowledged."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conftest import ServerProcess, fake_settings
from tests.crash_kit import SLOW, answers, check_indexes, text_of, texts_of, wait_until_idle


@pytest.mark.slow
def test_kill_at_many_points_of_an_ingest(process: ServerProcess) -> None:
    process.write(embedding_models=SLOW)
    api = process.start().api()
    api.create("kb")
    acknowledged = {f"f{n}.txt": text_of(n) for n in range(12)}
    api.upload("kb", acknowledged, chunk_size=40, chunk_overlap=0, wait="false")
    for pause in (0.02, 0.1, 0.2, 0.3, 0.35, 0.5, 0.6):
        time.sleep(pause)
        process.kill()
        api = process.start().api()
    wait_until_idle(api)
    assert sorted(api.files("kb")) == sorted(acknowledged)
    details = api.details("kb")
    assert {item["state"] for item in details.values()} == {"ready"}
    assert len(api.texts("kb", "line", top_k=1000)) == sum(item["docs_count"] for item in details.values())
    assert [sorted(word for text in texts_of(api, name) for word in text.split()) for name in acknowledged] == [
        sorted(text.split()) for text in acknowledged.values()
    ]
    before = answers(api, "kb")
    process.kill()
    check_indexes(fake_settings(process.folder / "data", embedding_models=SLOW))
    assert answers(process.start().api(), "kb") == before


@pytest.mark.slow
def test_kill_at_many_points_of_a_rebuild(process: ServerProcess) -> None:
    process.write(embedding_models=SLOW)
    api = process.start().api()
    api.create("kb")
    api.upload("kb", {f"f{n}.txt": text_of(n) for n in range(8)}, chunk_size=40, chunk_overlap=0)
    before = answers(api, "kb")
    body: dict[str, Any] = {"knowledge_base_name": "kb", "chunk_size": 80, "chunk_overlap": 0}
    with api.http.stream("POST", "/knowledge_base/recreate_vector_store", json=body) as response:
        next(response.iter_raw())  # the client leaves after the first event
    for pause in (0.05, 0.15, 0.3, 0.4):
        now = answers(api, "kb")
        job = api.http.get("/jobs").json()[0]
        if job["finished"] < job["total"]:  # the swap comes after the last file
            assert now == before
        time.sleep(pause)
        process.kill()
        api = process.start().api()
    wait_until_idle(api)
    assert api.http.get("/jobs").json()[0]["state"] == "done"
    assert max(item["docs_count"] for item in api.details("kb").values()) < 6
    assert len(api.files("kb")) == 8
    process.stop()
    check_indexes(fake_settings(process.folder / "data", embedding_models=SLOW))
    assert [path.name for path in (process.folder / "data" / "index" / "kb1").iterdir()] == ["g2"]
