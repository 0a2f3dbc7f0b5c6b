"""Embedding models behind an API: OpenAI-compatible servers directly, others through LangChain."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from configs import EmbeddingModelSettings
from server.db.vectors import FloatArray
from server.errors import ConfigurationError, EmbeddingError, MissingDependency
from server.models.community import COMMUNITY, community_class
from server.models.embeddings import EmbeddingModel

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from openai import OpenAI


class RefusedBatch(Exception):
    """The server answered, and refused what it was sent; a smaller batch may pass."""


class RemoteEmbedding(EmbeddingModel):
    """Sends texts in batches. A batch that is refused is halved until the texts at fault stand alone."""

    def __init__(self, settings: EmbeddingModelSettings) -> None:
        self.name = settings.name
        self.settings = settings
        self.batch_size = settings.batch_size * settings.concurrency
        self._pool = ThreadPoolExecutor(settings.concurrency, thread_name_prefix=f"embed-{settings.name}")

    @abstractmethod
    def request(self, texts: Sequence[str]) -> list[list[float]]:
        """Vectors of one batch, in the order of the texts.

        Raises:
            RefusedBatch: the server refused this batch.
            EmbeddingError: it cannot be reached, or does not want to be asked now.
        """

    def encode_passages(self, texts: Sequence[str]) -> FloatArray:
        """Vectors of passages; NaN rows for texts that the server refuses even alone.

        Raises:
            EmbeddingError: no text of a batch was accepted, or the server cannot be reached.
        """
        size = self.settings.batch_size
        batches = [texts[at : at + size] for at in range(0, len(texts), size)]
        rows = [row for batch in self._pool.map(self._batch, batches) for row in batch]
        width = max((len(row) for row in rows if row), default=0)
        if not width:
            raise EmbeddingError(f"向量模型 {self.name} 拒绝了全部文本 / {self.name} refused all texts")
        vectors = np.full((len(rows), width), np.nan, dtype=np.float32)
        for at, row in enumerate(rows):
            if row and len(row) == width:
                vectors[at] = row
        return vectors

    def _batch(self, texts: Sequence[str]) -> list[list[float]]:
        try:
            return self.request(texts)
        except RefusedBatch:
            if len(texts) == 1:
                return [[]]
            middle = len(texts) // 2
            return self._batch(texts[:middle]) + self._batch(texts[middle:])

    def encode_query(self, text: str) -> FloatArray:
        """Vector of a question; it never waits for batches under way."""
        try:
            return np.asarray(self.request([text])[0], dtype=np.float32)
        except RefusedBatch as error:
            raise EmbeddingError(f"向量模型拒绝了问题 / {self.name} refused the question: {error}") from None

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class OpenAIEmbedding(RemoteEmbedding):
    """Any OpenAI-compatible server."""

    def __init__(self, settings: EmbeddingModelSettings) -> None:
        super().__init__(settings)
        self._client: OpenAI = self._connect()

    def _connect(self) -> OpenAI:
        from openai import OpenAI, Timeout

        settings = self.settings
        return OpenAI(
            api_key=settings.api_key.get_secret_value() if settings.api_key else "none",
            base_url=settings.base_url,
            max_retries=settings.max_retries,
            timeout=Timeout(settings.timeout, connect=10.0),
        )

    def request(self, texts: Sequence[str]) -> list[list[float]]:
        """Vectors of one batch, matched by the index that each item carries."""
        import openai

        try:
            # the client would check each number of each vector, which takes longer than all else
            answer = self._client.embeddings.with_raw_response.create(
                model=self.settings.model or self.name, input=list(texts), encoding_format="float"
            )
        except openai.RateLimitError:
            raise EmbeddingError(f"向量模型 {self.name} 限流 / rate limit of {self.name} reached") from None
        except openai.APIStatusError as error:
            if error.status_code in (401, 403, 404):
                raise EmbeddingError(f"向量模型 {self.name} 返回 HTTP {error.status_code}，请检查密钥与地址 / "
                                     f"HTTP {error.status_code}: check key and URL") from None  # fmt: skip
            raise RefusedBatch(f"HTTP {error.status_code}") from None
        except openai.OpenAIError as error:
            raise EmbeddingError(
                f"无法连接向量模型 {self.name} / cannot reach {self.name} ({type(error).__name__})"
            ) from None
        by_index = self._read(answer.content)
        if sorted(by_index) != list(range(len(texts))):
            raise EmbeddingError(
                f"向量模型 {self.name} 返回了 {len(by_index)} 个向量，应为 {len(texts)} 个 / "
                f"{self.name} returned {len(by_index)} vectors for {len(texts)} texts"
            )
        return [by_index[at] for at in range(len(texts))]

    def _read(self, content: bytes) -> dict[int, list[float]]:
        try:
            return {int(item["index"]): _numbers(item["embedding"]) for item in _object(content)["data"]}
        except (ValueError, TypeError, LookupError):
            raise EmbeddingError(
                f"向量模型 {self.name} 的回答无法解析 / {self.name} did not answer with embeddings: check its URL"
            ) from None


def _object(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return json.loads(content)  # slower, and reads NaN, which some servers write


def _numbers(values: Any) -> list[float]:
    """Null stands for a number that the model could not tell."""
    return [float("nan") if value is None else float(value) for value in values or ()]


class LangChainEmbedding(RemoteEmbedding):
    """Any provider that LangChain's `init_embeddings` knows."""

    def __init__(self, settings: EmbeddingModelSettings) -> None:
        super().__init__(settings)
        self._model: Embeddings = self._connect()

    def _connect(self) -> Embeddings:
        from langchain.embeddings import init_embeddings

        settings = self.settings
        options = settings.arguments()
        try:
            if settings.provider.startswith(COMMUNITY):
                made: Embeddings = community_class("embeddings", settings.provider)(**options)
                return made
            return init_embeddings(settings.model or settings.name, provider=settings.provider, **options)
        except ImportError as error:
            raise MissingDependency(f"{settings.provider} 需要安装 / needs a package: {error}") from error
        except ValueError as error:
            raise ConfigurationError(f"向量模型 {self.name} 的配置有误 / model {self.name}: {error}") from error

    def request(self, texts: Sequence[str]) -> list[list[float]]:
        """Vectors of one batch."""
        try:
            return self._model.embed_documents(list(texts))
        except Exception as error:
            # every provider's package has exceptions of its own
            raise EmbeddingError(f"向量模型 {self.name} 出错 / {self.name} failed: {type(error).__name__}") from error

    def encode_query(self, text: str) -> FloatArray:
        """Vector of a question."""
        try:
            return np.asarray(self._model.embed_query(text), dtype=np.float32)
        except Exception as error:
            # every provider's package has exceptions of its own
            raise EmbeddingError(f"向量模型 {self.name} 出错 / {self.name} failed: {type(error).__name__}") from error
