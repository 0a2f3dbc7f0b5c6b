"""The agent: tools that it calls, that fail, that packages bring; its limit of steps; its three kinds of events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from server.chat import tools as tools_module
from server.models.fake_llm import FakeLLM, Reply
from tests.conftest import Api, ThreadServer, app_of, fake_settings, llm_model

EN = "The harbour master keeps the tide table in the north office."


def call(name: str, *, said: str = "", **arguments: Any) -> Reply:
    """A reply in which the model wants a tool."""
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    wanted = [{"index": 0, "id": f"call_{name}", "type": "function", "function": function}]
    deltas: list[tuple[dict[str, Any], str | None]] = [
        ({"role": "assistant", "content": said}, None), ({"tool_calls": wanted}, None), ({}, "tool_calls"),
    ]  # fmt: skip
    return Reply(raw=[*(_chunk(delta, finish) for delta, finish in deltas), "[DONE]"])


def _chunk(delta: dict[str, Any], finish: str | None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


@pytest.fixture
def kb(tmp_path: Path, llm: FakeLLM) -> Iterator[Api]:
    settings = fake_settings(tmp_path / "data", llm_models=[llm_model(llm)], score_threshold=4)
    with TestClient(app_of(settings)) as client:
        api = Api(client)
        api.create("手册")
        api.upload("手册", {"tide.txt": EN})
        yield api


def ask(api: Api, query: str = "Where is the tide table?", **more: Any) -> list[dict[str, Any]]:
    return api.events("/chat/agent_chat", query=query, **more)


def test_it_searches_a_knowledge_base_and_answers(kb: Api, llm: FakeLLM) -> None:
    llm.script.append(call("search_knowledge_base", said="Let me look. ", knowledge_base="手册", query="tide table"))
    llm.script.append(Reply(["<think>found</think>In the ", "north office."]))
    events = ask(kb, stream=True)
    assert [next(iter(event)) for event in events] == ["answer", "tools", "answer", "answer", "final_answer"]
    assert "".join(event.get("answer", "") for event in events) == "Let me look. In the north office."
    assert events[-1] == {"final_answer": "In the north office."}
    shown = "".join(events[1]["tools"])
    assert "工具名称: search_knowledge_base" in shown
    assert "工具状态: 调用成功" in shown
    assert EN in shown
    tool_turn = llm.prompts[-1][-1]
    assert tool_turn["role"] == "tool"
    assert EN in tool_turn["content"]
    assert "手册" in json.dumps(llm.bodies[0]["tools"], ensure_ascii=False)


def test_without_streaming_there_is_one_event_with_the_same_text(kb: Api, llm: FakeLLM) -> None:
    llm.script.append(call("calculate", expression="6 * 7"))
    llm.script.append(Reply(["It is ", "42."]))
    (event,) = ask(kb, "6*7?")
    assert event["answer"] == event["final_answer"] == "It is 42."
    assert "工具输出: 42\n" in event["tools"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("calculate", {"expression": "1/0"}),
        ("calculate", {"expression": "__import__('os').system('true')"}),
        ("calculate", {"expression": "9**9**9**9"}),
        ("search_knowledge_base", {"knowledge_base": "ghost", "query": "x"}),
        ("current_time", {"timezone": "Mars/Base"}),
        ("calculate", {"wrong": 1}),
        ("no_such_tool", {"x": 1}),
    ],
)
def test_a_tool_that_fails_is_told_to_the_model_and_to_the_client(
    kb: Api, llm: FakeLLM, name: str, arguments: dict[str, Any]
) -> None:
    llm.script.append(call(name, **arguments))
    llm.script.append(Reply(["Sorry."]))
    events = ask(kb, stream=True)
    shown = "".join(line for event in events for line in event.get("tools", []))
    assert "调用失败" in shown
    assert llm.prompts[-1][-1]["role"] == "tool"
    assert events[-1] == {"final_answer": "Sorry."}


def test_it_stops_at_its_limit_of_steps(tmp_path: Path, llm: FakeLLM) -> None:
    settings = fake_settings(tmp_path / "data", llm_models=[llm_model(llm)], agent_steps=3)
    llm.default = call("current_time", timezone="UTC")
    with TestClient(app_of(settings)) as client:
        events = ask(Api(client), stream=True)
    assert len(llm.prompts) == 3
    assert "limit of steps" in events[-1]["final_answer"]


def test_a_model_that_fails_ends_with_an_error_event(kb: Api, llm: FakeLLM) -> None:
    llm.default = Reply(status=400)
    events = ask(kb, stream=True)
    assert events[-1]["code"] == 500
    assert "HTTP 400" in events[-1]["msg"]


def test_it_may_be_given_some_tools_only(kb: Api, llm: FakeLLM) -> None:
    llm.script.append(Reply(["ok"]))
    ask(kb, tools=["calculate"])
    assert [tool["function"]["name"] for tool in llm.bodies[-1]["tools"]] == ["calculate"]
    assert ask(kb, tools=["ghost"])[-1]["code"] == 404


def test_without_a_model_it_says_so(api: Api) -> None:
    (event,) = ask(api)
    assert event["answer"] == event["final_answer"]
    assert "model" in event["answer"]


# ---- the tools themselves


def test_tools_are_listed_and_called(kb: Api) -> None:
    api = kb
    listed = api.http.get("/tools").json()["data"]
    assert {"search_knowledge_base", "calculate", "current_time"} <= listed.keys()
    assert listed["calculate"]["args"].keys() == {"expression"}
    assert api.post("/tools/call", name="calculate", tool_input={"expression": "(3+5)/2"})["data"] == "4.0"
    found = api.post("/tools/call", name="search_knowledge_base",
                     tool_input={"knowledge_base": "手册", "query": "tide table office"})  # fmt: skip
    assert EN in found["data"]
    assert "Shanghai" not in api.post("/tools/call", name="current_time")["data"]
    for bad in ({"name": "ghost"}, {"name": "calculate", "tool_input": {"expression": "x"}}, {"name": "calculate"}):
        answer = api.post("/tools/call", **bad)
        assert answer["code"] == 500
        assert answer["msg"]


def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


def test_packages_bring_their_own(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("shout", "tests.chat.test_agent:shout", "zhiku.tools")
    monkeypatch.setattr(tools_module, "entry_points", lambda group: [entry] if group == "zhiku.tools" else [])
    assert "shout" in api.http.get("/tools").json()["data"]
    assert api.post("/tools/call", name="shout", tool_input={"text": "hey"})["data"] == "HEY"


# ---- its context and its end


def test_it_hears_of_new_knowledge_bases(kb: Api) -> None:
    assert "later" not in kb.http.get("/tools").json()["data"]["search_knowledge_base"]["description"]
    kb.create("later", kb_info="what came later")
    assert "later: what came later" in kb.http.get("/tools").json()["data"]["search_knowledge_base"]["description"]


def test_history_and_output_fit_the_models_context(tmp_path: Path, llm: FakeLLM) -> None:
    settings = fake_settings(tmp_path / "data", llm_models=[llm_model(llm, context_size=2000)], score_threshold=4)
    turns = [
        turn for n in range(60) for turn in (("user", f"q{n} " + "x" * 500), ("user", "y"), ("assistant", f"a{n}"))
    ]
    history = [{"role": role, "content": text} for role, text in turns]
    with TestClient(app_of(settings)) as client:
        api = Api(client)
        api.create("kb")
        api.upload("kb", {"long.txt": "tide " * 400}, chunk_size=5000, chunk_overlap=0)
        llm.script.append(call("search_knowledge_base", knowledge_base="kb", query="tide"))
        llm.script.append(Reply(["done"]))
        assert ask(api, history=history)[-1]["final_answer"] == "done"
    roles = [turn["role"] for turn in llm.prompts[0] if turn["role"] != "system"]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    assert sum(len(str(turn["content"])) for turn in llm.prompts[-1]) < 4000


def test_arguments_that_are_no_json_are_told_and_written_anew(kb: Api, llm: FakeLLM) -> None:
    broken = call("calculate", expression="1")
    llm.script.append(
        Reply(raw=[event.replace('{\\"expression\\": \\"1\\"}', "no json at all") for event in broken.raw or ()])
    )
    llm.script.append(call("calculate", expression="6*7"))
    llm.script.append(Reply(["42"]))
    events = ask(kb, stream=True)
    shown = ["".join(event["tools"]) for event in events if "tools" in event]
    assert "调用失败" in shown[0]
    assert "调用成功" in shown[1]
    assert events[-1] == {"final_answer": "42"}


def test_a_client_that_leaves_stops_the_model(tmp_path: Path, llm: FakeLLM) -> None:
    settings = fake_settings(tmp_path / "data", llm_models=[llm_model(llm)])
    llm.default = Reply([f"{n} " for n in range(300)], delay=0.1)
    with ThreadServer(app_of(settings)) as server:
        url = f"http://127.0.0.1:{server.port}/chat/agent_chat"
        with httpx.stream("POST", url, json={"query": "q", "stream": True}, timeout=60) as response:
            for number, _ in enumerate(response.iter_raw()):
                if number == 2:
                    break
        deadline = time.monotonic() + 25  # the reply itself takes 30 seconds
        while not llm.closed and time.monotonic() < deadline:
            time.sleep(0.02)
    assert llm.closed == 1
    assert llm.sent < 300
