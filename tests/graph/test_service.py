"""A knowledge base with a graph, as clients use it; no language model."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from configs import Settings
from server.db import graphs
from server.domain import Edits
from server.graph.graph import Graph
from server.graph.nlp import extract
from server.knowledge_base.backends.graph import GraphKBService
from server.knowledge_base.factory import KBServiceFactory
from tests.conftest import Api
from tests.contract.stores import Store, store_of

ADA = "Ada Lovelace wrote the first program for Charles Babbage in London."
BABBAGE = "Charles Babbage designed the Analytical Engine. He lived in Marylebone."
ENGINE = "The Analytical Engine was never finished; Henry Prevost built a part of it."
SANGUO = "刘备与关羽、张飞在桃园结义。诸葛亮辅佐刘备，在赤壁击败曹操。"


def built(api: Api, name: str = "g") -> dict[str, Any]:
    deadline = time.monotonic() + 300  # a shared machine may be very slow for a while
    while True:
        state = api.http.get("/graph/state", params={"knowledge_base_name": name}).json()
        if state["done"] + state["failed"] == state["chunks"] and not state["building"]:
            return dict(state)
        jobs = api.http.get("/jobs").json()
        assert not [job for job in jobs if job["kind"] == "graph" and job["state"] == "failed"], jobs
        assert time.monotonic() < deadline, state
        time.sleep(0.05)


@pytest.fixture(params=["faiss", "pg", "milvus"], scope="module")
def store(request: pytest.FixtureRequest) -> Store:
    """Where the vectors of chunks lie; the graph above them is to be the same."""
    return store_of(request.param)


@pytest.fixture
def settings(store: Store, settings_dir: Path) -> Settings:
    return store.settings(settings_dir, default_vs_type="faiss", graph_vector_store=store.vs_type.value)


@pytest.fixture
def graph_api(api: Api) -> Api:
    assert api.create("g", vector_store_type="graph")["code"] == 200
    sent = api.upload("g", {"ada.txt": ADA, "babbage.txt": BABBAGE, "engine.txt": ENGINE, "三国.txt": SANGUO})
    assert sent["data"]["failed_files"] == {}
    built(api)
    return api


def entities(api: Api, query: str = "") -> list[str]:
    answer = api.http.get("/graph/entities", params={"knowledge_base_name": "g", "query": query}).json()
    return [entity["name"] for entity in answer["entities"]]


def service() -> GraphKBService:
    found = KBServiceFactory.get_service_by_name("g")
    assert isinstance(found, GraphKBService)
    return found


def test_a_graph_is_built_by_itself_in_both_languages(graph_api: Api) -> None:
    state = built(graph_api)
    assert (state["chunks"], state["done"], state["failed"], state["calls"]) == (4, 4, 0, 0)
    assert {row["file_name"] for row in state["files"]} == {"ada.txt", "babbage.txt", "engine.txt", "三国.txt"}
    names = entities(graph_api)
    assert {"Ada Lovelace", "Charles Babbage", "Analytical Engine", "刘备", "关羽", "曹操"} <= set(names)
    around = graph_api.http.get(
        "/graph/neighbourhood", params={"knowledge_base_name": "g", "name": "charles babbage", "depth": 2}
    ).json()
    assert "Ada Lovelace" in [entity["name"] for entity in around["entities"]]
    assert all(relation["chunk_ids"] for relation in around["relations"])


@pytest.mark.parametrize("mode", ["local", "global", "hybrid", "mix", "ppr"])
def test_every_mode_finds_cited_chunks(graph_api: Api, mode: str) -> None:
    found = graph_api.post("/graph/query/data", knowledge_base_name="g", query="What did Charles Babbage design?",
                           mode=mode, top_k=4)  # fmt: skip
    assert "Charles Babbage" in [entity["name"] for entity in found["entities"][:4]]
    files = [chunk["file_name"] for chunk in found["chunks"]]
    assert {"ada.txt", "babbage.txt"} <= set(files)
    first = found["chunks"][0]
    assert (
        first["text"]
        == {"ada.txt": ADA, "babbage.txt": BABBAGE, "engine.txt": ENGINE}[first["file_name"]][
            first["start"] : first["end"]
        ]
    )
    hits = graph_api.post("/retrieval/search", knowledge_base_names=["g"], query="谁辅佐刘备？", mode=mode)["hits"]
    assert hits[0]["file_name"] == "三国.txt"
    asked = graph_api.events("/chat/knowledge_base_chat", query="谁辅佐刘备？", knowledge_base_name="g", stream=True,
                             mode=mode)  # fmt: skip
    assert "诸葛亮" in "".join(event.get("answer", "") for event in asked)


def test_a_score_means_the_same_in_every_mode(graph_api: Api) -> None:
    ask = {"knowledge_base_names": ["g"], "query": "What did Charles Babbage design?", "score_threshold": 4}
    plain = graph_api.post("/retrieval/search", top_k=2, search_type="keyword", **ask)["hits"]
    everything = {hit["id"]: hit["score"] for hit in graph_api.post("/retrieval/search", top_k=9, **ask)["hits"]}
    walked = graph_api.post("/retrieval/search", top_k=9, mode="ppr", **ask)["hits"]
    assert len(walked) > len(plain)
    assert {hit["id"]: hit["score"] for hit in walked} == {hit["id"]: everything[hit["id"]] for hit in walked}
    limit = sorted(everything.values())[0]
    kept = graph_api.post("/retrieval/search", top_k=9, mode="ppr", **{**ask, "score_threshold": limit})["hits"]
    assert all(hit["score"] <= limit for hit in kept)


def test_a_filter_holds_for_the_graph_too(graph_api: Api) -> None:
    only = {"type": "eq", "key": "file_name", "value": "ada.txt"}
    found = graph_api.post("/graph/query/data", knowledge_base_name="g", query="Charles Babbage and Ada Lovelace",
                           mode="mix", top_k=9, filters=only)  # fmt: skip
    assert {chunk["file_name"] for chunk in found["chunks"]} == {"ada.txt"}
    assert "Analytical Engine" not in [entity["name"] for entity in found["entities"]]


def test_a_deleted_file_leaves_the_graph_as_if_it_had_never_been_there(graph_api: Api, settings_dir: Path) -> None:
    before = sorted(entities(graph_api))
    graph_api.upload("g", {"extra.txt": "Grace Hopper met Ada Lovelace's biographer in Zanzibar."})
    built(graph_api)
    assert "Grace Hopper" in entities(graph_api)
    graph_api.delete_docs("g", "extra.txt", delete_content=True)
    assert sorted(entities(graph_api)) == before
    with KBServiceFactory.context().db.read() as sql:
        fresh = Graph()
        for chunk_id, found in graphs.everything(sql, service().generation().id):
            assert found is not None
            fresh.put(chunk_id, found)
    with service().graph() as graph:
        assert (graph.nodes, graph.edges) == (fresh.nodes, fresh.edges)
    held = [path for path in settings_dir.rglob("*") if path.is_file() and b"Zanzibar" in path.read_bytes()]
    assert held == []


def test_a_new_version_reads_only_what_changed(graph_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n\n".join(f"Station {n} is run by Captain Number{n} in Harbour{n}. " + "It rains. " * 6 for n in range(8))
    graph_api.upload("g", {"long.txt": text}, chunk_size=100, chunk_overlap=0)
    built(graph_api)
    read: list[str] = []

    def watched(text: str, lang: str) -> Any:
        read.append(text)
        return extract(text, lang)

    monkeypatch.setattr("server.graph.extractor.extract", watched)
    changed = text.replace("Captain Number3", "Captain Nemo")
    graph_api.upload("g", {"long.txt": changed}, override=True, chunk_size=100, chunk_overlap=0)
    built(graph_api)
    assert len(read) == 1
    assert "Captain Nemo" in read[0]
    assert "Captain Nemo" in entities(graph_api, "nemo")
    assert entities(graph_api, "Number3") == []


def test_an_edited_chunk_says_something_else(graph_api: Api) -> None:
    chunk = graph_api.texts("g", "Ada Lovelace first program")
    assert ADA in chunk
    hit = graph_api.search("g", ADA, top_k=1)[0]
    edit = {hit["metadata"]["id"] if "id" in hit["metadata"] else hit["id"]: {"page_content": "Grace Hopper was here."}}
    graph_api.post("/knowledge_base/update_docs_by_id", knowledge_base_name="g", docs=edit)
    built(graph_api)
    assert "Grace Hopper" in entities(graph_api)
    assert "Ada Lovelace" not in entities(graph_api)


def test_merges_can_be_undone(graph_api: Api) -> None:
    graph_api.post("/graph/merge", knowledge_base_name="g", names=["Ada Lovelace"], into="Charles Babbage")
    assert "Ada Lovelace" not in entities(graph_api)
    view = graph_api.http.get("/graph/entities", params={"knowledge_base_name": "g", "query": "babbage"}).json()
    assert "Ada Lovelace" in view["entities"][0]["names"]
    graph_api.post("/graph/split", knowledge_base_name="g", name="Charles Babbage")
    assert {"Ada Lovelace", "Charles Babbage"} <= set(entities(graph_api))
    refused = graph_api.post("/graph/merge", knowledge_base_name="g", names=["Nobody"], into="Charles Babbage")
    assert refused["code"] == 404


def test_a_merge_goes_with_the_files_that_named_its_entities(graph_api: Api, settings_dir: Path) -> None:
    graph_api.upload("g", {"extra.txt": "Grace Quokkabrook met Ada Lovelace."})
    built(graph_api)
    graph_api.post("/graph/merge", knowledge_base_name="g", names=["Grace Quokkabrook"], into="Ada Lovelace")
    graph_api.delete_docs("g", "extra.txt", delete_content=True)
    with KBServiceFactory.context().db.read() as sql:
        assert graphs.edits(sql, service().kb().id) == Edits()
    held = [path for path in settings_dir.rglob("*") if path.is_file() and b"quokkabrook" in path.read_bytes().lower()]
    assert held == []


def test_one_bad_chunk_stops_no_other_and_can_be_tried_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fragile(text: str, lang: str) -> Any:
        if "Babbage" in text:
            raise RecursionError
        return extract(text, lang)

    monkeypatch.setattr("server.graph.extractor.extract", fragile)
    api.create("g", vector_store_type="graph")
    api.upload("g", {"babbage.txt": BABBAGE, "engine.txt": ENGINE})
    state = built(api)
    assert (state["chunks"], state["done"], state["failed"]) == (2, 1, 1)
    assert "Henry Prevost" in entities(api)
    monkeypatch.setattr("server.graph.extractor.extract", extract)
    assert api.post("/graph/retry", knowledge_base_name="g")["data"] == {"chunks": 1}
    state = built(api)
    assert (state["done"], state["failed"]) == (2, 0)
    assert "Charles Babbage" in entities(api)


def test_a_chunk_that_is_edited_while_it_is_read_is_read_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    edited = threading.Event()
    reading = threading.Event()

    def slow(text: str, lang: str) -> Any:
        reading.set()
        edited.wait(60)
        return extract(text, lang)

    monkeypatch.setattr("server.graph.extractor.extract", slow)
    api.create("g", vector_store_type="graph")
    api.upload("g", {"ada.txt": ADA})
    assert reading.wait(60)
    chunk = api.http.get("/knowledge_base/chunks", params={"knowledge_base_name": "g"}).json()["chunks"][0]
    docs = {chunk["id"]: {"page_content": "Grace Hopper was here."}}
    api.post("/knowledge_base/update_docs_by_id", knowledge_base_name="g", docs=docs)
    edited.set()
    built(api)
    assert entities(api) == ["Grace Hopper"]


def test_files_are_searchable_before_the_graph_is_there(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = {"on": True}

    def slow(text: str, lang: str) -> Any:
        while wait["on"]:
            time.sleep(0.01)
        return extract(text, lang)

    monkeypatch.setattr("server.graph.extractor.extract", slow)
    api.create("g", vector_store_type="graph")
    api.upload("g", {"ada.txt": ADA})
    assert api.texts("g", "first program") == [ADA]
    state = api.http.get("/graph/state", params={"knowledge_base_name": "g"}).json()
    assert (state["chunks"], state["done"], state["building"]) == (1, 0, True)
    hits = api.post("/retrieval/search", knowledge_base_names=["g"], query="Ada Lovelace", mode="ppr",
                    score_threshold=4)["hits"]  # fmt: skip
    assert [hit["file_name"] for hit in hits] == ["ada.txt"]
    wait["on"] = False
    assert built(api)["entities"] > 0


def test_a_knowledge_base_without_a_graph_says_so(api: Api) -> None:
    api.create("plain")
    answer = api.post("/retrieval/search", knowledge_base_names=["plain"], query="x", mode="ppr")
    assert answer["code"] == 400 or "naive" in answer["msg"]
    state = api.http.get("/graph/state", params={"knowledge_base_name": "plain"}).json()
    assert "vector_store_type graph" in state["msg"]


def test_a_rebuild_makes_a_graph_of_a_plain_knowledge_base(api: Api) -> None:
    api.create("g")
    api.upload("g", {"ada.txt": ADA, "babbage.txt": BABBAGE})
    assert all(event["code"] == 200 for event in api.recreate("g", vs_type="graph"))
    built(api)
    assert "Ada Lovelace" in entities(api)
    exported = api.http.get("/graph/export", params={"knowledge_base_name": "g", "format": "graphml"})
    assert "Charles Babbage" in exported.text


def test_people_add_change_and_leave_out(graph_api: Api) -> None:
    def edit(what: str, **values: Any) -> Any:
        return graph_api.post(f"/graph/{what}", knowledge_base_name="g", **values)["code"]

    assert edit("entity/create", name="Mary Somerville", type="person", description="taught Ada") == 200
    assert edit("entity/create", name="mary somerville") == 404  # there is one
    assert edit("relation/create", source="Mary Somerville", target="ada lovelace", label="taught") == 200
    assert edit("relation/create", source="Mary Somerville", target="Ada Lovelace") == 404
    assert edit("relation/create", source="Ada Lovelace", target=" ada  LOVELACE ") == 422
    assert edit("relation/edit", source="Ada Lovelace", target="Mary Somerville") == 404
    assert edit("relation/edit", source="Mary Somerville", target="Ada Lovelace", description="from 1834") == 200
    around = graph_api.http.get("/graph/neighbourhood", params={"knowledge_base_name": "g", "name": "Mary Somerville"})
    found = around.json()
    assert found["entities"][0] | {"value": None} == {
        "id": "marysomerville", "name": "Mary Somerville", "type": "person", "names": ["Mary Somerville"],
        "description": "taught Ada", "mentions": 0, "chunk_ids": [], "claims": [], "value": None,
    }  # fmt: skip
    assert [(one["source"], one["label"], one["description"]) for one in found["relations"]] == [
        ("Mary Somerville", "", "from 1834")
    ]
    assert edit("entity/edit", name="Charles Babbage", new_name="C. Babbage", type="inventor") == 200
    assert {"C. Babbage"} == set(entities(graph_api, "babbage"))
    assert edit("entity/edit", name="Nobody", type="x") == 404
    assert edit("entity/delete", name="Analytical Engine") == 200
    assert entities(graph_api, "Analytical") == []
    assert edit("entity/create", name="Analytical Engine") == 200
    assert entities(graph_api, "Analytical") == ["Analytical Engine"]
    assert edit("relation/delete", source="Mary Somerville", target="Ada Lovelace") == 200
    assert edit("relation/delete", source="Mary Somerville", target="Ada Lovelace") == 404
    # what people add is found, and is no passage
    query = {"knowledge_base_name": "g", "query": "Who is Mary Somerville?", "mode": "local"}
    data = graph_api.post("/graph/query/data", **query)
    assert "Mary Somerville" in [entity["name"] for entity in data["entities"]]
    filtered = graph_api.post(
        "/graph/query/data", **query, filters={"type": "eq", "key": "file_name", "value": "engine.txt"}
    )
    assert "Mary Somerville" not in [entity["name"] for entity in filtered["entities"]]
    export = graph_api.http.get("/graph/export", params={"knowledge_base_name": "g"}).text
    assert '"name":"Mary Somerville","type":"person"' in export


def imported(api: Api, data: bytes, name: str = "copy") -> Any:
    return api.http.post("/graph/import", data={"knowledge_base_name": name}, files={"file": ("graph", data)}).json()


@pytest.mark.parametrize("format_", ["jsonl", "graphml"])
def test_a_graph_that_was_exported_can_be_imported(graph_api: Api, format_: str) -> None:
    named = {"knowledge_base_name": "g"}
    graph_api.post(
        "/graph/entity/create", **named, name="Caroline Herschel", type="person", description="她发现了八颗彗星"
    )
    graph_api.post("/graph/entity/create", **named, name="Ada & <Co>")
    graph_api.post("/graph/relation/create", **named, source="Caroline Herschel", target="Ada & <Co>", weight=3)
    before = graph_api.http.get("/graph/export", params={**named, "format": format_}).content
    graph_api.create("copy", vector_store_type="graph")
    counts = imported(graph_api, before)["data"]
    state = graph_api.http.get("/graph/state", params={"knowledge_base_name": "copy"}).json()
    assert counts == {"entities": state["entities"], "relations": state["relations"]}
    assert state["entities"] == graph_api.http.get("/graph/state", params=named).json()["entities"] > 2
    found = graph_api.http.get("/graph/entities", params={"knowledge_base_name": "copy", "query": "caroline"}).json()
    assert found["entities"][0]["description"] == "她发现了八颗彗星"
    assert imported(graph_api, before)["data"] == {"entities": 0, "relations": 0}
    graph_api.delete("copy")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"source,target\n1,2", "line 1"),
        (b'{"kind": "entity", "name": "A"}\n{"kind": "relation", "source": "A"}', "line 2"),
        (b'{"kind": "relation", "source": "A", "target": "B", "weight": -1}', "line 1"),
        (b'{"kind": "entity", "name": ""}', "line 1"),
        (b"<graphml><graph><edge source='1' target='2'/></graph></graphml>", "invalid node or edge"),
        (b"<graphml><graph>", "XML"),
        (
            b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><graphml><graph><node id="&a;"/></graph></graphml>',
            "",
        ),
    ],
)
def test_what_is_no_graph_is_refused_with_the_reason(graph_api: Api, data: bytes, reason: str) -> None:
    answer = imported(graph_api, data, "g")
    assert answer["code"] in (400, 422)
    assert reason in answer["msg"]
    assert "root:" not in answer["msg"]
