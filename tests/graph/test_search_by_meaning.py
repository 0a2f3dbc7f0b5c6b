"""Searches of a graph by what is said of entities: vectors of descriptions, keywords, what a model is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from configs import ChatModelSettings
from server.app import create_app
from server.models.fake_llm import FakeLLM, Reply
from tests.conftest import Api, ThreadServer, fake_settings
from tests.graph.test_llm import entity, relation, said, text_of, until
from tests.graph.test_service import built

LIGHT = "Elda keeps the lamp of Kap Arkona, and Ruben brings her oil."
SUPPLIES = "Ruben supplies Elda: delivers fuel across the bay"
TIDE = "Ruben counts the herring boats."


def keeper(body: dict[str, Any]) -> Reply:
    """Reads the two texts, names what questions are about, and answers questions."""
    text = str(body["messages"][-1]["content"])
    if "entities and which themes" in text:
        return Reply([json.dumps({"low": ["Elda"], "high": ["keeping a light"]})])
    if len(body["messages"]) == 1 or "<text>" not in text_of(body):
        return Reply(["She keeps the lamp [1]."])
    if "herring" in text_of(body):
        return said([entity("Ruben", description="counts herring boats in secret")])
    return said(
        [entity("Elda", description="guardian of navigation beacons"), entity("Ruben", description="brings oil")],
        [relation("Ruben", "Elda", "supplies", "delivers fuel across the bay")],
    )


def filled(api: Api, name: str) -> None:
    assert api.create(name, vector_store_type="graph")["code"] == 200
    assert api.post("/graph/settings", knowledge_base_name=name, extractor="fake-llm")["code"] == 200
    api.upload(name, {"light.txt": LIGHT, "tide.txt": TIDE})
    built(api, name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, FakeLLM]]:
    fake = FakeLLM(answer=keeper)
    with ThreadServer(fake.app()) as server:
        model = ChatModelSettings(name="fake-llm", base_url=f"http://127.0.0.1:{server.port}/v1", max_retries=0)
        folder = tmp_path_factory.mktemp("meaning")
        settings = fake_settings(folder, llm_models=[model], graph_keyword_model="fake-llm")
        with TestClient(create_app(settings)) as client:
            filled(Api(client), "g")
            yield Api(client), fake


@pytest.fixture
def llm(made: tuple[Api, FakeLLM]) -> FakeLLM:
    fake = made[1]
    fake.answer = keeper
    fake.bodies.clear()
    return fake


@pytest.fixture
def api(made: tuple[Api, FakeLLM], llm: FakeLLM) -> Api:
    del llm
    return made[0]


def ask(api: Api, query: str, **more: Any) -> dict[str, Any]:
    body = {"knowledge_base_name": "g", "query": query, **more}
    return dict(api.http.post("/graph/query/data", json=body).json())


def test_a_question_finds_what_is_said_of_an_entity_and_not_its_name(api: Api) -> None:
    # the fake model finds only what is word for word the same
    given = {"ll_keywords": ["Elda: guardian of navigation beacons"], "hl_keywords": [SUPPLIES]}
    found = ask(api, "Who helps sailors?", mode="local", **given)
    assert found["entities"][0]["name"] == "Elda"
    found = ask(api, "What is brought?", mode="global", **given)
    assert (found["relations"][0]["source"], found["relations"][0]["target"]) == ("Ruben", "Elda")


def test_a_model_names_what_a_question_is_about_once(api: Api, llm: FakeLLM) -> None:
    found = ask(api, "Who watches the coast?", mode="local")
    assert (found["low"], found["high"]) == (["Elda"], ["keeping a light"])
    assert found["entities"][0]["name"] == "Elda"
    asked = len(llm.bodies)
    ask(api, "Who watches the coast?", mode="ppr")
    assert len(llm.bodies) == asked
    assert ask(api, "Elda?", mode="local", ll_keywords=["Ruben"])["low"] == ["Ruben"]  # what is given is not made


def test_a_question_is_searched_by_its_own_words_when_the_model_fails(api: Api, llm: FakeLLM) -> None:
    llm.answer = lambda _: Reply(["no object"])
    found = ask(api, "What does Elda keep?", mode="local")
    assert (found["low"], found["entities"][0]["name"]) == ([], "Elda")


def test_a_prompt_holds_what_the_graph_says_with_the_sources_that_say_it(api: Api, llm: FakeLLM) -> None:
    llm.bodies.clear()
    body = {"knowledge_base_name": "g", "query": "What does Elda keep?", "mode": "local", "stream": False}
    api.http.post("/chat/knowledge_base_chat", json=body)
    prompt = llm.bodies[-1]["messages"][-1]["content"]
    assert "Elda (person): guardian of navigation beacons [1]" in prompt
    assert "Ruben → Elda: delivers fuel across the bay [1]" in prompt
    assert prompt.index("guardian of") > prompt.index("<<<SOURCES")
    api.http.post("/chat/knowledge_base_chat", json=body | {"mode": "naive"})
    assert "guardian of" not in llm.bodies[-1]["messages"][-1]["content"]


def test_what_a_filter_hides_is_not_told_and_counts_for_nothing(api: Api) -> None:
    only = {"file_name": "tide.txt"}
    for mode in ("local", "global", "hybrid", "mix", "ppr"):
        shown = json.dumps(ask(api, "guardian of navigation beacons brings oil", mode=mode, filters=only))
        assert "beacons" not in shown
        assert "brings oil" not in shown
        assert "fuel" not in shown


def test_parts_keep_to_their_tokens(api: Api) -> None:
    everything = ask(api, "What does Elda keep?", mode="hybrid")
    assert (len(everything["entities"]), len(everything["relations"]), len(everything["chunks"])) == (2, 1, 2)
    none = ask(
        api, "What does Elda keep?", mode="hybrid", max_entity_tokens=0, max_relation_tokens=0, max_total_tokens=1
    )
    assert (none["entities"], none["relations"], len(none["chunks"])) == ([], [], 1)  # the best one always stays
    some = ask(api, "What does Elda keep?", mode="hybrid", max_entity_tokens=18)
    assert [one["name"] for one in some["entities"]] == ["Elda"]


def test_bypass_asks_the_model_alone(api: Api, llm: FakeLLM) -> None:
    body = {"knowledge_base_name": "g", "query": "What does Elda keep?", "mode": "bypass", "stream": False}
    answer = api.http.post("/chat/knowledge_base_chat", json=body).text
    assert llm.bodies, answer
    assert "lamp of Kap Arkona" not in llm.bodies[-1]["messages"][-1]["content"]
    assert "keeps the lamp" in answer


def vectors_of(api: Api, name: str) -> set[str]:
    service = api.http.app.state.service
    with service.context.db.read() as sql:
        rows = sql.execute(
            text(
                "SELECT item FROM graph_vector JOIN generation ON generation.id = graph_vector.generation_id "
                "JOIN knowledge_base ON knowledge_base.id = generation.kb_id WHERE name = :name"
            ),
            {"name": name},
        )
        return {row[0] for row in rows}


def test_vectors_go_with_what_they_say(api: Api) -> None:
    def said_of() -> set[str]:
        return {item for item in vectors_of(api, "h") if not item.startswith("\t")}  # those of reports come later

    filled(api, "h")
    assert said_of() == {"elda", "ruben", "ruben\telda"}
    api.delete_docs("h", "light.txt", delete_content=True)
    until(lambda: said_of() == {"ruben"})
    words = "Ruben: A man of many boats"
    api.post("/graph/entity/edit", knowledge_base_name="h", name="Ruben", description="A man of many boats")
    until(lambda: ask(api, "x", mode="local", ll_keywords=[words], knowledge_base_name="h")["entities"] != [])
    api.delete_docs("h", "tide.txt", delete_content=True)
    api.post("/graph/entity/delete", knowledge_base_name="h", name="Ruben")
    until(lambda: vectors_of(api, "h") == set())
