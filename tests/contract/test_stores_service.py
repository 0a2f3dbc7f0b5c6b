"""One suite for every vector store: what clients see must not depend on where the vectors lie."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from configs import EmbeddingModelSettings
from server.db.doomed import list_all as list_doomed
from server.errors import DimensionMismatch, StoreDown
from server.knowledge_base.context import Space
from server.knowledge_base.expiry import drop_doomed
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.service import KBService
from server.knowledge_base.store_clients import Driver, StoreClients
from tests.conftest import Api
from tests.contract.stores import STORES, WITH_SERVER, Store, store_of
from tests.crash_kit import answers, check_indexes, running, text_of

AXES = {
    "amber lantern": [1.0, 0.0, 0.0],
    "amber lamp": [0.8, 0.6, 0.0],
    "tax form 9": [0.0, 0.0, 1.0],
    "the other side": [-1.0, 0.0, 0.0],
}
MODELS = [
    EmbeddingModelSettings(name="axes", provider="fake", options={"dimension": 3, "vectors": AXES}),
    EmbeddingModelSettings(name="fake", provider="fake", options={"dimension": 16}),
]


@pytest.fixture(params=STORES, scope="module")
def store(request: pytest.FixtureRequest) -> Store:
    return store_of(request.param)


@pytest.fixture
def api(store: Store, tmp_path: Path) -> Iterator[Api]:
    with running(store.settings(tmp_path, embedding_models=MODELS)) as client:
        yield client


def wait_for(condition: Callable[[], bool], patience: float = 90) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def service_of(name: str) -> KBService:
    found = KBServiceFactory.get_service_by_name(name)
    assert found is not None
    return found


def in_store(name: str) -> set[int]:
    """Ids that the store itself holds for a knowledge base."""
    service = service_of(name)
    return set(service.do_ids(Space.of(service.generation())))


def chunks(*texts: str, **metadata: Any) -> str:
    return json.dumps({"f.txt": [{"page_content": text, "metadata": metadata} for text in texts]})


def test_a_knowledge_base_lives_its_life(api: Api, store: Store) -> None:
    """Made, filled, filled again, emptied by chunk and by file, cleared, dropped, made again."""
    assert api.create("生命 Life")["code"] == 200
    api.upload(
        "生命 Life", {"f.txt": "x", "报告.txt": "年度 报告"}, docs=chunks("one word", "two words", "three words")
    )
    assert sorted(api.texts("生命 Life", "words")) == ["one word", "three words", "two words", "年度 报告"]
    first = in_store("生命 Life")
    assert len(first) == 4

    api.upload("生命 Life", {"f.txt": "y"}, override="true", docs=chunks("two words", "four words"))
    assert sorted(api.texts("生命 Life", "words")) == ["four words", "two words", "年度 报告"]
    assert len(in_store("生命 Life")) == 3

    two = next(hit for hit in api.search("生命 Life", "two words", top_k=9) if hit["page_content"] == "two words")
    api.post("/knowledge_base/update_docs_by_id", knowledge_base_name="生命 Life", docs={two["id"]: None})
    assert sorted(api.texts("生命 Life", "words")) == ["four words", "年度 报告"]
    assert int(two["id"]) not in in_store("生命 Life")

    api.delete_docs("生命 Life", "f.txt", delete_content=True)
    assert api.texts("生命 Life", "words") == ["年度 报告"]
    assert len(in_store("生命 Life")) == 1

    service = service_of("生命 Life")
    old = Space.of(service.generation())
    service.clear_vs()
    assert api.texts("生命 Life", "报告") == []
    assert list(service.do_ids(old)) == []
    assert api.delete("生命 Life")["code"] == 200
    assert api.search("生命 Life", "words") == []
    assert api.create("生命 Life")["code"] == 200
    assert api.texts("生命 Life", "words") == []


def test_scores_are_exact_and_the_same_everywhere(api: Api) -> None:
    api.create("kb", embed_model="axes")
    api.upload("kb", {"f.txt": "x"}, docs=chunks(*AXES))
    hits = api.search("kb", "amber lantern", top_k=100, score_threshold=4, search_type="similarity")
    assert [hit["page_content"] for hit in hits] == list(AXES)
    assert [hit["score"] for hit in hits] == pytest.approx([0, 0.4, 2, 4], abs=2e-3)
    assert [hit["similarity"] for hit in hits] == pytest.approx([1, 0.8, 0, 0], abs=1e-3)
    for threshold, count in [(0.3, 1), (0.41, 2), (1.99, 2), (2.01, 3), (4, 4)]:
        found = api.search("kb", "amber lantern", top_k=100, score_threshold=threshold, search_type="similarity")
        assert len(found) == count
    assert len(api.search("kb", "amber lantern", top_k=2, score_threshold=4, search_type="similarity")) == 2


def test_names_of_files_belong_to_their_knowledge_base(api: Api) -> None:
    for name in ("甲", "乙"):
        api.create(name)
        api.upload(name, {"说明.txt": f"{name} 的 说明", "b.txt": f"{name} second"})
    assert sorted(api.texts("甲", "说明")) == ["甲 second", "甲 的 说明"]
    api.delete_docs("甲", "说明.txt", delete_content=True)
    assert api.texts("甲", "说明") == ["甲 second"]
    assert sorted(api.texts("乙", "说明")) == ["乙 second", "乙 的 说明"]
    api.delete("甲")
    assert sorted(api.texts("乙", "说明")) == ["乙 second", "乙 的 说明"]


def test_long_texts_and_odd_metadata_come_back_as_they_were(api: Api) -> None:
    text = "长文本 " + "字" * 21_000 + " with an end 😀"
    odd = {
        "none": None,
        "list": [1, [2, {"a": None}]],
        "deep": {"a": {"b": {"c": ["é", "'", '"', "\\"]}}},
        "键": True,
        "": 1.5,
    }
    assert len(text.encode()) > 60_000
    api.create("kb")
    api.upload("kb", {"f.txt": "x"}, docs=chunks(text, "short", **odd))
    hits = api.search("kb", text[:40], top_k=9, score_threshold=4)
    assert sorted(hit["page_content"] for hit in hits) == sorted([text, "short"])
    for hit in hits:
        assert {key: hit["metadata"][key] for key in odd} == odd


def test_filters_go_first(api: Api) -> None:
    api.create("kb")
    docs = [{"page_content": f"same words {n}", "metadata": {"n": n}} for n in range(300)]
    api.upload("kb", {"f.txt": "x"}, docs=json.dumps({"f.txt": docs}))
    for kind in ("similarity", "hybrid"):
        body = {"knowledge_base_names": ["kb"], "query": "same words 3", "top_k": 10, "search_type": kind}
        wanted = {"type": "gte", "key": "n", "value": 297}
        found = api.post("/retrieval/search", filters=wanted, score_threshold=4, **body)
        assert {hit["metadata"]["n"] for hit in found["hits"]} == {297, 298, 299}


def test_a_restart_and_a_lost_store_change_no_answer(store: Store, tmp_path: Path) -> None:
    settings = store.settings(tmp_path)
    with running(settings) as api:
        api.create("kb")
        api.upload("kb", {f"f{n}.txt": text_of(n) for n in range(9)}, chunk_size=40, chunk_overlap=0)
        before = answers(api, "kb")
        assert sum(map(bool, before)) >= 9
    with running(settings) as api:
        assert answers(api, "kb") == before
        service = service_of("kb")
        service.do_clear_vs(Space.of(service.generation()))  # as if somebody had emptied the store
        assert answers(api, "kb") == before
    check_indexes(settings)


def test_writers_and_readers_do_not_disturb_each_other(api: Api, store: Store, tmp_path: Path) -> None:
    """Every reader sees one version of each file, whole."""
    api.create("kb")
    files = {f"f{n}.txt": n for n in range(4)}
    api.upload(
        "kb", {name: text_of(n, version=1, lines=3) for name, n in files.items()}, chunk_size=40, chunk_overlap=0
    )

    def write(name: str) -> None:
        for version in (2, 3):
            text = text_of(files[name], version=version, lines=3)
            api.upload("kb", {name: text}, override="true", chunk_size=40, chunk_overlap=0)

    def read(_: int) -> list[set[str]]:
        texts = api.texts("kb", "line1")
        return [{text.split(" ")[1] for text in texts if f"file{n} " in text} for n in files.values()]

    with ThreadPoolExecutor(8) as pool:
        writing = [pool.submit(write, name) for name in files]
        seen = list(pool.map(read, range(30)))
        for done in writing:
            done.result()
    assert all(len(versions) == 1 for versions in sum(seen, []))
    assert {text.split(" ")[1] for text in api.texts("kb", "line1")} == {"v3"}
    check_indexes(store.settings(tmp_path, embedding_models=MODELS))


def test_a_model_of_another_dimension_is_refused(store: Store, tmp_path: Path) -> None:
    with running(store.settings(tmp_path)) as api:
        api.create("kb")
        api.upload("kb", {"a.txt": "some text"})
    other = [EmbeddingModelSettings(name="fake", provider="fake", options={"dimension": 8})]
    with running(store.settings(tmp_path, embedding_models=other)) as api:
        with pytest.raises(DimensionMismatch):
            service_of("kb").search_docs("some text", search_type="similarity")
        assert api.upload("kb", {"b.txt": "other text"})["data"]["failed_files"]


@pytest.mark.parametrize("name", WITH_SERVER)
def test_an_engine_that_is_down_is_named_and_comes_back(name: str, tmp_path: Path) -> None:
    store = store_of(name)
    assert store.engine is not None
    with running(store.settings(tmp_path)) as api:
        api.create("kb")
        api.create("other", vector_store_type="faiss")
        api.upload("kb", {"a.txt": "first text", "b.txt": "second text"})
        api.upload("other", {"a.txt": "other text"})
        assert len(api.texts("kb", "text")) == 2
        api.create("doomed")
        api.upload("doomed", {"a.txt": "doomed text"})
        doomed = service_of("doomed").generation()
        store.engine.stop(signal.SIGKILL)
        try:
            told = api.search("kb", "text", top_k=9, score_threshold=4)
            assert told["code"] == 503
            assert f"{store.vs_type.value} 无法连接" in told["msg"]
            assert "out of reach" in told["msg"]
            assert api.texts("kb", "first", search_type="keyword") == ["first text"]
            assert api.texts("other", "text") == ["other text"]
            assert api.upload("kb", {"c.txt": "third text"})["data"]["failed_files"] == {}
            assert api.delete_docs("kb", "a.txt", delete_content=True)["code"] == 200
            assert api.delete("doomed")["code"] == 200
        finally:
            store.engine.start()
        wait_for(lambda: isinstance(api.search("kb", "text"), list))
        assert sorted(api.texts("kb", "text")) == ["second text", "third text"]
        assert len(in_store("kb")) == 2
        service = service_of("kb")
        assert len(list(service.do_ids(Space.of(doomed)))) == 1
        drop_doomed(service.context)
        assert list(service.do_ids(Space.of(doomed))) == []
        with service.context.db.read() as sql:
            assert list_doomed(sql) == []


@pytest.mark.parametrize("name", ["pg", "chroma-http"])
def test_a_server_that_was_started_again_is_not_missed(name: str, tmp_path: Path) -> None:
    store = store_of(name)
    assert store.engine is not None
    with running(store.settings(tmp_path)) as api:
        api.create("kb")
        api.upload("kb", {"a.txt": "first text"})
        assert api.texts("kb", "text") == ["first text"]
        store.engine.stop()
        store.engine.start()
        assert api.texts("kb", "text") == ["first text"]


class Gone(Exception):
    """What a driver raises."""


class Nothing:
    def close(self) -> None:
        pass


def test_who_meets_a_store_that_is_down_does_not_wait_for_it_again() -> None:
    tries = []

    def connect() -> Nothing:
        tries.append(1)
        raise Gone

    clients = StoreClients()
    driver = Driver("pg", "pg.url", connect, (Gone,), lambda _: True)
    for _ in range(5):
        with pytest.raises(StoreDown, match="pg.url"), clients.use(driver):
            pass
    assert len(tries) == 1
