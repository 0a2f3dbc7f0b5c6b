"""Rerankers: the order they give, what they survive, and what they say when they fail."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from configs import RerankerSettings
from server.errors import ConfigurationError, MissingDependency
from server.retrieval.rerank import CrossEncoderReranker, HTTPReranker, RerankError, reranker_of
from tests.conftest import ThreadServer

TEXTS = ["zero", "one", "two", "three"]


class Endpoint:
    """Answers with what the test put into `answers`, and keeps what it was sent."""

    def __init__(self) -> None:
        self.answers: deque[Any] = deque()
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.times: list[float] = []
        self.delay = 0.0
        self.port = 0

    def app(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/v1/rerank", self.answer, methods=["POST"], response_model=None)
        return app

    async def answer(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("authorization"))
        self.times.append(time.monotonic())
        await asyncio.sleep(self.delay)
        answer = self.answers.popleft()
        return answer if isinstance(answer, Response) else JSONResponse(answer)

    def settings(self, **changes: Any) -> RerankerSettings:
        values = {"provider": "http", "model": "m", "base_url": f"http://127.0.0.1:{self.port}/v1", "max_retries": 0}
        return RerankerSettings(**{**values, **changes})


@pytest.fixture(scope="module")
def running() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    with ThreadServer(endpoint.app()) as server:
        endpoint.port = server.port
        yield endpoint


@pytest.fixture
def endpoint(running: Endpoint) -> Endpoint:
    for seen in (running.answers, running.bodies, running.keys, running.times):
        seen.clear()
    running.delay = 0.0
    return running


def results(*scores: tuple[Any, Any]) -> dict[str, Any]:
    return {"results": [{"index": index, "relevance_score": score} for index, score in scores]}


async def ask(settings: RerankerSettings, texts: list[str] = TEXTS, top_n: int = 4) -> list[tuple[int, float]]:
    reranker = reranker_of(settings)
    assert reranker is not None
    try:
        return await reranker.rerank("question", texts, top_n)
    finally:
        await reranker.close()


# ---- over HTTP


async def test_the_order_is_that_of_the_scores(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERANK_KEY", "s3cret")
    endpoint.answers.append(results((2, 0.1), (0, 0.9), (3, 0.5)))
    assert await ask(endpoint.settings(api_key_env="RERANK_KEY"), top_n=3) == [(0, 0.9), (3, 0.5), (2, 0.1)]
    assert endpoint.bodies == [{"model": "m", "query": "question", "documents": TEXTS, "top_n": 3}]
    assert endpoint.keys == ["Bearer s3cret"]


async def test_the_shape_of_tei(endpoint: Endpoint) -> None:
    endpoint.answers.append([{"index": 1, "score": 0.2}, {"index": 0, "score": 0.1}])
    assert await ask(endpoint.settings(provider="tei"), ["a", "b"], top_n=1) == [(1, 0.2)]
    assert endpoint.bodies == [{"query": "question", "texts": ["a", "b"], "truncate": True}]


@pytest.mark.parametrize(
    ("given", "indexes"),
    [
        ([(3, 0.9), (1, 0.5)], [3, 1, 0, 2]),
        ([(3, 0.9), (9, 0.8), (-1, 0.7), (1, 0.5)], [3, 1, 0, 2]),
        ([(3, 0.9), (3, 0.1), (1, 0.5)], [3, 1, 0, 2]),
        ([("3", 0.9), (True, 0.9), (None, 0.9), (2, "high"), (2, None), (1, 0.5)], [1, 0, 2, 3]),
        ([(3, -4.0), (1, -9.5), (0, -5.0), (2, -6)], [3, 0, 2, 1]),
    ],
)
async def test_what_is_left_out_or_nonsense_keeps_its_old_order_behind(
    endpoint: Endpoint, given: list[tuple[Any, Any]], indexes: list[int]
) -> None:
    endpoint.answers.append(results(*given))
    found = await ask(endpoint.settings())
    assert [index for index, _ in found] == indexes
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


async def test_nothing_to_order_asks_nobody(endpoint: Endpoint) -> None:
    assert await ask(endpoint.settings(), []) == []
    assert await ask(endpoint.settings(), top_n=0) == []
    assert endpoint.bodies == []


async def test_a_busy_endpoint_is_asked_again_when_it_says(endpoint: Endpoint) -> None:
    endpoint.answers.extend([Response(status_code=429, headers={"retry-after": "1"}), results((0, 1.0))])
    assert await ask(endpoint.settings(max_retries=1), top_n=1) == [(0, 1.0)]
    assert endpoint.times[1] - endpoint.times[0] >= 0.9


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Response(status_code=500), "HTTP 500"),
        (JSONResponse({"detail": "s3cret is not the key"}, status_code=401), "HTTP 401"),
        (Response("<html>", media_type="text/html"), "not JSON"),
        ({"error": "overloaded"}, "no results"),
        ({"results": "none"}, "no results"),
        ({"results": []}, "no usable score"),
        (results((9, 1.0)), "no usable score"),
        ("text", "no results"),
    ],
)
async def test_failures_are_errors_with_words(
    endpoint: Endpoint, answer: Any, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("RERANK_KEY", "s3cret")
    settings = endpoint.settings(api_key_env="RERANK_KEY")
    endpoint.answers.append(answer)
    with pytest.raises(RerankError, match=words) as error:
        await ask(settings)
    assert "s3cret" not in f"{error.value.message} {caplog.text} {settings!r}"


async def test_a_slow_or_absent_endpoint_is_an_error(endpoint: Endpoint) -> None:
    endpoint.delay = 5.0
    endpoint.answers.append(results((0, 1.0)))
    with pytest.raises(RerankError, match="in time"):
        await ask(endpoint.settings(timeout=0.3))
    with pytest.raises(RerankError, match="cannot be reached"):
        await ask(endpoint.settings(base_url="http://127.0.0.1:1"))


# ---- in this process


class Words:
    """Stands for a cross-encoder: the more words of the question, the better."""

    def __init__(self, name: str) -> None:
        if name == "broken":
            raise OSError("no such model")

    def predict(self, pairs: list[tuple[str, str]], show_progress_bar: bool) -> list[float]:
        if any(text == "crash" for _, text in pairs):
            raise RuntimeError("out of memory")
        return [float(len(set(query.split()) & set(text.split()))) for query, text in pairs]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("sentence_transformers")
    fake.CrossEncoder = Words  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", fake)


@pytest.mark.usefixtures("package")
async def test_a_cross_encoder_orders_by_its_scores() -> None:
    reranker = CrossEncoderReranker("m")
    assert await reranker.rerank("a b c", ["x", "a b", "c", "a b c"], 3) == [(3, 3.0), (1, 2.0), (2, 1.0)]
    assert await reranker.rerank("a", [], 3) == []
    with pytest.raises(RerankError, match="RuntimeError"):
        await reranker.rerank("a", ["crash"], 1)
    with pytest.raises(ConfigurationError, match="broken"):
        await CrossEncoderReranker("broken").rerank("a", ["b"], 1)


async def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingDependency, match=r"pip install 'zhiku\[rerank\]'"):
        await CrossEncoderReranker("m").rerank("a", ["b"], 1)


# ---- by settings


def test_settings_name_the_reranker() -> None:
    assert reranker_of(RerankerSettings()) is None
    assert isinstance(reranker_of(RerankerSettings(provider="http", base_url="http://x")), HTTPReranker)
    assert isinstance(reranker_of(RerankerSettings(provider="cross-encoder", model="m")), CrossEncoderReranker)
    for missing in ({"provider": "http"}, {"provider": "tei"}, {"provider": "cross-encoder"}):
        with pytest.raises(ConfigurationError, match=r"reranker\."):
            reranker_of(RerankerSettings.model_validate(missing))
