"""Reranking: a second, slower look at the passages that retrieval found.

    reranker = reranker_of(RerankerSettings(provider="http", base_url="https://api.jina.ai/v1", model="…"))
    order = await reranker.rerank(query, texts, top_n)       # [(index into texts, score)], best first
    await reranker.close()

`order` always has min(top_n, number of texts) different indexes: what the reranker left out follows in its old
order. A reranker that fails raises a ZhikuError; whether the search goes on without it is the caller's decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from importlib import import_module
from math import isfinite
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from configs import RerankerSettings
from server.errors import ConfigurationError, MissingDependency, ZhikuError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Order = list[tuple[int, float]]
"""(index, score) of passages, best first; what a score means is the reranker's own affair."""


class RerankError(ZhikuError):
    """The reranker cannot be reached, or its answer cannot be used."""


class Reranker(Protocol):
    """Puts passages into the order in which they answer a question."""

    async def rerank(self, query: str, texts: Sequence[str], top_n: int) -> Order:
        """The best passages, best first.

        Raises:
            ZhikuError: it failed.
        """

    async def close(self) -> None:
        """Close connections."""


def reranker_of(settings: RerankerSettings) -> Reranker | None:
    """The reranker that the settings name; nothing is connected or loaded yet.

    Raises:
        ConfigurationError: an endpoint without an address, a cross-encoder without a model.
    """
    if settings.provider == "none":
        return None
    if settings.provider == "cross-encoder":
        if not settings.model:
            raise ConfigurationError("reranker.model：未指定模型 / names no model")
        return CrossEncoderReranker(settings.model)
    if not settings.base_url:
        raise ConfigurationError("reranker.base_url：未指定地址 / is not set")
    return HTTPReranker(settings)


class HTTPReranker:
    """An endpoint of the shape that Jina, Cohere, vLLM and others share, or that of TEI.

    The client is the one that also asks language models: it retries with growing, jittered pauses and honours
    Retry-After.
    """

    def __init__(self, settings: RerankerSettings) -> None:
        self._settings = settings
        self._client: AsyncOpenAI | None = None

    def _connect(self) -> AsyncOpenAI:
        if self._client is None:
            from openai import AsyncOpenAI, Timeout

            settings = self._settings
            self._client = AsyncOpenAI(
                api_key=settings.api_key.get_secret_value() if settings.api_key else "none",
                base_url=settings.base_url,
                max_retries=settings.max_retries,
                timeout=Timeout(settings.timeout, connect=min(settings.timeout, 5.0)),
            )
        return self._client

    async def rerank(self, query: str, texts: Sequence[str], top_n: int) -> Order:
        """The best passages, best first."""
        wanted = min(top_n, len(texts))
        if wanted < 1:
            return []
        answer = await self._post(self._body(query, texts, wanted))
        return _complete(_scored(answer), len(texts), wanted)

    def _body(self, query: str, texts: Sequence[str], top_n: int) -> dict[str, Any]:
        if self._settings.provider == "tei":
            return {"query": query, "texts": list(texts), "truncate": True}
        return {"model": self._settings.model, "query": query, "documents": list(texts), "top_n": top_n}

    async def _post(self, body: dict[str, Any]) -> Any:
        import httpx2  # the client that openai is built on
        import openai

        try:
            response = await self._connect().post("/rerank", body=body, cast_to=httpx2.Response)
            return orjson.loads(response.content)
        except openai.APIStatusError as error:
            code = error.status_code
            raise RerankError(f"重排序服务返回 HTTP {code} / the reranker answered HTTP {code}") from None
        except openai.APITimeoutError:
            raise RerankError("重排序服务超时 / the reranker did not answer in time") from None
        except (openai.OpenAIError, httpx2.HTTPError):
            raise RerankError("无法连接重排序服务 / the reranker cannot be reached") from None
        except orjson.JSONDecodeError:
            raise RerankError("重排序服务的响应不是 JSON / the reranker sent something that is not JSON") from None

    async def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            await self._client.close()


class CrossEncoderReranker:
    """A cross-encoder in this process, loaded when it is first asked. One question at a time has the model."""

    def __init__(self, model: str) -> None:
        self._name = model
        self._model: Any = None
        self._lock = Lock()

    async def rerank(self, query: str, texts: Sequence[str], top_n: int) -> Order:
        """The best passages, best first."""
        wanted = min(top_n, len(texts))
        if wanted < 1:
            return []
        scores = await asyncio.to_thread(self._scores, query, texts)
        return _complete(enumerate(scores), len(texts), wanted)

    def _scores(self, query: str, texts: Sequence[str]) -> list[float]:
        with self._lock:
            if self._model is None:
                self._model = self._load()
            try:
                raw = self._model.predict([(query, text) for text in texts], show_progress_bar=False)
            except (RuntimeError, ValueError) as error:  # what torch raises when memory or shapes do not fit
                raise RerankError(f"重排序模型出错 / the reranker failed: {type(error).__name__}") from error
        return [float(score) for score in raw]

    def _load(self) -> Any:
        try:
            package = import_module("sentence_transformers")
        except ImportError:
            raise MissingDependency(
                "重排序模型需要安装 / the cross-encoder needs a package: pip install 'zhiku[rerank]'"
            ) from None
        try:
            return package.CrossEncoder(self._name)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigurationError(
                f"无法加载重排序模型 {self._name} / the model cannot be loaded ({type(error).__name__})"
            ) from error

    async def close(self) -> None:
        """Nothing is open."""


def _scored(answer: Any) -> list[tuple[Any, Any]]:
    """(index, score) of an answer's items, unchecked."""
    items = answer.get("results", answer.get("data")) if isinstance(answer, dict) else answer
    if not isinstance(items, list):
        raise RerankError("重排序服务的响应格式不对 / the reranker's answer has no results")
    return [
        (item.get("index"), item.get("relevance_score", item.get("score"))) for item in items if isinstance(item, dict)
    ]


def _complete(scored: Iterable[tuple[Any, Any]], count: int, wanted: int) -> Order:
    """The first `wanted` of `count` passages: those with a usable score, best first, then the others as they were."""
    scores: dict[int, float] = {}
    for index, score in scored:
        if _is_number(index) and _is_number(score) and isfinite(score) and index in range(count):
            scores.setdefault(int(index), float(score))
    if not scores:
        raise RerankError("重排序服务没有给出可用的分数 / the reranker gave no usable score")
    least = min(scores.values())
    order = sorted(scores.items(), key=lambda item: -item[1])
    return [*order, *((index, least) for index in range(count) if index not in scores)][:wanted]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
