"""What tests of crashes and races share: a slow embedder, a running service, a look at every index."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi.testclient import TestClient

from configs import EmbeddingModelSettings, Settings
from server.knowledge_base.doctor import examine
from server.runtime import Runtime
from tests.conftest import Api, app_of

SLOW = [EmbeddingModelSettings(name="fake", provider="fake", options={"dimension": 16, "delay": 0.01})]


@contextmanager
def running(settings: Settings) -> Iterator[Api]:
    with TestClient(app_of(settings)) as client:
        yield Api(client)


def text_of(number: int, version: int = 1, lines: int = 12) -> str:
    return "\n\n".join(f"file{number} v{version} line{line} 水泵{number}" for line in range(lines))


def wait_until_idle(api: Api, patience: float = 60) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        jobs = api.http.get("/health").json()["jobs"]
        if not {"queued", "running"} & jobs.keys():
            return
        time.sleep(0.1)
    raise AssertionError(jobs)


def check_indexes(settings: Settings) -> None:
    """Every index holds just what SQL says."""
    runtime = Runtime.build(settings)
    try:
        findings = list(examine(runtime.service.context, repair=False))
    finally:
        runtime.service.context.close()
    assert findings
    assert [finding.text for finding in findings if not finding.healthy] == []


def answers(api: Api, kb: str) -> list[list[tuple[str, float]]]:
    """What a set of searches finds, in order, with scores."""
    queries = ["file3 line5", "水泵7", "v1 line2", "nothing of it"]
    kinds = ["hybrid", "similarity", "keyword"]
    return [
        [
            (hit["page_content"], hit["score"])
            for hit in api.search(kb, query, top_k=8, score_threshold=4, search_type=kind)
        ]
        for query in queries
        for kind in kinds
    ]


def texts_of(api: Api, name: str) -> list[str]:
    return [hit["page_content"] for hit in api.search("kb", "", file_name=name)]
