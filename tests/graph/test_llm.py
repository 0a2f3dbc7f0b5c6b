"""Chunks read by a language model: what is kept of its answers, what is asked again, what it may cost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from server.domain import Extraction, Mention, Relation
from server.errors import LLMIncomplete
from server.graph.replies import extraction_of, read_object
from server.models.fake_llm import FakeLLM, Reply
from tests.conftest import Api, ServerProcess, app_of, fake_settings, llm_model
from tests.graph.test_service import built

ADA = "Ada Lovelace wrote the first program for Charles Babbage in London."
ENGINE = "The Analytical Engine was never finished; Henry Prevost built a part of it."
SANGUO = "刘备字玄德，与关羽、张飞在桃园结义。"


def entity(name: str, kind: str = "person", description: str = "", aliases: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"name": name, "type": kind, "description": description, "aliases": list(aliases)}


def relation(source: str, target: str, label: str = "knows", description: str = "") -> dict[str, Any]:
    return {"source": source, "target": target, "label": label, "description": description, "strength": 8}


def said(entities: list[dict[str, Any]], relations: list[dict[str, Any]] | None = None) -> Reply:
    return Reply([json.dumps({"entities": entities, "relations": relations or []}, ensure_ascii=False)])


def text_of(body: dict[str, Any]) -> str:
    return str(body["messages"][1]["content"])


def reader(body: dict[str, Any]) -> Reply:
    """An honest model."""
    text = text_of(body)
    if "Ada" in text:
        return said(
            [entity("Ada Lovelace", description="wrote the first program"), entity("Charles Babbage")],
            [relation("Ada Lovelace", "Charles Babbage", "wrote for", "a program was written for him")],
        )
    if "荆州" in text:
        return said([entity("玄德", "人物")])
    if "刘备" in text:
        return said(
            [entity("刘备", "人物", "在桃园结义", ("玄德",)), entity("关羽", "人物")],
            [relation("刘备", "关羽", "结义")],
        )
    return said([entity("Analytical Engine", "product", "was never finished")])


@pytest.fixture
def api(tmp_path: Path, llm: FakeLLM) -> Iterator[Api]:
    llm.answer = reader
    model = llm_model(llm, max_retries=0, price_in=1, price_out=2)
    with TestClient(app_of(fake_settings(tmp_path / "data", llm_models=[model]))) as client:
        api = Api(client)
        assert api.create("g", vector_store_type="graph")["code"] == 200
        assert api.post("/graph/settings", knowledge_base_name="g", extractor="fake-llm")["code"] == 200
        yield api


def names(api: Api, query: str = "") -> list[str]:
    answer = api.http.get("/graph/entities", params={"knowledge_base_name": "g", "query": query}).json()
    return sorted(entity["name"] for entity in answer["entities"])


def relations(api: Api) -> list[tuple[str, str, str]]:
    answer = api.http.get("/graph/relations", params={"knowledge_base_name": "g"}).json()
    return sorted((one["source"], one["label"], one["target"]) for one in answer["relations"])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300  # a shared machine may be very slow for a while
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def state_of(api: Api) -> dict[str, Any]:
    return dict(api.http.get("/graph/state", params={"knowledge_base_name": "g"}).json())


def ended_early(api: Api) -> dict[str, Any]:
    until(lambda: bool(state_of(api)["reason"]) and not state_of(api)["building"])
    return state_of(api)


def test_a_model_reads_chunks_in_their_language(api: Api, llm: FakeLLM) -> None:
    api.upload("g", {"ada.txt": ADA, "三国.txt": SANGUO})
    state = built(api)
    assert (state["done"], state["calls"], state["extractor"]) == (2, 2, "fake-llm")
    assert state["tokens"] > 20
    assert names(api) == ["Ada Lovelace", "Charles Babbage", "关羽", "刘备"]
    assert relations(api) == [("Ada Lovelace", "wrote for", "Charles Babbage"), ("刘备", "结义", "关羽")]
    prompts = {text_of(body)[:20]: body["messages"][0]["content"] for body in llm.bodies}
    assert any("知识图谱" in prompt for text, prompt in prompts.items() if "刘备" in text)
    assert not any("知识图谱" in prompt for text, prompt in prompts.items() if "Ada" in text)
    found = api.http.get("/graph/entities", params={"knowledge_base_name": "g", "query": "ada"}).json()["entities"][0]
    assert (found["type"], found["description"]) == ("person", "wrote the first program")
    assert llm.bodies[0]["response_format"]["type"] == "json_schema"


def test_names_that_a_chunk_gives_one_entity_are_one(api: Api) -> None:
    api.upload("g", {"三国.txt": SANGUO})
    built(api)
    api.post("/graph/split", knowledge_base_name="g", name="玄德")
    api.post("/graph/build", knowledge_base_name="g")
    api.upload("g", {"london.txt": ADA})
    built(api)  # it stays split though nothing but an alias says it
    around = {"knowledge_base_name": "g", "name": "玄德"}
    assert api.http.get("/graph/neighbourhood", params=around).json()["code"] == 404
    api.delete_docs("g", "三国.txt", delete_content=True)  # with all that was decided of its names
    api.upload("g", {"三国.txt": SANGUO})
    built(api)
    assert api.http.get("/graph/neighbourhood", params=around).json()["entities"][0]["names"] == ["刘备", "玄德"]
    api.upload("g", {"又.txt": "玄德到了荆州。"})
    built(api)
    assert {"关羽", "刘备"} <= set(names(api))
    assert "玄德" not in names(api)
    assert api.post("/graph/split", knowledge_base_name="g", name="玄德")["data"] == {"split": ["玄德"]}
    assert {"关羽", "刘备", "玄德"} <= set(names(api))


def test_what_the_text_does_not_say_is_counted_and_left_out(api: Api, llm: FakeLLM) -> None:
    invented = [entity(name) for name in ("Noah Carter", "<entity_name>", "World Athletics Championship")]
    llm.default = said([entity("Ada Lovelace"), *invented], [relation("Ada Lovelace", "Noah Carter")])
    llm.answer = None
    api.upload("g", {"ada.txt": ADA})
    state = built(api)
    assert names(api) == ["Ada Lovelace"]
    assert state["dropped"] == 4


def test_an_answer_that_is_cut_is_asked_for_again_and_harms_no_other(api: Api, llm: FakeLLM) -> None:
    broken: list[float] = []

    def cut(body: dict[str, Any]) -> Reply:
        whole = reader(body).tokens[0]
        if "Ada" in text_of(body):
            broken.append(body["temperature"])
            if len(broken) < 3:
                return Reply([whole[: len(whole) // 2]], finish=["length", "stop"][len(broken) % 2])
        return Reply([whole])

    llm.answer = cut
    api.upload("g", {"ada.txt": ADA, "engine.txt": ENGINE})
    state = built(api)
    assert (state["done"], state["failed"]) == (2, 0)
    assert len(broken) == 3
    assert broken[0] < broken[1] < broken[2]  # the same question would get the same answer
    assert "Charles Babbage" in names(api)


def test_an_answer_that_never_parses_is_a_failure_that_can_be_seen(api: Api, llm: FakeLLM) -> None:
    llm.answer = lambda body: Reply(["I cannot do that."]) if "Ada" in text_of(body) else reader(body)
    api.upload("g", {"ada.txt": ADA, "engine.txt": ENGINE})
    state = built(api)
    assert (state["done"], state["failed"], state["calls"]) == (1, 1, 4)
    assert {row["file_name"]: row["failed"] for row in state["files"]} == {"ada.txt": 1, "engine.txt": 0}
    llm.answer = reader
    assert api.post("/graph/retry", knowledge_base_name="g")["data"] == {"chunks": 1}
    assert built(api)["failed"] == 0


def test_a_model_that_is_down_loses_nothing(api: Api, llm: FakeLLM) -> None:
    llm.answer = lambda _: Reply(status=500)
    api.upload("g", {"ada.txt": ADA, "engine.txt": ENGINE})
    state = ended_early(api)
    assert (state["done"], state["failed"]) == (0, 0)
    assert "HTTP 500" in state["reason"]
    llm.answer = reader
    api.post("/graph/build", knowledge_base_name="g")
    until(lambda: state_of(api)["done"] == 2)


def test_gleaning_asks_for_more_and_adds_it(api: Api, llm: FakeLLM) -> None:
    def more(body: dict[str, Any]) -> Reply:
        if len(body["messages"]) == 2:
            return said([entity("Ada Lovelace")])
        known = json.loads(body["messages"][2]["content"])
        assert [one["name"] for one in known["entities"]][0] == "Ada Lovelace"
        if len(known["entities"]) == 1:
            return said([entity("London", "location")], [relation("Ada Lovelace", "London", "lived in")])
        return said([])

    llm.answer = more
    api.post("/graph/settings", knowledge_base_name="g", gleanings=4)
    api.upload("g", {"ada.txt": ADA})
    state = built(api)
    assert state["calls"] == 3  # the last one found nothing new
    assert relations(api) == [("Ada Lovelace", "lived in", "London")]


def test_a_budget_stops_a_build_before_it_is_overrun_by_much(api: Api, llm: FakeLLM) -> None:
    api.post("/graph/settings", knowledge_base_name="g", token_budget=1)
    files = {f"f{n}.txt": f"{ENGINE} Number {n}." for n in range(40)}
    api.upload("g", files)
    state = ended_early(api)
    assert "budget" in state["reason"]
    assert 0 < state["done"] < 40
    assert len(llm.bodies) < 40
    api.upload("g", {"one-more.txt": ADA})
    assert not state_of(api)["building"]
    api.post("/graph/settings", knowledge_base_name="g", token_budget=0)
    until(lambda: state_of(api)["done"] == 41)
    assert state_of(api)["calls"] == 41  # nothing was paid twice


def test_an_estimate_comes_before_anything_is_spent(api: Api, llm: FakeLLM) -> None:
    api.create("n", vector_store_type="graph")
    api.upload("n", {"ada.txt": ADA, "engine.txt": ENGINE})
    built(api, "n")
    about = {"knowledge_base_name": "n", "extractor": "fake-llm", "again": True}
    estimate = api.http.get("/graph/estimate", params=about).json()
    assert (estimate["chunks"], estimate["calls"]) == (2, 2)
    assert estimate["characters"] == len(ADA) + len(ENGINE)
    assert estimate["tokens_in"] > 200
    assert estimate["cost"] == pytest.approx((estimate["tokens_in"] + 2 * estimate["tokens_out"]) / 1e6)
    assert llm.bodies == []
    nothing = api.http.get("/graph/estimate", params={"knowledge_base_name": "n"}).json()
    assert (nothing["chunks"], nothing["calls"], nothing["cost"]) == (0, 0, 0.0)


def test_a_graph_is_read_again_in_another_way_when_that_is_wanted(api: Api) -> None:
    api.post("/graph/settings", knowledge_base_name="g", extractor="nlp")
    api.upload("g", {"engine.txt": ENGINE})
    built(api)
    assert "Henry Prevost" in names(api)
    api.post("/graph/settings", knowledge_base_name="g", extractor="fake-llm")
    assert built(api)["calls"] == 0
    api.post("/graph/build", knowledge_base_name="g", again=True)
    assert built(api)["calls"] == 1
    assert names(api) == ["Analytical Engine"]


def test_many_descriptions_become_one_text_that_goes_with_its_sources(api: Api, llm: FakeLLM) -> None:
    secret = "the quokka in the cellar"

    def wordy(body: dict[str, Any]) -> Reply:
        if "Merge these descriptions" in body["messages"][0]["content"]:
            return Reply(["A summary: " + ("with " + secret if secret in body["messages"][0]["content"] else "plain")])
        number = text_of(body).split("Number ")[1][0]
        extra = secret if number == "0" else ""
        return said([entity("Analytical Engine", "product", f"description {number} {extra} " + "of it " * 400)])

    llm.answer = wordy
    api.upload("g", {f"f{n}.txt": f"The Analytical Engine. Number {n}." for n in range(4)})
    built(api)

    def description() -> str:
        answer = api.http.get("/graph/entities", params={"knowledge_base_name": "g"}).json()
        return str(answer["entities"][0]["description"])

    assert description() == f"A summary: with {secret}"
    calls = len(llm.bodies)
    api.delete_docs("g", "f0.txt", delete_content=True)
    assert secret not in description()
    built(api)
    api.post("/graph/build", knowledge_base_name="g")
    built(api)
    assert len(llm.bodies) - calls <= 1  # only the summary


def test_a_killed_service_pays_no_answer_twice(process: ServerProcess, llm: FakeLLM) -> None:
    texts = {f"f{n}.txt": f"{ENGINE} Number {n}." for n in range(60)}
    llm.answer = lambda body: Reply(reader(body).tokens, delay=0.05)
    process.write(llm_models=[llm_model(llm)], graph_extractor="fake-llm", graph_concurrency=4)
    api = process.start().api()
    api.create("g", vector_store_type="graph")
    api.upload("g", texts)
    for number in (8, 16):
        until(lambda: len(llm.bodies) >= number)  # noqa: B023  # it is called at once
        process.kill()
        api = process.start().api()
    state = built(api)
    assert (state["done"], state["failed"]) == (60, 0)
    # only what was under way when the process died, at most 4 answers a time, is asked for again
    assert state["calls"] == 60
    assert len(llm.bodies) <= 60 + 2 * 8


@pytest.mark.parametrize(
    "reply",
    [
        '```json\n{"entities": [{"name": "Quay"}], "relations": []}\n```',
        'Here you are:\n{"entities": [{"name": "Quay",}, ], "relations": [],}',
        '{{"entities": [{{"name": "Quay"}}], "relations": []}}',
        '{"entities": [{"name": "Quay", "description": "two\nlines"}]}',
        '{"nodes": [{"entity_name": "Quay"}], "edges": []} and that is all',
        '{"entities": [{"name": "Quay", "description": "joins left <|> right"}]}',
    ],
)
def test_what_models_make_of_json_is_understood(reply: str) -> None:
    assert [one.name for one in extraction_of(reply, ()).mentions] == ["Quay"]


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "no",
        "[1, 2]",
        '{"entities": [{"name": "Quay"}, {"na',
        '{"entities": 3}',
        '{"answer": {"entities": []}',
        "{}",
    ],
)
def test_half_an_answer_is_none(reply: str) -> None:
    with pytest.raises(LLMIncomplete):
        extraction_of(reply, ())


def test_half_characters_and_nuls_do_no_harm() -> None:
    (found,) = extraction_of(
        '{"entities": [{"name": "Quay\\ud800", "description": "a\\u0000b", "aliases": ["\\udfff"]}]}', ()
    ).mentions
    assert (found.name, found.description, found.aliases) == ("Quay?", "a b", ("?",))


def test_fields_keep_their_places() -> None:
    reply = json.dumps({"entities": [entity("Lock Gate (Upper Pound)", "Place", "has (x) in it")],
                        "relations": [{"source": "a", "target": "b", "strength": 99}]})  # fmt: skip
    assert extraction_of(reply, ("place",)) == Extraction(
        (Mention("Lock Gate (Upper Pound)", "place", "has (x) in it"),), (Relation("a", "b", weight=1.0),)
    )
    assert read_object('{"a": {"b": 1}}') == {"a": {"b": 1}}
