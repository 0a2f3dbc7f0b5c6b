"""The files of a conversation: kept apart, added to, found after a restart, gone when their time is over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from server.knowledge_base.expiry import drop_expired
from server.models.fake_llm import FakeLLM, Reply
from tests.conftest import Api, app_of, fake_settings


def upload(api: Api, files: dict[str, str | bytes], **form: str) -> dict[str, Any]:
    parts = [("files", (name, text.encode() if isinstance(text, str) else text)) for name, text in files.items()]
    response = api.http.post("/knowledge_base/upload_temp_docs", files=parts, data=form)
    assert response.status_code == 200, response.text
    return dict(response.json())


def ask(api: Api, knowledge_id: str, query: str = "temp body", **more: Any) -> Any:
    values = {"query": query, "knowledge_id": knowledge_id, "score_threshold": 4, "top_k": 10, **more}
    return api.events("/chat/file_chat", **values)


def docs(api: Api, knowledge_id: str) -> str:
    return "".join(ask(api, knowledge_id)[-1]["docs"])


def test_each_upload_is_a_world_of_its_own(api: Api) -> None:
    one = upload(api, {"t.txt": "temp body 77"})
    two = upload(api, {"t.txt": "temp body 88"})
    assert one["code"] == 200
    assert one["data"]["failed_files"] == []
    first, second = one["data"]["id"], two["data"]["id"]
    assert first != second
    assert len(first) >= 32
    assert "77" in docs(api, first)
    assert "88" not in docs(api, first)
    assert "88" in docs(api, second)


@pytest.mark.parametrize("field", ["prev_id", "knowledge_id"])
def test_an_earlier_id_adds_to_its_files(api: Api, field: str) -> None:
    first = upload(api, {"a.txt": "temp body 77"})["data"]["id"]
    again = upload(api, {"b.txt": "temp body 78"}, **{field: first})
    assert again["data"]["id"] == first
    assert "77" in docs(api, first)
    assert "78" in docs(api, first)
    upload(api, {"b.txt": "temp body 79"}, **{field: first})
    assert "78" not in docs(api, first)
    assert "79" in docs(api, first)


def test_sources_have_no_link_and_no_path(api: Api, tmp_path: Path) -> None:
    temp_id = upload(api, {"报告 a.txt": "temp body 77"})["data"]["id"]
    shown = ask(api, temp_id)[-1]["docs"]
    assert shown == ["出处 [1] [报告 a.txt] \n\ntemp body 77\n\n"]
    assert str(tmp_path) not in str(shown)


def test_an_unknown_id_is_404_as_plain_json(api: Api) -> None:
    for bad in ("ghost", "../x", "", "a" * 5000, "kb"):
        api.create("kb")
        response = api.http.post("/chat/file_chat", json={"query": "x", "knowledge_id": bad})
        assert response.headers["content-type"] == "application/json"
        assert response.json()["code"] == 404
        assert "请先上传文件" in response.json()["msg"]


def test_temporary_files_are_hidden_from_everything_else(api: Api) -> None:
    temp_id = upload(api, {"t.txt": "temp body 77"})["data"]["id"]
    assert api.http.get("/knowledge_base/list_knowledge_bases").json()["data"] == []
    assert api.search(temp_id, "temp body", score_threshold=4) == []
    assert api.http.get("/knowledge_base/list_files", params={"knowledge_base_name": temp_id}).json()["code"] == 404
    assert api.delete(temp_id)["code"] == 404
    assert api.http.get("/v1/vector_stores").json()["data"] == []
    assert api.http.get("/jobs").json() == []
    assert api.http.get("/jobs/1").json()["code"] == 404
    assert api.post("/jobs/1/cancel")["code"] == 404


def test_what_cannot_be_read_is_listed_with_its_reason(api: Api) -> None:
    answer = upload(api, {"bad.xyz123": b"\x00\x01", "empty.txt": "", "good.txt": "temp body 77"})
    failed = {name: why for item in answer["data"]["failed_files"] for name, why in item.items()}
    assert failed.keys() == {"bad.xyz123", "empty.txt"}
    assert all(failed.values())
    assert "77" in docs(api, answer["data"]["id"])
    only_bad = upload(api, {"empty.txt": ""})
    assert only_bad["code"] == 200
    assert only_bad["data"]["id"]


def test_hits_can_be_searched_without_a_chat(api: Api) -> None:
    temp_id = upload(api, {"t.txt": "temp body 77"})["data"]["id"]
    found = api.post("/knowledge_base/search_temp_docs", knowledge_id=temp_id, query="temp body", top_k=3,
                     score_threshold=2)  # fmt: skip
    assert [item["page_content"] for item in found] == ["temp body 77"]
    assert found[0]["metadata"]["source"] == "t.txt"
    gone = api.post("/knowledge_base/search_temp_docs", knowledge_id="ghost", query="x", top_k=3, score_threshold=2)
    assert gone["code"] == 404


def test_they_survive_a_restart_and_end_with_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = fake_settings(tmp_path, temp_kb_hours=1)
    with TestClient(app_of(settings)) as client:
        temp_id = upload(Api(client), {"t.txt": "temp body 77"})["data"]["id"]
    with TestClient(app_of(settings)) as client:
        assert "77" in docs(Api(client), temp_id)
        now = time.time()
        monkeypatch.setattr("server.knowledge_base.expiry.time.time", lambda: now + 3601)
        response = client.post("/chat/file_chat", json={"query": "x", "knowledge_id": temp_id})
        assert response.json()["code"] == 404
        assert drop_expired(client.app.state.service.context) == 1  # type: ignore[attr-defined]
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"temp body 77" not in left


def test_a_model_answers_from_the_files(llm_api: Api, llm: FakeLLM) -> None:
    temp_id = upload(llm_api, {"braces.txt": "{addr} {0} {m3 m4se} {{x}} {% raw %} temp body"})["data"]["id"]
    llm.script.append(Reply(["from ", "the file [1] [7]"]))
    events = ask(llm_api, temp_id, "temp body {context}", stream=True)
    assert "".join(event.get("answer", "") for event in events) == "from the file [1]"
    prompt = llm.prompts[-1][-1]["content"]
    assert "{addr} {0} {m3 m4se} {{x}} {% raw %} temp body" in prompt
    assert "temp body {context}" in prompt
