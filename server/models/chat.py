"""Chat models: one promise, OpenAI-compatible servers directly, all other providers through LangChain."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import orjson

from configs import ChatModelSettings
from server.errors import ConfigurationError, LLMError, LLMIncomplete, LLMRateLimited, MissingDependency
from server.models.community import COMMUNITY, community_class

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from openai import AsyncOpenAI

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str

    def as_dict(self) -> dict[str, str]:
        """The shape that OpenAI-compatible servers take."""
        return {"role": self.role, "content": self.content}


class ChatModel(ABC):
    """Writes text token by token. A reply that is empty or cut is an error, never an answer."""

    def __init__(self, settings: ChatModelSettings) -> None:
        self.settings = settings
        self.name = settings.name
        self._slots = asyncio.Semaphore(settings.concurrency)

    @abstractmethod
    def tokens(
        self, messages: Sequence[Message], temperature: float, max_tokens: int | None
    ) -> AsyncGenerator[tuple[str, str | None]]:
        """(text, reason why the reply ended or None) as they come."""

    async def stream(
        self, messages: Sequence[Message], temperature: float, max_tokens: int | None = None
    ) -> AsyncGenerator[str]:
        """The reply's text as it comes. Closing the iterator closes the connection to the model.

        Raises:
            LLMError: the model failed; LLMRateLimited: it is asked too often;
            LLMIncomplete: the reply is empty, or was cut although the caller set no `max_tokens`.
        """
        ended, empty = None, True
        async with self._slots, aclosing(self.tokens(messages, temperature, max_tokens)) as parts:
            async for text, reason in parts:
                ended = reason or ended
                if text:
                    empty = False
                    yield text
        if ended == "length" and max_tokens is None:
            raise LLMIncomplete(
                f"模型 {self.name} 的回答被截断，请调大 max_tokens / the reply of {self.name} was cut: raise max_tokens"
            )
        if ended is None:
            raise LLMIncomplete(f"模型 {self.name} 的回答中断 / the reply of {self.name} broke off")
        if empty:
            raise LLMIncomplete(f"模型 {self.name} 返回了空回答 / {self.name} gave an empty reply")

    async def close(self) -> None:  # noqa: B027  # most providers hold nothing
        """Close connections."""


class OpenAIChat(ChatModel):
    """Any OpenAI-compatible server. The client's retries honour Retry-After; the stream is read as bytes,
    because at a hundred streams the per-token cost of a general client would fill a core."""

    def __init__(self, settings: ChatModelSettings) -> None:
        super().__init__(settings)
        self._client: AsyncOpenAI | None = None

    def _connect(self) -> AsyncOpenAI:
        if self._client is None:
            from openai import AsyncOpenAI, Timeout

            settings = self.settings
            self._client = AsyncOpenAI(
                api_key=settings.api_key.get_secret_value() if settings.api_key else "none",
                base_url=settings.base_url,
                max_retries=settings.max_retries,
                timeout=Timeout(settings.timeout, connect=10.0),
            )
        return self._client

    async def tokens(
        self, messages: Sequence[Message], temperature: float, max_tokens: int | None
    ) -> AsyncGenerator[tuple[str, str | None]]:
        """Parts of the reply."""
        import httpx2  # the client that openai is built on
        import openai

        settings = self.settings
        body: Any = {
            "model": settings.model or settings.name,
            "messages": [message.as_dict() for message in messages],
            "temperature": temperature,
            "max_tokens": max_tokens or settings.max_output_tokens,
            "stream": True,
            **settings.options,
        }
        try:
            async with self._connect().chat.completions.with_streaming_response.create(**body) as response:
                async for data in _sse_data(response.iter_bytes()):
                    yield _part(data, self.name)
        except openai.RateLimitError:
            raise LLMRateLimited(
                f"模型 {self.name} 限流（HTTP 429），请稍后重试 / rate limit of {self.name} reached, try again later"
            ) from None
        except openai.APIStatusError as error:
            raise LLMError(f"模型 {self.name} 返回 HTTP {error.status_code} / {self.name} answered HTTP "
                           f"{error.status_code}: {self._clean(error.message)}") from None  # fmt: skip
        except (openai.APITimeoutError, httpx2.TimeoutException):
            raise LLMError(f"模型 {self.name} 超时 / {self.name} did not answer in time") from None
        except (openai.APIConnectionError, httpx2.HTTPError):
            raise LLMError(f"与模型 {self.name} 的连接失败 / the connection to {self.name} failed") from None

    def _clean(self, message: str) -> str:
        key = self.settings.api_key
        return (message.replace(key.get_secret_value(), "***") if key else message)[:300]

    async def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            await self._client.close()


async def _sse_data(blocks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The `data:` payloads of an event stream, up to `[DONE]`. Only line feeds end a line: a payload may
    hold U+2028, and a character may be spread over two blocks."""
    rest = b""
    async for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield data


def _part(data: bytes, name: str) -> tuple[str, str | None]:
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise LLMError(f"模型 {name} 的响应无法解析 / {name} sent something that is not JSON") from None
    if not isinstance(event, dict) or event.get("error"):
        raise LLMError(f"模型 {name} 在回答中途报错 / {name} reported an error in mid-reply")
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return delta.get("content") or "", choices[0].get("finish_reason")


class LangChainChat(ChatModel):
    """Any provider that LangChain's `init_chat_model` knows, by configuration."""

    def __init__(self, settings: ChatModelSettings) -> None:
        super().__init__(settings)
        self._model: BaseChatModel | None = None

    def _connect(self) -> BaseChatModel:
        if self._model is None:
            from langchain.chat_models import init_chat_model

            settings = self.settings
            try:
                self._model = self._make(init_chat_model, settings.arguments())
            except ImportError as error:
                raise MissingDependency(f"{settings.provider} 需要安装 / needs a package: {error}") from error
            except ValueError as error:
                raise ConfigurationError(f"模型 {self.name} 的配置有误 / model {self.name}: {error}") from error
        return self._model

    def _make(self, init: Callable[..., Any], options: dict[str, Any]) -> BaseChatModel:
        settings = self.settings
        name = settings.model or settings.name
        if settings.provider.startswith(COMMUNITY):
            made: BaseChatModel = community_class("chat_models", settings.provider)(model=name, **options)
            return made
        retries, timeout = settings.max_retries, settings.timeout
        model: BaseChatModel = init(
            name, model_provider=settings.provider, max_retries=retries, timeout=timeout, **options
        )
        return model

    async def tokens(
        self, messages: Sequence[Message], temperature: float, max_tokens: int | None
    ) -> AsyncGenerator[tuple[str, str | None]]:
        """Parts of the reply."""
        model = self._connect().bind(temperature=temperature, max_tokens=max_tokens or self.settings.max_output_tokens)
        turns: list[Any] = [(message.role, message.content) for message in messages]
        try:
            async for chunk in model.astream(turns):
                meta = chunk.response_metadata
                yield str(chunk.text), meta.get("finish_reason") or meta.get("stop_reason")
        except Exception as error:
            # every provider's package has exceptions of its own
            raise LLMError(f"模型 {self.name} 出错 / {self.name} failed: {type(error).__name__}") from error
        yield "", "stop"


class ChatModels:
    """The configured models by name; clients connect when first asked."""

    def __init__(self, configured: Sequence[ChatModelSettings]) -> None:
        self._models: dict[str, ChatModel] = {
            settings.name: (OpenAIChat if settings.provider == "openai" else LangChainChat)(settings)
            for settings in configured
        }

    @property
    def names(self) -> list[str]:
        """All configured names, the default first."""
        return list(self._models)

    def get(self, name: str) -> ChatModel:
        """The model of that name.

        Raises:
            ConfigurationError: no such model is configured.
        """
        if name not in self._models:
            known = ", ".join(self.names) or "无 / none"
            raise ConfigurationError(
                f"未配置模型 {name}，已配置：{known}（见 configs/model.yaml）/ "
                f"model {name} is not configured, there are: {known} (see configs/model.yaml)"
            )
        return self._models[name]

    async def close(self) -> None:
        """Close all connections."""
        for model in self._models.values():
            await model.close()
