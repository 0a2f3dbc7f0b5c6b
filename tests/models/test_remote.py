"""Models behind an API, with the real clients against a scripted server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from configs import ChatModelSettings, EmbeddingModelSettings
from server.errors import ConfigurationError, EmbeddingError, LLMError
from server.models.chat import Message
from server.models.chat_models import ChatModels
from server.models.community import community_class
from server.models.fake import FakeEmbedding
from server.models.fake_llm import FakeLLM, Reply
from server.models.langchain_chat import LangChainChat
from server.models.remote import LangChainEmbedding, OpenAIEmbedding
from tests.conftest import URLS, ThreadServer


class Moody(FakeEmbedding):
    """Refuses batches that hold the poison, and batches that are too large."""

    def __init__(self, most: int = 1000, answers: Any = None) -> None:
        super().__init__(dimension=8)
        self.most = most

    def encode_passages(self, texts: Any) -> Any:
        if len(texts) > self.most or any("cursed" in text for text in texts):
            raise ValueError("refused")
        return super().encode_passages(texts)


@pytest.fixture
def model(llm: FakeLLM) -> Iterator[OpenAIEmbedding]:
    made = OpenAIEmbedding(
        EmbeddingModelSettings(name="m", base_url=URLS[id(llm)], batch_size=16, max_retries=0, concurrency=2)
    )
    yield made
    made.close()


def test_vectors_are_matched_by_index(model: OpenAIEmbedding, llm: FakeLLM) -> None:
    texts = [f"paragraph {n}" for n in range(100)]
    vectors = model.embed_passages(texts)
    wanted = llm.embedder.encode_passages(texts)
    assert np.allclose(vectors, wanted / np.linalg.norm(wanted, axis=1, keepdims=True), atol=1e-5)
    query = model.embed_query("paragraph 7")
    assert np.allclose(query, vectors[7], atol=1e-5)


def test_the_text_at_fault_stands_alone(model: OpenAIEmbedding, llm: FakeLLM) -> None:
    llm.embedder = Moody()
    vectors = model.embed_passages([f"paragraph {n}" if n != 11 else "cursed 11" for n in range(20)])
    assert [at for at, vector in enumerate(vectors) if np.isnan(vector).any()] == [11]


def test_a_batch_that_is_too_large_is_halved(model: OpenAIEmbedding, llm: FakeLLM) -> None:
    llm.embedder = Moody(most=3)
    assert np.isfinite(model.embed_passages([f"p{n}" for n in range(16)])).all()


def test_a_model_that_refuses_everything_has_failed(model: OpenAIEmbedding, llm: FakeLLM) -> None:
    llm.embedder = Moody(most=0)
    with pytest.raises(EmbeddingError, match="refused"):
        model.embed_passages(["a", "b"])
    with pytest.raises(EmbeddingError):
        model.embed_query("a")


def test_a_question_is_embedded_once_and_a_failure_is_not_kept(model: OpenAIEmbedding, llm: FakeLLM) -> None:
    llm.embedder = Moody(most=0)
    with pytest.raises(EmbeddingError):
        model.embed_query("a")
    llm.embedder = Moody()
    first = model.embed_query("a")
    llm.embedder = Moody(most=0)
    assert model.embed_query("a") is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1.0  # all who ask share it
    with pytest.raises(EmbeddingError):
        model.embed_query("b")


async def _no_embeddings(_: Request) -> Response:
    return JSONResponse({"error": {"message": "no such deployment"}})


async def _one_is_nan(request: Request) -> Response:
    count = len((await request.json())["input"])
    rows = ", ".join(f'{{"index": {at}, "embedding": [{"NaN" if at == 1 else 0.5}, 1.0]}}' for at in range(count))
    return Response(f'{{"data": [{rows}]}}', media_type="application/json")


@pytest.fixture
def odd() -> Iterator[Callable[[Callable[[Request], Awaitable[Response]]], OpenAIEmbedding]]:
    """A model whose server answers 200 with what a function says."""
    with ExitStack() as stack:

        def made(answer: Callable[[Request], Awaitable[Response]]) -> OpenAIEmbedding:
            app = Starlette(routes=[Route("/v1/embeddings", answer, methods=["POST"])])
            port = stack.enter_context(ThreadServer(app)).port
            found = OpenAIEmbedding(EmbeddingModelSettings(name="m", base_url=f"http://127.0.0.1:{port}/v1"))
            stack.callback(found.close)
            return found

        yield made


def test_an_answer_without_embeddings_is_no_answer(odd: Callable[[Any], OpenAIEmbedding]) -> None:
    with pytest.raises(EmbeddingError, match="did not answer with embeddings"):
        odd(_no_embeddings).embed_passages(["a"])


def test_a_vector_that_is_not_a_number_stands_alone(odd: Callable[[Any], OpenAIEmbedding]) -> None:
    vectors = odd(_one_is_nan).embed_passages(["a", "b", "c"])
    assert [at for at, vector in enumerate(vectors) if np.isnan(vector).any()] == [1]


def test_a_model_out_of_reach_is_named() -> None:
    model = OpenAIEmbedding(EmbeddingModelSettings(name="far", base_url="http://127.0.0.1:9/v1", max_retries=0))
    with pytest.raises(EmbeddingError, match="far"):
        model.embed_passages(["a"])
    model.close()


def test_langchain_embeddings_by_configuration(llm: FakeLLM) -> None:
    settings = EmbeddingModelSettings(name="text-embedding-3-small", provider="openai", base_url=URLS[id(llm)],
                                      options={"api_key": "x", "check_embedding_ctx_length": False})  # fmt: skip
    model = LangChainEmbedding(settings)
    assert model.embed_passages(["a", "b"]).shape == (2, 8)
    assert model.embed_query("a").shape == (8,)
    model.close()


def test_langchain_chat_models_by_configuration(llm: FakeLLM) -> None:
    settings = ChatModelSettings(name="gpt-x", provider="openai", base_url=URLS[id(llm)], options={"api_key": "x"})

    async def talk(model: LangChainChat) -> str:
        return "".join([piece.text async for piece in model.stream([Message("user", "hi")], 0.0)])

    llm.script.append(Reply(["from ", "LangChain"]))
    assert asyncio.run(talk(LangChainChat(settings))) == "from LangChain"
    llm.script.extend([Reply(status=400)] * 4)
    with pytest.raises(LLMError, match="gpt-x"):
        asyncio.run(talk(LangChainChat(settings)))


def test_an_unknown_provider_is_explained() -> None:
    async def talk() -> None:
        model = LangChainChat(ChatModelSettings(name="m", provider="no-such-provider"))
        async for _ in model.stream([Message("user", "hi")], 0.0):
            pass

    with pytest.raises(ConfigurationError, match="m"):
        asyncio.run(talk())
    with pytest.raises(ConfigurationError, match="llm_models|model.yaml"):
        ChatModels([]).get("gpt")


@pytest.mark.filterwarnings("ignore")
def test_community_classes_are_found_by_name() -> None:
    assert community_class("embeddings", "community:FakeEmbeddings").__name__ == "FakeEmbeddings"
    for name in ("NoSuchThing", "__class__", "os.system"):
        with pytest.raises(ConfigurationError):
            community_class("embeddings", f"community:{name}")
