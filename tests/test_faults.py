"""Faults that testers found, each with its kind: odd requests, deletion in the middle, cancelled work, full disks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError
from sqlalchemy.exc import OperationalError

from configs import EmbeddingModelSettings
from server.db import jobs
from server.errors import ConfigurationError, InvalidRequest
from server.filestore import FileStore
from server.models.fake_llm import FakeLLM, Reply
from server.runtime import check
from tests.conftest import Api, ServerProcess, app_of, fake_settings, llm_model, parse_events

SLOW = [EmbeddingModelSettings(name="fake", provider="fake", options={"dimension": 4, "delay": 0.05})]
LONG = "\n\n".join(f"line {n}" for n in range(200))


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Api]:
    with TestClient(app_of(fake_settings(tmp_path, embedding_models=SLOW))) as client:
        yield Api(client)


ODD = [
    ("/knowledge_base/search_docs", b'{"knowledge_base_name": "kb", "query": "a", "score_threshold": NaN}'),
    ("/knowledge_base/search_docs", b'{"knowledge_base_name": "kb", "query": "a", "score_threshold": -Infinity}'),
    ("/knowledge_base/search_docs", b'{"knowledge_base_name": "kb", "query": "a", "top_k": 1e400}'),
    ("/knowledge_base/search_docs", b'{"a": ["\\ud83d"]}'),
    ("/knowledge_base/search_docs", b'{"knowledge_base_name": "kb", "query": "\\ud83d"}'),
    ("/knowledge_base/delete_docs", b'{"knowledge_base_name": "kb", "file_names": ["\\ud800"]}'),
    ("/knowledge_base/update_docs", b'{"knowledge_base_name": "kb", "file_names": ["\\ud800"]}'),
    ("/knowledge_base/update_docs_by_id", b'{"knowledge_base_name": "kb", "docs": {"\\ud800": null}}'),
    ("/knowledge_base/update_docs_by_id", b'{"knowledge_base_name": "kb", "docs": {"1": "\\ud800"}}'),
    ("/knowledge_base/create_knowledge_base", b'{"knowledge_base_name": {"\\ud800": 1}}'),
    ("/knowledge_base/delete_knowledge_base", b"NaN"),
    ("/knowledge_base/delete_knowledge_base", b'["\\ud800"]'),
    ("/knowledge_base/delete_knowledge_base", b'"\\ud800"'),
    ("/chat/knowledge_base_chat", b'{"knowledge_base_name": "kb", "query": "a", "temperature": NaN}'),
    ("/chat/knowledge_base_chat", b'{"knowledge_base_name": "kb", "query": "a", "history": ["\\ud800"]}'),
    ("/chat/chat", b'{"query": "a", "conversation_id": "c", "history_len": 1000000000000000000000000}'),
    ("/knowledge_base/search_docs", b"[" * 100_000),
]


@pytest.mark.parametrize(("path", "body"), ODD, ids=range(len(ODD)))
def test_odd_json_is_no_fault_of_ours(api: Api, path: str, body: bytes) -> None:
    api.create("kb")
    response = api.http.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 422)
    assert "Traceback" not in response.text
    assert "internal error" not in response.text


@pytest.mark.parametrize("path", ["/jobs?before=9223372036854775808", "/jobs/1/events?after=99999999999999999999999"])
def test_numbers_beyond_64_bits_are_refused(api: Api, path: str) -> None:
    assert api.http.get(path).status_code == 422


def test_json_without_a_content_type_is_json(api: Api) -> None:
    api.create("kb")
    request = api.http.build_request(
        "POST", "/knowledge_base/search_docs", content=b'{"knowledge_base_name": "kb", "query": "a"}'
    )
    request.headers.pop("content-type", None)
    assert api.http.send(request).json() == []


def test_a_blank_name_makes_nothing(api: Api) -> None:
    for name in ("", "   "):
        assert "不能为空" in api.recreate(name)[0]["msg"]
        assert "不能为空" in api.create(name)["msg"]
    assert api.http.get("/knowledge_base/list_knowledge_bases").json()["data"] == []


def test_a_name_with_percent_signs_works_everywhere(api: Api) -> None:
    for name in ("a%20b", "100%"):
        api.create(name)
        api.upload(name, {"x.txt": "text"})
        assert api.files(name) == ["x.txt"]
        assert list(api.details(name)) == ["x.txt"]
        assert api.delete(name)["code"] == 200
    api.create("a b")
    response = api.http.get("/knowledge_base/list_files", params={"knowledge_base_name": "a%20b"})
    assert response.json()["code"] == 200  # as old clients write it


def test_a_knowledge_base_deleted_during_an_upload(slow: Api) -> None:
    slow.create("kb")
    outcome: list[dict[str, object]] = []
    thread = threading.Thread(target=lambda: outcome.append(slow.upload("kb", {f"f{n}.txt": LONG for n in range(4)})))
    thread.start()
    deadline = time.monotonic() + 20
    while not slow.http.get("/jobs").json() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert slow.delete("kb")["code"] == 200
    thread.join(30)
    answer = outcome[0]
    failed = answer["data"]["failed_files"] if answer["code"] == 200 else {"all": answer["msg"]}  # type: ignore[index]
    assert failed
    assert slow.upload("kb", {"x.txt": "x"})["code"] == 404


def test_a_knowledge_base_deleted_during_its_rebuild(slow: Api) -> None:
    slow.create("kb")
    slow.upload("kb", {"f.txt": LONG, "g.txt": LONG})
    events: list[dict[str, object]] = []
    thread = threading.Thread(target=lambda: events.extend(slow.recreate("kb", chunk_size=7, chunk_overlap=0)))
    thread.start()
    deadline = time.monotonic() + 20
    while slow.http.get("/jobs").json()[0]["kind"] != "rebuild" and time.monotonic() < deadline:
        time.sleep(0.02)
    slow.delete("kb")
    thread.join(30)
    assert events[-1]["code"] == 404
    assert "知识库已被删除" in str(events[-1]["msg"])


def test_a_cancelled_upload_says_so_and_can_be_sent_again(slow: Api) -> None:
    slow.create("kb")
    sent = slow.upload("kb", {f"f{n}.txt": LONG for n in range(6)}, wait="false", chunk_size=8, chunk_overlap=0)
    for job in sent["data"]["jobs"]:
        slow.post(f"/jobs/{job['id']}/cancel")
    deadline = time.monotonic() + 30  # a worker settles its file at its next step, however late that is
    while (details := slow.details("kb")) and time.monotonic() < deadline:
        if {item["state"] for item in details.values()} <= {"failed", "partial"}:
            break
        time.sleep(0.05)
    assert {item["state"] for item in details.values()} <= {"failed", "partial"}
    assert all("cancelled" in item["reason"] for item in details.values())
    again = slow.upload("kb", {"f5.txt": LONG}, chunk_size=80, chunk_overlap=0)
    assert again["data"]["failed_files"] == {}
    assert slow.details("kb")["f5.txt"]["state"] == "ready"


def test_a_disk_that_refuses_is_a_reason_per_file(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.create("kb")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "put", refuse)
        answer = api.upload("kb", {"a.txt": "x"})
    assert "No space left" in answer["data"]["failed_files"]["a.txt"]
    assert api.upload("kb", {"a.txt": "x"})["data"]["failed_files"] == {}


def test_edits_survive_a_rebuild(api: Api) -> None:
    api.create("kb")
    api.upload("kb", {"a.txt": "first line\n\nsecond line", "b.txt": "only"}, chunk_size=12, chunk_overlap=0)
    first, second = api.search("kb", "", file_name="a.txt")
    only = api.search("kb", "", file_name="b.txt")[0]
    edits = {first["id"]: {"page_content": "edited 41"}, only["id"]: None}
    api.post("/knowledge_base/update_docs_by_id", knowledge_base_name="kb", docs=edits)
    assert api.files("kb") == ["a.txt"]
    assert api.details("kb")["b.txt"]["state"] == "stored"
    api.recreate("kb")
    assert sorted(hit["page_content"] for hit in api.search("kb", "", file_name="a.txt")) == [
        "edited 41",
        "second line",
    ]


def test_chunks_that_are_none_are_reported(api: Api) -> None:
    api.create("kb")
    for docs in ('{"c.txt": []}', '{"c.txt": [{"page_content": " "}]}'):
        failed = api.upload("kb", {"c.txt": "text of c"}, docs=docs, override="true")["data"]["failed_files"]
        assert "c.txt" in failed
    assert api.upload("kb", {"d.txt": "text of d"}, docs="null")["data"]["failed_files"] == {}


def test_large_forms(api: Api) -> None:
    api.create("kb")
    docs = json.dumps({"book.txt": [{"page_content": "x" * 1000} for _ in range(2000)]})
    assert api.upload("kb", {"book.txt": "x"}, docs=docs)["data"]["failed_files"] == {}
    assert api.details("kb")["book.txt"]["docs_count"] == 2000
    answer = api.upload("kb", {f"{n}.txt": "x" for n in range(1100)}, to_vector_store="false")
    assert answer["data"]["failed_files"] == {}


def test_a_name_sent_twice_is_one_file(api: Api) -> None:
    api.create("kb")
    parts = [("files", ("t.txt", b"one 1")), ("files", ("t.txt", b"two 2"))]
    answer = api.http.post(
        "/knowledge_base/upload_docs", files=parts, data={"knowledge_base_name": "kb", "override": "true"}
    )
    assert answer.json()["data"]["failed_files"] == {}
    assert api.texts("kb", "one two") == ["two 2"]


def test_a_listing_can_ask_for_the_source(api: Api) -> None:
    api.create("kb")
    api.upload("kb", {"a.txt": "text a", "b.txt": "text b"})
    listed = api.search("kb", "", metadata={"source": "b.txt"})
    assert [hit["page_content"] for hit in listed] == ["text b"]


def test_a_book_as_a_question(api: Api) -> None:
    api.create("kb")
    api.upload("kb", {"a.txt": "harbour tide"})
    assert api.search("kb", "harbour tide " * 50_000, score_threshold=4)[0]["page_content"] == "harbour tide"
    body = {"knowledge_base_name": "kb", "query": "x" * 1_000_001}
    assert api.http.post("/knowledge_base/search_docs", json=body).status_code == 422


def test_a_question_beyond_the_context_is_refused(tmp_path: Path, llm: FakeLLM) -> None:
    settings = fake_settings(tmp_path, llm_models=[llm_model(llm, context_size=2000)])
    with TestClient(app_of(settings)) as client:
        api = Api(client)
        api.create("kb")
        answer = api.post("/chat/knowledge_base_chat", knowledge_base_name="kb", query="长" * 3000)
        assert answer["code"] == 422
        assert "fake-llm" in answer["msg"]


def test_long_answers_fit_into_events_that_old_clients_read(llm_api: Api, llm: FakeLLM) -> None:
    llm_api.create("kb")
    text = "答" * 40_000
    for stream in (True, False):
        llm.script.append(Reply([text]))
        response = llm_api.http.post(
            "/chat/knowledge_base_chat", json={"knowledge_base_name": "kb", "query": "q", "stream": stream}
        )
        assert all(len(block) < 65_536 for block in response.content.split(b"\r\n\r\n"))
        events = parse_events(response.text)
        assert "".join(event.get("answer", "") for event in events) == text
        assert "docs" in events[-1]


def test_impossible_settings_stop_the_start(tmp_path: Path) -> None:
    for values in ({"search_type": "nope"}, {"log_level": "LOUD"}, {"default_embed_model": "nope"}, {"port": 99999}):
        with pytest.raises(ValidationError):
            fake_settings(tmp_path, **values)
    with pytest.raises(InvalidRequest, match="nope"):
        check(fake_settings(tmp_path, default_vs_type="nope"))
    with pytest.raises(InvalidRequest, match="nope"):
        check(fake_settings(tmp_path, text_splitter="nope"))
    with pytest.raises(ConfigurationError, match="llm_chat.default"):
        check(fake_settings(tmp_path, prompt_templates={"llm_chat": {"default": "{{ x"}}))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="data root"):
        check(fake_settings(tmp_path).model_copy(update={"data_dir": tmp_path / "file" / "data"}))


def test_a_terminal_without_chinese_does_not_stop_the_service(process: ServerProcess) -> None:
    environment = {
        **os.environ,
        "ZHIKU_CONFIG_DIR": str(process.config_dir),
        "LC_ALL": "C",
        "LANG": "C",
        "PYTHONUTF8": "0",
    }
    environment.pop("PYTHONIOENCODING", None)
    command = [sys.executable, "-X", "utf8=0", "-m", "server.cli", "kb", "create", "潮汐"]
    done = subprocess.run(
        command, env={**environment, "PYTHONCOERCECLOCALE": "0"}, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "潮汐" in done.stdout.decode()


def test_the_end_of_a_job_is_noted_when_the_database_is_back(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = iter([OperationalError("UPDATE job", {}, Exception("no server"))] * 2)
    finish = jobs.finish

    def shaky(*given: Any) -> None:
        for error in gone:
            raise error
        finish(*given)

    monkeypatch.setattr(jobs, "finish", shaky)
    api.create("kb")
    for number in range(8):  # more than there are workers: none of them is lost
        api.upload("kb", {f"{number}.txt": f"潮位 {number}"})
    assert {file["state"] for file in api.details("kb").values()} == {"ready"}
    assert "running" not in api.http.get("/health").json()["jobs"]
