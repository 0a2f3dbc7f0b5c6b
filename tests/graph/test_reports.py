"""Reports of communities: what they are made of, when they are written anew, searches that begin at them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from fastapi.testclient import TestClient

from configs import ChatModelSettings
from server.app import create_app
from server.db import graph_reports
from server.models.fake_llm import FakeLLM, Reply
from tests.conftest import Api, ThreadServer, fake_settings
from tests.graph.test_llm import until
from tests.graph.test_service import built

HARBOUR = """Elda Voss keeps the lamp of Kap Arkona. Elda Voss wrote to Ruben Hale about the lamp. Ruben Hale brings oil to
Kap Arkona every spring. Ruben Hale repaired the bell of Kap Arkona."""
MILL = """Mara Quint owns the mill at Redwater. Mara Quint hired Jonas Pell at Redwater. Jonas Pell built the weir of
Redwater, and Mara Quint paid him."""
SANGUO = "刘备与关羽、张飞在桃园结义。刘备三顾茅庐，请诸葛亮出山。诸葛亮在隆中为刘备定下三分天下之计。"
FILES = {"harbour.txt": HARBOUR, "mill.txt": MILL, "三国.txt": SANGUO}
LOCAL, GLOBAL, DRIFT = "graphrag_local", "graphrag_global", "drift"


def text_of(body: dict[str, Any]) -> str:
    return "\n".join(str(message["content"]) for message in body["messages"])


def writer(body: dict[str, Any]) -> Reply:
    """Writes reports and points from the numbered statements that it is shown."""
    text = text_of(body)
    if "Write a report" in text or "写一份报告" in text:
        finding = {"summary": "What the group does", "explanation": "They keep things running.", "sources": [1]}
        report = {
            "title": "A written report",
            "summary": "They belong together.",
            "rating": 7,
            "rating_explanation": "x",
        }
        return Reply([json.dumps({**report, "findings": [finding]})])
    if '{"points"' in text:
        points = [{"text": "The lamp is kept by Elda.", "score": 80, "sources": [1]}, {"text": "Nothing", "score": 0}]
        return Reply([json.dumps({"points": points})])
    if '"follow_ups"' in text:
        asked = ["Who is Jonas Pell?"] if "Who is Jonas Pell?" not in text else []
        return Reply([json.dumps({"answer": "Seen so far.", "score": 50, "sources": [1], "follow_ups": asked})])
    return Reply(["Elda keeps the lamp [1]."])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, FakeLLM]]:
    fake = FakeLLM(answer=writer)
    with ThreadServer(fake.app()) as server:
        model = ChatModelSettings(name="fake-llm", base_url=f"http://127.0.0.1:{server.port}/v1", max_retries=2)
        settings = fake_settings(tmp_path_factory.mktemp("reports"), llm_models=[model])
        with TestClient(create_app(settings)) as client:
            yield Api(client), fake


@pytest.fixture
def llm(made: tuple[Api, FakeLLM]) -> FakeLLM:
    fake = made[1]
    fake.answer = writer
    fake.bodies.clear()
    return fake


@pytest.fixture
def api(made: tuple[Api, FakeLLM], llm: FakeLLM) -> Iterator[Api]:
    del llm
    api = made[0]
    yield api
    for name in api.http.get("/knowledge_base/list_knowledge_bases").json()["data"]:
        api.delete(name)


def filled(api: Api, files: dict[str, str], name: str = "g", **settings: Any) -> None:
    assert api.create(name, vector_store_type="graph")["code"] == 200
    if settings:
        assert api.post("/graph/settings", knowledge_base_name=name, **settings)["code"] == 200
    api.upload(name, files)
    built(api, name)


def reports(api: Api, name: str = "g", **asked: Any) -> list[dict[str, Any]]:
    params = {"knowledge_base_name": name, "limit": 1000, **asked}
    return list(api.http.get("/graph/communities", params=params).json()["communities"])


def told(api: Api, name: str = "g") -> list[Any]:
    """All reports but for the ids of chunks."""
    texts = {chunk["id"]: chunk["text"] for chunk in chunks(api, name)}
    found = reports(api, name)
    for one in found:
        for finding in one["findings"]:
            finding["chunk_ids"] = [texts[chunk_id] for chunk_id in finding["chunk_ids"]]
    return found


def chunks(api: Api, name: str) -> list[dict[str, Any]]:
    listed = api.http.get("/knowledge_base/chunks", params={"knowledge_base_name": name, "limit": 1000})
    return list(listed.json()["chunks"])


def test_every_entity_is_in_a_report_with_findings_that_cite_chunks(api: Api) -> None:
    filled(api, FILES)
    found = reports(api, level=0)
    names = {name for one in found for name in one["entities"]}
    listed = api.http.get("/graph/entities", params={"knowledge_base_name": "g", "limit": 1000}).json()
    assert names == {one["name"] for one in listed["entities"]}
    texts = {chunk["id"]: chunk["text"] for chunk in chunks(api, "g")}
    findings = [finding for one in found for finding in one["findings"]]
    assert len(findings) >= 3
    for finding in findings:
        assert " ".join(texts[finding["chunk_ids"][0]].split()).count(finding["explanation"]) == 1
    assert any("诸葛亮" in one["title"] or "刘备" in one["title"] for one in found)
    assert reports(api, query="elda")
    assert not reports(api, query="nobody at all")


def test_reports_after_any_history_are_those_of_what_is_left(api: Api) -> None:
    filled(api, {**FILES, "extra.txt": "Elda Voss met Mara Quint in Zanzibar. Mara Quint told Elda Voss of the weir."})
    assert any("Zanzibar" in json.dumps(one) for one in told(api))
    api.delete_docs("g", "extra.txt", delete_content=True)
    assert not any("Zanzibar" in json.dumps(one) for one in told(api))
    api.upload("g", {"mill.txt": MILL + " Jonas Pell left."}, override=True)
    built(api)
    api.upload("g", {"mill.txt": MILL}, override=True)
    built(api)
    filled(api, FILES, "fresh")
    until(lambda: told(api) == told(api, "fresh"))


def test_only_what_changed_is_written_again(api: Api, llm: FakeLLM) -> None:
    filled(api, FILES, reports="fake-llm")
    written = [one for one in reports(api) if one["title"] == "A written report"]
    assert len(written) >= 2
    assert {one["size"] >= 3 for one in written} == {True}  # two entities are not worth a call
    state = api.http.get("/graph/state", params={"knowledge_base_name": "g"}).json()
    assert state["calls"] == len(llm.bodies) == len(written)
    assert state["tokens"] > 0
    assert any("请用中文" in text_of(body) for body in llm.bodies)
    before = len(llm.bodies)
    api.post("/graph/build", knowledge_base_name="g")
    built(api)
    assert len(llm.bodies) == before
    api.delete_docs("g", "mill.txt", delete_content=True)
    built(api)
    api.upload("g", {"mill.txt": MILL})
    built(api)
    again = [text_of(body) for body in llm.bodies[before:]]
    assert any("Redwater" in text for text in again)
    assert not any("刘备" in text for text in again)


def test_a_report_of_what_was_deleted_while_it_was_written_is_not_kept(api: Api, llm: FakeLLM) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def slow(body: dict[str, Any]) -> Reply:
        if "lamp" in text_of(body):
            reached.set()
            go_on.wait(30)
            return writer({"messages": [{"content": "Write a report"}]})
        return writer(body)

    llm.answer = slow
    assert api.create("g", vector_store_type="graph")["code"] == 200
    assert api.post("/graph/settings", knowledge_base_name="g", reports="fake-llm")["code"] == 200
    api.upload("g", {"harbour.txt": HARBOUR})
    assert reached.wait(30)
    api.delete_docs("g", "harbour.txt", delete_content=True)
    with patch.object(graph_reports, "put", wraps=graph_reports.put) as put:
        go_on.set()
        built(api, "g")
    assert (put.call_count, reports(api)) == (0, [])


def test_a_report_that_cannot_be_read_is_asked_again_and_then_put_together(api: Api, llm: FakeLLM) -> None:
    llm.answer = lambda _: Reply(['{"title": "T", "rating": NaN}'])
    filled(api, {"harbour.txt": HARBOUR}, reports="fake-llm")
    found = reports(api)
    assert all(one["degraded"] and one["findings"] for one in found)
    assert len(llm.bodies) == 2 * len(found)
    llm.answer = writer
    api.post("/graph/build", knowledge_base_name="g")
    built(api)
    assert len(llm.bodies) == 2 * len(found)
    api.post("/graph/retry", knowledge_base_name="g")
    built(api)
    assert not any(one["degraded"] for one in reports(api))


def data(api: Api, query: str, mode: str, **more: Any) -> dict[str, Any]:
    body = {"knowledge_base_name": "g", "query": query, "mode": mode, **more}
    return dict(api.http.post("/graph/query/data", json=body).json())


@pytest.mark.parametrize("mode", [LOCAL, GLOBAL, DRIFT])
def test_each_search_gives_reports_and_chunks_without_a_model(api: Api, llm: FakeLLM, mode: str) -> None:
    filled(api, FILES)
    for question, text in (("Who keeps the lamp of Kap Arkona?", "lamp"), ("诸葛亮为谁定计？", "诸葛亮")):
        found = data(api, question, mode, top_k=9)
        assert any(text in chunk["text"] for chunk in found["chunks"])
        assert found["reports"]
        assert found["chunks"][0]["url"]
    assert llm.bodies == []


def test_a_filter_hides_reports_of_what_it_hides(api: Api) -> None:
    filled(api, {**FILES, "both.txt": "Elda Voss met Mara Quint at Redwater."})
    for mode in (LOCAL, GLOBAL, DRIFT):
        found = json.dumps(data(api, "Who keeps the lamp?", mode, filters={"file_name": "harbour.txt"}))
        assert "Redwater" not in found
        assert "Jonas" not in found


def chat(api: Api, mode: str, **more: Any) -> list[dict[str, Any]]:
    body = {"knowledge_base_name": "g", "query": "Who keeps the lamp?", "mode": mode, "stream": True, "details": True}
    return api.events("/chat/knowledge_base_chat", **{**body, **more})


def test_a_global_question_is_mapped_over_reports_and_answered_with_citations(api: Api, llm: FakeLLM) -> None:
    filled(api, FILES)
    events = chat(api, GLOBAL)
    progress = [event["progress"] for event in events if "progress" in event]
    assert progress[-1]["done"] == progress[-1]["total"] >= 1
    assert "Elda keeps the lamp" in "".join(event.get("answer", "") for event in events)
    assert events[-1]["citations"][0]["file_name"] in FILES
    prompts = [text_of(body) for body in llm.bodies]
    assert '{"points"' in prompts[0]
    assert "The lamp is kept by Elda. [1]" in prompts[-1]


def test_a_model_chooses_reports_from_the_widest_down(api: Api, llm: FakeLLM) -> None:
    filled(api, FILES)
    shown: list[str] = []

    def rating(body: dict[str, Any]) -> Reply:
        if '"ratings"' not in text_of(body):
            return writer(body)
        lines = [line for line in text_of(body).splitlines() if line.startswith("[")]
        shown.extend(lines)
        good = [at for at, line in enumerate(lines, start=1) if "Mara" in line or "Redwater" in line]
        return Reply(
            [json.dumps({"ratings": [{"number": at, "score": 4} for at in good] + [{"number": 99, "score": 5}]})]
        )

    llm.answer = rating
    events = chat(api, GLOBAL, query="Who owns the mill?", dynamic_community_selection=True)
    steps = [event["progress"]["step"] for event in events if "progress" in event]
    assert steps[0] == "selection"
    assert {line.split("] ")[1].split(":")[0] for line in shown} >= {one["title"] for one in reports(api, level=0)}
    (mapped,) = [text_of(body) for body in llm.bodies if '{"points"' in text_of(body)]
    assert "Redwater" in mapped
    assert "诸葛亮" not in mapped


def test_where_the_model_chooses_nothing_likeness_does(api: Api, llm: FakeLLM) -> None:
    filled(api, FILES)
    llm.answer = lambda body: Reply(["no"]) if '"ratings"' in text_of(body) else writer(body)
    chat(api, GLOBAL, dynamic_community_selection=True)
    (mapped,) = [text_of(body) for body in llm.bodies if '{"points"' in text_of(body)]
    assert "Kap Arkona" in mapped
    assert "Redwater" in mapped


def test_drift_follows_what_is_asked_next(api: Api, llm: FakeLLM) -> None:
    filled(api, FILES)
    events = chat(api, DRIFT, top_k=9)
    asked = [event["progress"]["asked"] for event in events if "progress" in event]
    assert asked == [["Who is Jonas Pell?"]]
    assert "Jonas Pell" in text_of(llm.bodies[-1])
    assert "Seen so far. [" in text_of(llm.bodies[-1])


@pytest.mark.parametrize("mode", [GLOBAL, DRIFT])
def test_a_model_that_fails_on_the_way_costs_the_way_and_not_the_answer(api: Api, llm: FakeLLM, mode: str) -> None:
    filled(api, FILES)
    llm.answer = lambda body: writer(body) if "SOURCES" in text_of(body) else Reply(status=400)
    events = chat(api, mode)
    assert "Elda keeps the lamp" in "".join(event.get("answer", "") for event in events)


def test_old_clients_see_no_progress(api: Api) -> None:
    filled(api, FILES)
    assert not [event for event in chat(api, GLOBAL, details=False) if "progress" in event]


def test_without_reports_there_is_still_an_answer(api: Api) -> None:
    filled(api, FILES, reports="")
    assert reports(api) == []
    for mode in (LOCAL, DRIFT):
        assert data(api, "Who keeps the lamp of Kap Arkona?", mode)["chunks"]


@pytest.mark.parametrize("mode", ["naive", "basic", "local", "global", "hybrid", "mix", "ppr", LOCAL, GLOBAL, DRIFT])
def test_a_graph_of_nothing_has_no_reports_and_every_mode_answers(api: Api, mode: str) -> None:
    filled(api, {"plain.txt": "and so it was, and so it is"}, extractor="nlp")
    assert reports(api) == []
    events = chat(api, mode, query="and so it was?")
    assert "code" not in events[-1]
    assert events[-1]["docs"]


LOOSE = [
    'Here it is:\n```json\n{"title": "T1", "summary": "s", "findings": [{"summary": "a", "explanation": "b", "sources": [1]}]}\n```',
    '{"title": "T2", "summary": "two\nlines", "rating": "high", "findings": [{"summary": "a", "sources": [1, 99]},],}',
    'Sure. {{"title": "T3", "summary": "s", "findings": [{{"explanation": "b", "sources": [1], "rating": NaN}}]}} Done.',
    "There is not much to say about this group.",
]


@pytest.mark.parametrize(("reply", "title"), [*zip(LOOSE, ["T1", "T2", "T3", ""], strict=True)])
def test_a_report_that_is_no_strict_json_is_read_if_it_can_be(api: Api, llm: FakeLLM, reply: str, title: str) -> None:
    llm.answer = lambda body: Reply([reply]) if "report" in text_of(body) else writer(body)
    filled(api, {"harbour.txt": HARBOUR}, reports="fake-llm")
    found = reports(api)
    assert found
    assert all(one["degraded"] == (not title) for one in found)
    assert all(one["title"] == title for one in found if title)
    assert all(one["findings"] for one in found)
    llm.answer = writer
    assert "Elda keeps" in "".join(event.get("answer", "") for event in chat(api, GLOBAL))


def test_an_entity_that_nothing_ties_is_in_a_report_and_in_a_prompt(api: Api, llm: FakeLLM) -> None:
    filled(api, {**FILES, "isle.txt": "Beacon Isle"})
    assert any("Beacon Isle" in one["entities"] for one in reports(api, level=0))
    chat(api, LOCAL, query="What is Beacon Isle?")
    assert "Beacon Isle" in text_of(llm.bodies[-1]).split("SOURCES", 1)[1]


def test_the_report_of_an_entity_is_in_the_prompt_about_it(api: Api, llm: FakeLLM) -> None:
    filled(api, FILES)
    report = next(one for one in reports(api, query="Jonas Pell") if not one["children"])
    chat(api, LOCAL, query="Who is Jonas Pell?")
    assert f"{report['title']} — " in text_of(llm.bodies[-1])
