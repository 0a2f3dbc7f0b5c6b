"""A knowledge base moves to another vector store or embedding model, and back, while it is searched."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.db import kbs
from server.errors import MoveFailed
from server.knowledge_base import moving
from server.knowledge_base.factory import KBServiceFactory
from server.retrieval.hybrid import Question, SearchType, StaleIndex, Wanted
from tests.conftest import Api, ServerProcess, fake_settings
from tests.crash_kit import SLOW, answers, check_indexes, running, text_of, wait_until_idle

FILES = {f"f{n}.txt": text_of(n) for n in range(9)}


def filled(api: Api, **more: Any) -> None:
    api.create("kb", **more)
    assert api.upload("kb", FILES, chunk_size=40, chunk_overlap=0)["data"]["failed_files"] == {}


def migrate(api: Api, **where: Any) -> list[Any]:
    return api.events("/knowledge_base/migrate", knowledge_base_name="kb", **where)


def ids(api: Api) -> set[int]:
    return {hit["id"] for hit in api.search("kb", "line1", top_k=1000, score_threshold=4)}


def answers_alike(one: list[list[tuple[str, float]]], other: list[list[tuple[str, float]]]) -> bool:
    """Whether the same is found in the same order with scores that differ by rounding at the most."""
    return [[(text, round(score, 3)) for text, score in hits] for hits in one] == [
        [(text, round(score, 3)) for text, score in hits] for hits in other
    ]


def place(api: Api) -> tuple[str, str, int]:
    """(store, embedding model, number of generations that SQL has)."""
    context = api.http.app.state.service.context
    with context.db.read() as sql:
        kb = kbs.find(sql, "kb")
        assert kb is not None
        return kb.generation.vs_type, kb.generation.embed_model, len(kbs.list_generation_ids(sql, kb.id))


def test_a_move_to_another_store_changes_no_answer_and_no_id(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path / "data")
    with running(settings) as api:
        filled(api)
        before, known = answers(api, "kb"), ids(api)
        events = migrate(api, vs_type="graph")
        assert [event["code"] for event in events] == [200] * 3
        assert "faiss → graph" in events[-1]["msg"]
        assert place(api) == ("graph", "fake", 1)
        assert answers(api, "kb") == before
        assert ids(api) == known
        wait_until_idle(api)
        assert migrate(api, vs_type="faiss")[-1]["code"] == 200
        assert (answers(api, "kb"), ids(api)) == (before, known)
        assert {item["state"] for item in api.details("kb").values()} == {"ready"}
        api.upload("kb", {"new.txt": "a new harbour"})
        assert api.texts("kb", "harbour", search_type="keyword") == ["a new harbour"]
    check_indexes(settings)
    assert len(list((tmp_path / "data" / "index").glob("kb*/g*"))) == 1


def test_searches_and_uploads_go_on_during_a_move(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path / "data")
    with running(settings) as api:
        filled(api)
        stop, found = threading.Event(), []

        def look() -> None:
            while not stop.is_set():
                found.append(len(api.texts("kb", "file3 line5", search_type="similarity")))

        def add() -> None:
            for n in range(6):
                api.upload("kb", {f"more{n}.txt": f"more of number{n}"})

        with ThreadPoolExecutor(2) as pool:
            looking, adding = pool.submit(look), pool.submit(add)
            for store in ("graph", "faiss", "graph"):
                assert migrate(api, vs_type=store)[-1]["code"] == 200
            adding.result()
            stop.set()
            looking.result()
        assert min(found) > 0
        wait_until_idle(api)
        assert len(api.files("kb")) == len(FILES) + 6
        assert {item["state"] for item in api.details("kb").values()} == {"ready"}
        assert api.texts("kb", "number5", search_type="keyword") == ["more of number5"]
    check_indexes(settings)


@pytest.mark.parametrize("kind", ["keyword", "similarity"])
def test_a_search_that_began_before_a_move_starts_again(api: Api, kind: SearchType) -> None:
    filled(api)
    service = KBServiceFactory.get_service_by_name("kb")
    assert service is not None
    before = service.kb()
    migrate(api, vs_type="graph")
    question = Question.of("file3 line5", np.ones(16, np.float32) / 4)
    with service.context.db.read() as sql, pytest.raises(StaleIndex):
        service.indexes.search(sql, before, question, Wanted(3, 4.0, kind, gate=False))
    assert service.search_docs("file3 line5", 3, 4.0, kind)


def test_a_store_that_lacks_something_is_not_moved_to(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(api)
    before = answers(api, "kb")
    service_class = type(KBServiceFactory.get_service("kb", "graph"))
    monkeypatch.setattr(service_class, "do_ids", lambda self, space: [1, 2])
    events = migrate(api, vs_type="graph")
    assert events[-1]["code"] == 500
    assert "nothing was changed" in events[-1]["msg"]
    assert "未切换" in events[-1]["msg"]
    assert place(api) == ("faiss", "fake", 1)
    assert answers(api, "kb") == before


def test_a_store_that_does_not_find_is_not_moved_to(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(api)
    service_class = type(KBServiceFactory.get_service("kb", "graph"))
    monkeypatch.setattr(service_class, "do_search", lambda self, space, vector, top_k, allowed=None: [1])
    assert "not found" in migrate(api, vs_type="graph")[-1]["msg"].replace("are not found", "not found")
    assert place(api) == ("faiss", "fake", 1)


def test_another_model_and_back(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path / "data")
    with running(settings) as api:
        filled(api)
        before = answers(api, "kb")
        events = migrate(api, embed_model="fake8")
        assert [event["code"] for event in events] == [200] * len(FILES)
        assert place(api) == ("faiss", "fake8", 2)
        after = answers(api, "kb")
        assert after != before
        assert migrate(api, back=True) == []
        assert place(api) == ("faiss", "fake", 2)
        assert answers(api, "kb") == before
        assert migrate(api, back=True) == []  # and forth again
        assert answers(api, "kb") == after
    check_indexes(settings)


def test_what_changed_since_is_there_after_going_back(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path / "data")
    with running(settings) as api:
        filled(api)
        api.upload("kb", {"long.txt": text_of(3, lines=30)}, chunk_size=10, chunk_overlap=0)
        migrate(api, embed_model="fake8")
        api.upload("kb", {"new.txt": "a new harbour"})
        api.upload("kb", {"f1.txt": "first file, quokkabrook"}, override="true")
        api.delete_docs("kb", "f2.txt", delete_content=True)
        chunk = api.search("kb", "", file_name="long.txt")[0]
        docs = {str(chunk["id"]): None}
        api.post("/knowledge_base/update_docs_by_id", knowledge_base_name="kb", docs=docs)
        assert [event["doc"] for event in migrate(api, back=True)] == ["f1.txt", "long.txt", "new.txt"]
        assert place(api)[:2] == ("faiss", "fake")
        assert api.texts("kb", "harbour", search_type="keyword") == ["a new harbour"]
        assert api.texts("kb", "quokkabrook", search_type="keyword") == ["first file, quokkabrook"]
        assert "f2.txt" not in api.files("kb")
        left = [hit["page_content"] for hit in api.search("kb", "", file_name="long.txt")]
        assert len(left) == 2
        assert chunk["page_content"] not in left
    check_indexes(settings)


def test_a_rebuild_ends_what_was_kept(api: Api) -> None:
    filled(api)
    migrate(api, embed_model="fake8")
    api.recreate("kb")
    assert place(api) == ("faiss", "fake8", 1)
    event = migrate(api, back=True)[-1]
    assert event["code"] == 422
    assert "可回退" in event["msg"]
    assert "go back" in event["msg"]


@pytest.mark.parametrize(
    ("where", "code"),
    [({}, 422), ({"vs_type": "faiss"}, 422), ({"vs_type": "nowhere"}, 422), ({"embed_model": "none"}, 500)],
    ids=["nothing", "the same", "no store", "no model"],
)
def test_moves_that_make_no_sense_are_refused(api: Api, where: Any, code: int) -> None:
    filled(api)
    assert migrate(api, **where)[-1]["code"] == code
    assert place(api) == ("faiss", "fake", 1)


def test_a_move_after_a_crash_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = fake_settings(tmp_path / "data")
    with running(settings) as api:
        filled(api)
        before = answers(api, "kb")
        real = moving.verify

        def crash(*_: Any) -> int:
            raise MoveFailed("stop here")

        monkeypatch.setattr(moving, "verify", crash)
        assert "stop here" in migrate(api, vs_type="graph")[-1]["msg"]
        assert answers(api, "kb") == before
        monkeypatch.setattr(moving, "verify", real)
        job = api.http.get("/jobs").json()[0]
        api.post(f"/jobs/{job['id']}/retry")
        wait_until_idle(api)
        assert place(api) == ("graph", "fake", 1)
        assert answers(api, "kb") == before


@pytest.mark.slow
def test_kill_at_many_points_of_a_move(process: ServerProcess) -> None:
    process.write(embedding_models=[*SLOW, {"name": "fake8", "provider": "fake", "options": SLOW[0].options}])
    api = process.start().api()
    filled(api)
    before = answers(api, "kb")
    body = {"knowledge_base_name": "kb", "embed_model": "fake8", "vs_type": "graph"}
    with api.http.stream("POST", "/knowledge_base/migrate", json=body) as response:
        next(response.iter_raw())
    for pause in (0.02, 0.1, 0.2):
        time.sleep(pause)
        now = answers(api, "kb")
        job = api.http.get("/jobs").json()[0]
        if job["finished"] < job["total"]:  # the swap comes after the last file
            assert now == before
        process.kill()
        api = process.start().api()
    wait_until_idle(api)
    (job,) = (job for job in api.http.get("/jobs").json() if job["kind"] == "rebuild")
    assert job["state"] == "done"
    assert answers(api, "kb") != before
    process.stop()
    done = process.zhiku("kb", "migrate", "kb", "--back")
    assert done.returncode == 0, done.stderr
    assert "moved" in done.stdout
    done = process.zhiku("kb", "migrate", "kb", "--to", "faiss")
    assert done.returncode == 1
    assert "already" in done.stderr or "name another" in done.stderr
    assert answers(process.start().api(), "kb") == before
    process.stop()
    check_indexes(fake_settings(process.data, embedding_models=SLOW))
