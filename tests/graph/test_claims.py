"""Claims: what chunks assert of entities, asked for where somebody wants them, and kept only with the words that say so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from server.domain import Claim, Extraction, Mention
from server.graph.identity import grounded
from server.graph.replies import extraction_of
from server.models.fake_llm import FakeLLM, Reply
from tests.conftest import Api, app_of, fake_settings, llm_model
from tests.graph.test_llm import entity, relation, text_of
from tests.graph.test_service import built
from tests.graph.test_tables import brought_in, exported, tables

LAMP = "In 1911 the harbour board accused Elda Voss of selling lamp oil. Elda Voss keeps the lamp of Kap Arkona."
HUARONG = "关羽在华容道放走了曹操，诸葛亮因此责备关羽。"
ACCUSED = {
    "subject": "Elda Voss", "object": "Kap Arkona", "type": "accusation", "status": "SUSPECTED",
    "description": "Elda Voss is said to have sold oil", "start": "1911", "end": "",
    "quote": "accused Elda Voss of selling lamp oil",
}  # fmt: skip
RELEASED = {
    "subject": "关羽", "object": "曹操", "type": "行为", "status": "true", "description": "关羽放走了曹操",
    "start": "", "end": "", "quote": "关羽在华容道放走了曹操",
}  # fmt: skip
MADE_UP = {**ACCUSED, "quote": "she set the tower on fire"}


def reader(body: dict[str, Any]) -> Reply:
    """Reads the two texts; claims it gives only when asked, and one of them is invented."""
    text, asked = text_of(body), '"claims"' in str(body["messages"][0]["content"])
    if "<text>" not in text:
        return Reply(["She keeps the lamp [1]."])
    if "关羽" in text:
        found = {"entities": [entity("关羽", "人物"), entity("曹操", "人物")], "relations": [], "claims": [RELEASED]}
    else:
        found = {
            "entities": [entity("Elda Voss"), entity("Kap Arkona", "location")],
            "relations": [relation("Elda Voss", "Kap Arkona")], "claims": [ACCUSED, MADE_UP],
        }  # fmt: skip
    if not asked:
        del found["claims"]
    return Reply([json.dumps(found, ensure_ascii=False)])


@pytest.fixture
def api(tmp_path: Path, llm: FakeLLM) -> Iterator[Api]:
    llm.answer = reader
    settings = fake_settings(tmp_path / "data", llm_models=[llm_model(llm, max_retries=0)])
    with TestClient(app_of(settings)) as client:
        api = Api(client)
        assert api.create("g", vector_store_type="graph")["code"] == 200
        given = {"extractor": "fake-llm", "claims": True}
        assert api.post("/graph/settings", knowledge_base_name="g", **given)["data"]["claims"] is True
        api.upload("g", {"lamp.txt": LAMP, "华容道.txt": HUARONG})
        built(api)
        yield api


def claims(api: Api, name: str, kb: str = "g") -> list[dict[str, Any]]:
    params = {"knowledge_base_name": kb, "query": name}
    found = api.http.get("/graph/entities", params=params).json()["entities"]
    (one,) = [entity for entity in found if entity["name"] == name]
    return [{key: value for key, value in claim.items() if key != "chunk_id"} for claim in one["claims"]]


def without_subject(claim: dict[str, str]) -> dict[str, str]:
    return {**{key: value for key, value in claim.items() if key != "subject"}, "status": claim["status"].lower()}


def test_claims_are_kept_with_words_of_the_text_in_both_languages(api: Api) -> None:
    assert claims(api, "Elda Voss") == [without_subject(ACCUSED)]  # the invented one went
    assert claims(api, "关羽") == [without_subject(RELEASED)]
    state = api.http.get("/graph/state", params={"knowledge_base_name": "g"}).json()
    assert state["dropped"] == 1


def test_a_prompt_tells_claims_with_their_sources(api: Api, llm: FakeLLM) -> None:
    for question, said in (
        ("What was Elda Voss accused of?", "accusation, suspected, 1911): Elda Voss is said to have sold oil [1]"),
        ("关羽做了什么？", "关羽 → 曹操 (行为, true): 关羽放走了曹操 [1]"),
    ):
        body = {"knowledge_base_name": "g", "query": question, "mode": "local", "stream": False, "top_k": 1}
        api.http.post("/chat/knowledge_base_chat", json=body)
        assert said in str(llm.bodies[-1]["messages"][-1]["content"])


def test_claims_go_with_their_file_and_hide_with_it(api: Api) -> None:
    only = {
        "knowledge_base_name": "g",
        "query": "关羽 Elda Voss",
        "mode": "local",
        "filters": {"file_name": "lamp.txt"},
    }
    assert "华容道" not in json.dumps(api.http.post("/graph/query/data", json=only).json(), ensure_ascii=False)
    api.delete_docs("g", "华容道.txt", delete_content=True)
    found = api.http.get("/graph/entities", params={"knowledge_base_name": "g", "limit": 100}).json()["entities"]
    assert [len(one["claims"]) for one in found if one["claims"]] == [1]


def test_claims_are_not_asked_for_unless_wanted(api: Api, llm: FakeLLM) -> None:
    assert api.create("plain", vector_store_type="graph")["code"] == 200
    assert api.post("/graph/settings", knowledge_base_name="plain", extractor="fake-llm")["code"] == 200
    api.upload("plain", {"lamp.txt": LAMP})
    built(api, "plain")
    assert claims(api, "Elda Voss", "plain") == []
    # and chunks are read again for those who want them now
    api.post("/graph/settings", knowledge_base_name="plain", claims=True)
    api.post("/graph/build", knowledge_base_name="plain", again=True)
    built(api, "plain")
    assert len(claims(api, "Elda Voss", "plain")) == 1


def test_claims_are_covariates_out_and_in(api: Api) -> None:
    data = exported(api)
    rows = tables(data)
    units = {row["id"]: row for row in rows["text_units"]}
    by_subject = {row["subject_id"]: row for row in rows["covariates"]}
    assert set(by_subject) == {"Elda Voss", "关羽"}
    accused = by_subject["Elda Voss"]
    assert (accused["object_id"], accused["status"], accused["start_date"]) == ("Kap Arkona", "SUSPECTED", "1911")
    assert accused["source_text"] in units[accused["text_unit_id"]]["text"]
    assert units[accused["text_unit_id"]]["covariate_ids"] == [accused["id"]]
    api.create("h", vector_store_type="graph")
    brought_in(api, data, "h")
    for name in ("Elda Voss", "关羽"):
        assert claims(api, name, "h") == claims(api, name)


def test_odd_claims_of_models_are_read_or_left_out() -> None:
    reply = {
        "entities": [{"name": "Ada"}],
        "covariates": [
            {"subject_id": "Ada", "claim_type": "x", "claim_status": "maybe", "source_text": "wrote"},
            {"subject": "", "quote": "wrote"}, {"subject": "Ada"}, "no claim", {"subject": "Ada", "status": 7, "quote": "no"},
        ],
    }  # fmt: skip
    said = extraction_of(json.dumps(reply), ["person"])
    assert said.claims[0] == Claim("Ada", type="x", status="suspected", quote="wrote")
    assert len(said.claims) == 2
    found, dropped = grounded(said, "Ada wrote a letter.")
    assert (found.claims, dropped) == (said.claims[:1], 1)
    assert grounded(Extraction((Mention("Ada"),), (), (Claim("Bo", quote="wrote"),)), "Ada wrote")[0].claims == ()
