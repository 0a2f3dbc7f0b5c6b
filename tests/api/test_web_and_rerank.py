"""Web search in chats, and rerankers, against stand-ins on real ports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from configs import RerankerSettings, SearchEngineSettings
from server.models.fake_llm import FakeLLM, Reply
from tests.conftest import Api, ThreadServer, app_of, fake_settings, llm_model

RESULTS = [
    {"title": "Tide <b>tables</b>", "url": "https://a.example/tides", "content": "High water is at &lt;noon&gt;."},
    {"title": "潮汐", "url": "https://b.example/潮", "content": "满潮在中午。"},
]


@pytest.fixture
def engine() -> Iterator[int]:
    """A SearXNG of our own."""
    app = FastAPI()

    @app.get("/search")
    def search(q: str) -> dict[str, Any]:
        return {"results": [] if q == "nothing" else RESULTS}

    with ThreadServer(app) as server:
        yield server.port


@pytest.fixture
def web(tmp_path: Path, llm: FakeLLM, engine: int) -> Iterator[Api]:
    settings = fake_settings(
        tmp_path / "data",
        llm_models=[llm_model(llm)],
        search_engines=SearchEngineSettings(searxng_url=f"http://127.0.0.1:{engine}"),
        default_search_engine="searxng",
        agent_web_search=True,
    )
    with TestClient(app_of(settings)) as client:
        yield Api(client)


def test_an_answer_rests_on_what_the_web_says(web: Api, llm: FakeLLM) -> None:
    llm.default = Reply(["At noon [1", "] [9]."])
    ask = {"query": "When is high water?", "search_engine_name": "searxng", "top_k": 2}
    stream = web.events("/chat/search_engine_chat", **ask, stream=True)
    assert "".join(event.get("answer", "") for event in stream) == "At noon [1]."
    assert stream[-1]["docs"] == [
        "出处 [1] [https://a.example/tides](https://a.example/tides) \n\nTide tables\nHigh water is at <noon>.\n\n",
        "出处 [2] [https://b.example/潮](https://b.example/潮) \n\n潮汐\n满潮在中午。\n\n",
    ]
    assert "High water is at <noon>." in llm.prompts[-1][-1]["content"]
    assert "numbered web results" in llm.prompts[-1][-1]["content"]
    (whole,) = web.events("/chat/search_engine_chat", **ask)
    assert (whole["answer"], whole["docs"]) == ("At noon [1].", stream[-1]["docs"])
    (none,) = web.events("/chat/search_engine_chat", query="nothing", search_engine_name="searxng")
    assert "未找到相关文档" in none["docs"][0]


def test_kb_chat_and_the_agent_search_the_web_too(web: Api, llm: FakeLLM) -> None:
    llm.default = Reply(["noon"])
    chunks = web.events("/chat/kb_chat", query="high water", mode="search_engine", kb_name="searxng")
    assert "https://a.example/tides" in chunks[0]["docs"][0]
    found = web.post("/tools/call", name="search_internet", tool_input={"query": "tides"})
    assert "High water" in found["data"]


def test_refusals_have_the_contracts_words(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BING_SUBSCRIPTION_KEY", raising=False)
    for engine, words in (
        ("moon", "未支持搜索引擎 moon"),
        ("bing", "要使用Bing搜索引擎，需要设置 `BING_SUBSCRIPTION_KEY`"),
    ):
        answer = api.post("/chat/search_engine_chat", query="x", search_engine_name=engine)
        assert (answer["code"], answer["msg"]) == (404, words)
    assert "search_internet" not in api.http.get("/tools").json()["data"]


def test_an_engine_inside_that_nobody_allowed_is_not_asked(tmp_path: Path, engine: int) -> None:
    inside = SearchEngineSettings(duckduckgo_url=f"http://127.0.0.1:{engine}/search?q=x")
    with TestClient(app_of(fake_settings(tmp_path, search_engines=inside))) as client:
        events = Api(client).events("/chat/search_engine_chat", query="x", search_engine_name="duckduckgo")
    assert events[-1]["code"] == 422
    assert "127.0.0.1" in events[-1]["msg"]


# ---- rerankers


@pytest.fixture
def reranked(tmp_path: Path) -> Iterator[tuple[Api, dict[str, Any]]]:
    app, state = FastAPI(), {"fail": False, "seen": 0}

    @app.post("/rerank", response_model=None)
    async def rerank(request: Request) -> Any:
        body = await request.json()
        state["seen"] = len(body["documents"])
        if state["fail"]:
            return {"results": "none"}
        scores = [(float("wanted" in text), at) for at, text in enumerate(body["documents"])]
        return {"results": [{"index": at, "relevance_score": score} for score, at in sorted(scores, reverse=True)]}

    with ThreadServer(app) as server:
        reranker = RerankerSettings(provider="http", base_url=f"http://127.0.0.1:{server.port}", max_retries=0)
        with TestClient(app_of(fake_settings(tmp_path, reranker=reranker, rerank_candidates=20))) as client:
            api = Api(client)
            api.create("kb")
            api.upload("kb", {f"{n}.txt": f"same words {'wanted' if n == 7 else n}" for n in range(12)})
            yield api, state


def test_a_reranker_changes_the_order_and_not_the_score(reranked: tuple[Api, dict[str, Any]]) -> None:
    api, state = reranked
    search = {"query": "same words", "knowledge_base_names": ["kb"], "top_k": 3, "score_threshold": 4}
    found = api.post("/retrieval/search", **search)["hits"]
    assert state["seen"] == 12
    assert len(found) == 3
    assert found[0]["text"] == "same words wanted"
    assert found[0]["ranks"]["reranked"] == 1
    plain = api.post("/retrieval/search", **{**search, "top_k": 12}, rerank=False)["hits"]
    assert {hit["id"]: hit["score"] for hit in plain}[found[0]["id"]] == found[0]["score"]
    assert "reranked" not in plain[0]["ranks"]
    assert api.search("kb", "same words", score_threshold=4)[0]["page_content"] == "same words wanted"


def test_a_reranker_that_fails_costs_its_order_and_is_told(reranked: tuple[Api, dict[str, Any]]) -> None:
    api, state = reranked
    state["fail"] = True
    answer = api.post("/retrieval/search", query="same words", knowledge_base_names=["kb"], score_threshold=4)
    assert len(answer["hits"]) == 3
    assert "reranker" in answer["warnings"][0]
