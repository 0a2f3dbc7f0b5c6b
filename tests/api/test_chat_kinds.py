"""The other kinds of chat: 0.3 shapes, feedback, conversations, follow-ups, thinking, prompts by language."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi.testclient import TestClient

from server.errors import EmbeddingError
from server.models.fake_llm import FakeLLM, Reply
from tests.conftest import Api, ThreadServer, app_of, fake_settings, llm_model

EN = "The harbour master keeps the tide table in the north office."
ZH = "泵房压力表每周校准一次，由值守人负责。"
ASK = {"knowledge_base_name": "kb", "score_threshold": 4}


@pytest.fixture
def kb(llm_api: Api) -> Api:
    llm_api.create("kb")
    llm_api.upload("kb", {"tide.txt": EN, "泵房.txt": ZH})
    return llm_api


# ---- marks and citations


def test_marks_that_point_nowhere_are_removed_streaming_or_not(kb: Api, llm: FakeLLM) -> None:
    llm.default = Reply(list("It is in the north office [1][5]. 见 [2, 8]。 `a[7]` [x](y)"))
    wanted = "It is in the north office [1]. 见 [2]。 `a[7]` [x](y)"
    whole = kb.events("/chat/knowledge_base_chat", query="tide table", **ASK)
    assert whole[0]["answer"] == wanted
    stream = kb.events("/chat/knowledge_base_chat", query="tide table", stream=True, **ASK)
    assert "".join(event.get("answer", "") for event in stream) == wanted
    assert stream[-1]["docs"] == whole[0]["docs"]


def test_citations_tell_whether_their_source_says_so(kb: Api, llm: FakeLLM) -> None:
    llm.script.append(Reply(["The harbour master keeps the tide table in the north office [1]. "
                             "The harbour master keeps 450 boats in Lisbon [1]."]))  # fmt: skip
    event = kb.events("/chat/knowledge_base_chat", query="tide table", details=True, **ASK)[0]
    true, false = event["citations"]
    assert (true["verified"], false["verified"]) == (True, False)
    assert EN[true["start"] : true["end"]] == true["quote"]
    assert true["file_name"] == "tide.txt"
    assert true["url"].startswith("http://testserver/knowledge_base/view_doc?")
    plain = kb.events("/chat/knowledge_base_chat", query="tide table", **ASK)[0]
    assert plain.keys() == {"answer", "docs"}


def test_claims_in_another_language_stay_unverified_when_the_embedding_model_fails(
    kb: Api, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[float]:
        raise EmbeddingError("down")

    service = kb.http.app.state.service.chat
    monkeypatch.setattr(service, "_closeness", broken)
    llm.script.append(Reply(["潮汐表在北办公室 [1]。"]))
    event = kb.events("/chat/knowledge_base_chat", query="tide table", details=True, **ASK)[0]
    assert event["answer"] == "潮汐表在北办公室 [1]。"
    assert [citation["verified"] for citation in event["citations"]] == [False]


def test_links_follow_a_proxy_that_is_trusted(tmp_path: Path, llm: FakeLLM) -> None:
    import httpx

    from tests.conftest import ServerProcess

    server = ServerProcess(tmp_path, llm_models=[llm_model(llm)])
    try:
        server.start()
        api = server.api()
        api.create("kb")
        api.upload("kb", {"tide.txt": EN})
        llm.default = Reply(["yes [1]"])
        headers = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "kb.example.org", "X-Forwarded-Prefix": "/zhiku"}
        response = httpx.post(f"{server.url}/chat/knowledge_base_chat", json={"query": "tide", **ASK}, headers=headers,
                              timeout=90)  # fmt: skip
        assert "(https://kb.example.org/zhiku/knowledge_base/download_doc?" in response.text
    finally:
        server.kill()


# ---- thinking


def test_thinking_never_reaches_the_answer_or_the_history(kb: Api, llm: FakeLLM) -> None:
    llm.default = Reply(["<thi", "nk>secret plan</thi", "nk>\n", "north office"])
    stream = kb.events("/chat/knowledge_base_chat", query="tide table", stream=True, details=True, **ASK)
    assert "".join(event.get("answer", "") for event in stream) == "north office"
    assert stream[-1]["thinking"] == "secret plan"
    kb.events("/chat/chat", query="first", conversation_id="c")
    kb.events("/chat/chat", query="second", conversation_id="c", history_len=3)
    assert "secret plan" not in json.dumps(llm.prompts)
    assert llm.prompts[-1][1] == {"role": "assistant", "content": "north office"}


def test_a_model_that_only_thinks_has_not_answered(kb: Api, llm: FakeLLM) -> None:
    llm.script.append(Reply(["<think>on and on"]))
    assert kb.events("/chat/chat", query="hi")[-1]["code"] == 500


# ---- follow-up questions


HISTORY = [{"role": "user", "content": "Where is the tide table?"}, {"role": "assistant", "content": "North office."}]


def test_a_follow_up_is_rewritten_by_the_model_before_the_search(kb: Api, llm: FakeLLM) -> None:
    llm.script.append(Reply(["<think>x</think>", "泵房压力表多久校准一次？"]))
    llm.script.append(Reply(["weekly"]))
    event = kb.events("/chat/knowledge_base_chat", query="那它呢", history=HISTORY, top_k=1, **ASK)[0]
    assert "压力表" in event["docs"][0]
    rewrite, answer = llm.prompts[-2:]
    assert "Where is the tide table?" in rewrite[-1]["content"]
    assert "那它呢" in rewrite[-1]["content"]
    assert "那它呢" in answer[-1]["content"]
    assert [turn["role"] for turn in answer] == ["user", "assistant", "user"]


def test_a_rewrite_that_fails_or_rambles_falls_back_to_the_rule(kb: Api, llm: FakeLLM) -> None:
    for bad in (Reply(status=400), Reply(["two\nlines"]), Reply(["long " * 300])):
        llm.script.extend([bad, Reply(["ok"])])
        event = kb.events("/chat/knowledge_base_chat", query="and who keeps it?", history=HISTORY, top_k=1, **ASK)[0]
        assert "tide table" in event["docs"][0]


def test_without_a_model_a_rule_finds_what_a_follow_up_is_about(api: Api) -> None:
    api.create("kb")
    api.upload("kb", {"tide.txt": EN, "泵房.txt": ZH})
    history = [{"role": "user", "content": "压力表多久校准一次？"}, {"role": "assistant", "content": "每周。"}]
    event = api.events("/chat/knowledge_base_chat", query="那谁负责呢？", history=history, top_k=1, **ASK)[0]
    assert "压力表" in event["docs"][0]


# ---- conversations and feedback


def test_a_conversation_is_kept_listed_and_deleted(kb: Api, llm: FakeLLM, tmp_path: Path) -> None:
    llm.default = Reply(["answer one"])
    first = kb.events("/chat/chat", query="question one", conversation_id="c1")[0]
    kb.events("/chat/knowledge_base_chat", query="question two", conversation_id="c1", history_len=5, **ASK)
    assert llm.prompts[-1][0] == {"role": "user", "content": "question one"}
    listed = kb.http.get("/conversations").json()
    assert [(item["id"], item["name"], item["messages"]) for item in listed] == [("c1", "question one", 2)]
    told = kb.post("/chat/feedback", message_id=first["message_id"], score=80, reason="好")
    assert (told["code"], told["msg"]) == (200, f"已反馈聊天记录 {first['message_id']}")
    messages = kb.http.get("/conversations/messages", params={"conversation_id": "c1"}).json()
    assert [(item["query"], item["response"]) for item in messages] == [
        ("question one", "answer one"), ("question two", "answer one"),
    ]  # fmt: skip
    assert (messages[0]["feedback_score"], messages[0]["feedback_reason"]) == (80, "好")
    assert kb.http.delete("/conversations", params={"conversation_id": "c1"}).json()["code"] == 200
    assert kb.http.get("/conversations").json() == []
    assert b"question one" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert kb.http.delete("/conversations", params={"conversation_id": "c1"}).json()["code"] == 404


def test_feedback_on_nothing_is_an_error(api: Api) -> None:
    answer = api.post("/chat/feedback", message_id="f" * 32, score=1)
    assert answer["code"] == 500
    assert answer["msg"].startswith("反馈聊天记录出错： ")
    assert api.http.post("/chat/feedback", json={"message_id": "f" * 33}).status_code == 422


# ---- prompts


def test_the_prompt_speaks_the_language_of_the_question(kb: Api, llm: FakeLLM) -> None:
    llm.default = Reply(["ok"])
    kb.events("/chat/knowledge_base_chat", query="潮汐表在哪里？", **ASK)
    assert "只根据下列编号的资料" in llm.prompts[-1][-1]["content"]
    kb.events("/chat/knowledge_base_chat", query="Where is the tide table?", **ASK)
    assert "numbered sources only" in llm.prompts[-1][-1]["content"]


def test_an_operators_files_and_settings_win(tmp_path: Path, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "conf"
    (folder / "prompts" / "llm_chat").mkdir(parents=True)
    (folder / "prompts" / "llm_chat" / "pirate.txt").write_text("Arr: {{ input }}", encoding="utf-8")
    monkeypatch.setenv("ZHIKU_CONFIG_DIR", str(folder))
    own = {"llm_chat": {"default": "Own: {{ input }}"}}
    settings = fake_settings(tmp_path / "data", llm_models=[llm_model(llm)], prompt_templates=own)
    llm.default = Reply(["ok"])
    with TestClient(app_of(settings)) as client:
        api = Api(client)
        api.events("/chat/chat", query="{{ 7*7 }}", prompt_name="pirate")
        assert llm.prompts[-1][-1]["content"] == "Arr: {{ 7*7 }}"
        api.events("/chat/chat", query="x")
        assert llm.prompts[-1][-1]["content"] == "Own: x"


# ---- as 0.3 clients ask


def test_kb_chat_sends_its_sources_first(kb: Api, llm: FakeLLM) -> None:
    llm.default = Reply(["north ", "office [1]"])
    chunks = kb.events(
        "/chat/kb_chat", query="tide table", kb_name="kb", score_threshold=4, search_type="keyword", model="fake-llm"
    )
    assert "tide" in chunks[0]["docs"][0]
    assert chunks[0]["choices"][0]["delta"]["content"] == ""
    assert chunks[0]["is_ref"] is True
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == "north office [1]"
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    whole = kb.http.post(
        "/chat/kb_chat", json={"query": "tide table", "kb_name": "kb", "stream": False, "score_threshold": 4}
    ).json()
    assert json.loads(whole)["choices"][0]["message"]["content"] == "north office [1]"
    before = len(llm.prompts)
    only = kb.events("/chat/kb_chat", query="tide table", kb_name="kb", return_direct=True, score_threshold=4)
    assert all("docs" in chunk for chunk in only)
    assert len(llm.prompts) == before


def test_kb_chat_over_the_files_of_a_conversation(kb: Api, llm: FakeLLM) -> None:
    llm.default = Reply(["77"])
    files = [("files", ("t.txt", b"temp body 77"))]
    temp_id = kb.http.post("/knowledge_base/upload_temp_docs", files=files).json()["data"]["id"]
    chunks = kb.events("/chat/kb_chat", query="temp body", mode="temp_kb", kb_name=temp_id, score_threshold=4)
    assert chunks[0]["docs"] == ["出处 [1] [t.txt] \n\ntemp body 77\n\n"]


def test_kb_chat_reports_what_is_missing_and_what_fails(kb: Api, llm: FakeLLM) -> None:
    assert kb.post("/chat/kb_chat", query="x", kb_name="ghost")["code"] == 404
    assert kb.post("/chat/kb_chat", query="x", mode="temp_kb", kb_name="ghost")["code"] == 404
    assert kb.http.post("/chat/kb_chat", json={"query": "x", "mode": "moon"}).status_code == 422
    llm.script.append(Reply(status=400))
    assert "HTTP 400" in kb.events("/chat/kb_chat", query="tide", kb_name="kb")[-1]["error"]


def test_an_openai_client_with_a_knowledge_base_as_its_address(tmp_path: Path, llm: FakeLLM) -> None:
    app = app_of(fake_settings(tmp_path / "data", llm_models=[llm_model(llm)]))
    llm.default = Reply(["north ", "office"])
    with ThreadServer(app) as server:
        import httpx

        url = f"http://127.0.0.1:{server.port}"
        api = Api(httpx.Client(base_url=url, timeout=60))
        api.create("kb")
        api.upload("kb", {"tide.txt": EN})
        client = openai.OpenAI(base_url=f"{url}/knowledge_base/local_kb/kb", api_key="x", max_retries=0)
        ask: Any = {"model": "fake-llm", "messages": [{"role": "user", "content": "tide table"}]}
        chunks: list[Any] = list(
            client.chat.completions.create(**ask, stream=True, extra_body={"top_k": 3, "score_threshold": 4.0})
        )
        assert "tide.txt" in chunks[0].docs[0]
        assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "north office"
        whole: Any = client.chat.completions.create(**ask, extra_body={"score_threshold": 4.0})
        assert whole.choices[0].message.content == "north office"
        assert "tide.txt" in whole.docs[0]


def test_chat_completions_with_the_model_alone_and_with_one_tool(llm_api: Api, llm: FakeLLM) -> None:
    llm.default = Reply(["hi"])
    messages = [{"role": "user", "content": "what is 6*7?"}]
    whole = llm_api.post("/chat/chat/completions", model="fake-llm", messages=messages)
    assert whole["choices"][0]["message"]["content"] == "hi"
    llm_api.post("/chat/chat/completions", model="fake-llm", messages=messages, tool_choice="calculate",
                 tool_input={"expression": "6*7"})  # fmt: skip
    assert "calculate: 42" in llm.prompts[-1][-1]["content"]
