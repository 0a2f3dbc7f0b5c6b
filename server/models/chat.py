"""Chat models: one promise, OpenAI-compatible servers directly, all other providers through LangChain."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson

from configs import ChatModelSettings
from server.errors import ConfigurationError, LLMError, LLMIncomplete, LLMRateLimited, MissingDependency
from server.models.community import COMMUNITY, community_class
from server.models.thinking import ThinkingSplitter

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from openai import AsyncOpenAI

Role = Literal["system", "user", "assistant"]
_PING = 3.0
"""Seconds in which a server has to answer to count as reachable."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str

    def as_dict(self) -> dict[str, str]:
        """The shape that OpenAI-compatible servers take."""
        return {"role": self.role, "content": self.content}


class Usage(NamedTuple):
    """Tokens that a reply cost, as the provider counts them."""

    prompt: int
    completion: int


class Piece(NamedTuple):
    """Some more of a reply: of the answer, or of what a reasoning model thinks before it."""

    text: str = ""
    thinking: str = ""
    usage: Usage | None = None


class Token(NamedTuple):
    """What a server sent: text, thinking where it tells them apart, and why the reply ended."""

    text: str = ""
    thinking: str = ""
    finish: str | None = None
    usage: Usage | None = None


class ChatModel(ABC):
    """Writes text token by token. A reply that is empty or cut is an error, never an answer."""

    def __init__(self, settings: ChatModelSettings) -> None:
        self.settings = settings
        self.name = settings.name
        self._slots = asyncio.Semaphore(settings.concurrency)

    @abstractmethod
    def tokens(self, messages: Sequence[Message], temperature: float, max_tokens: int | None) -> AsyncGenerator[Token]:
        """What the server sends, as it comes."""

    @abstractmethod
    def langchain(self) -> BaseChatModel:
        """The same model as LangChain's agents take it."""

    async def complete(
        self, messages: Sequence[Message], temperature: float = 0.0, max_tokens: int | None = None
    ) -> str:
        """The whole answer, without what the model thought before it.

        Raises:
            LLMError: as for `stream`.
        """
        async with aclosing(self.stream(messages, temperature, max_tokens)) as pieces:
            return "".join([piece.text async for piece in pieces])

    async def stream(
        self, messages: Sequence[Message], temperature: float, max_tokens: int | None = None
    ) -> AsyncGenerator[Piece]:
        """The reply as it comes. Closing the iterator closes the connection to the model.

        Raises:
            LLMError: the model failed; LLMRateLimited: it is asked too often;
            LLMIncomplete: the reply is empty, or was cut although the caller set no `max_tokens`.
        """
        ended, empty = None, True
        splitter = ThinkingSplitter(opened=self.settings.begins_thinking)
        async with self._slots, aclosing(self.tokens(messages, temperature, max_tokens)) as parts:
            async for token in parts:
                ended = token.finish or ended
                answer, thinking = splitter.feed(token.text) if token.text else ("", "")
                empty = empty and not answer
                if answer or thinking or token.thinking or token.usage:
                    yield Piece(answer, token.thinking + thinking, token.usage)
        answer, thinking = splitter.finish()
        if answer or thinking:
            yield Piece(answer, thinking)
        if ended == "length" and max_tokens is None:
            raise LLMIncomplete(
                f"模型 {self.name} 的回答被截断，请调大 max_tokens / the reply of {self.name} was cut: raise max_tokens"
            )
        if ended is None:
            raise LLMIncomplete(f"模型 {self.name} 的回答中断 / the reply of {self.name} broke off")
        if empty and not answer.strip():
            raise LLMIncomplete(f"模型 {self.name} 返回了空回答 / {self.name} gave an empty reply")

    async def reachable(self) -> bool:
        """Whether its server answers; where there is no way to ask it counts as there."""
        return True

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
    ) -> AsyncGenerator[Token]:
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

    def langchain(self) -> BaseChatModel:
        """The same model as LangChain's agents take it."""
        return _langchain_model(self.settings)

    async def reachable(self) -> bool:
        """Whether its server answers and takes our key."""
        import openai

        try:
            await self._connect().with_options(timeout=_PING, max_retries=0).models.list()
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.APIConnectionError):
            return False
        except openai.APIStatusError:
            return True  # it is there, and has no list of models
        return True

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


def _part(data: bytes, name: str) -> Token:
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise LLMError(f"模型 {name} 的响应无法解析 / {name} sent something that is not JSON") from None
    if not isinstance(event, dict) or event.get("error"):
        raise LLMError(f"模型 {name} 在回答中途报错 / {name} reported an error in mid-reply")
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    thinking = delta.get("reasoning_content") or delta.get("reasoning") or ""
    counted = event.get("usage") or {}
    usage = Usage(counted.get("prompt_tokens") or 0, counted.get("completion_tokens") or 0) if counted else None
    return Token(delta.get("content") or "", thinking, choices[0].get("finish_reason"), usage)


class LangChainChat(ChatModel):
    """Any provider that LangChain's `init_chat_model` knows, by configuration."""

    def __init__(self, settings: ChatModelSettings) -> None:
        super().__init__(settings)
        self._model: BaseChatModel | None = None

    def langchain(self) -> BaseChatModel:
        """The model, made when it is first asked for."""
        if self._model is None:
            self._model = _langchain_model(self.settings)
        return self._model

    async def tokens(
        self, messages: Sequence[Message], temperature: float, max_tokens: int | None
    ) -> AsyncGenerator[Token]:
        """Parts of the reply."""
        limit = max_tokens or self.settings.max_output_tokens
        model = self.langchain().bind(temperature=temperature, max_tokens=limit)
        turns: list[Any] = [(message.role, message.content) for message in messages]
        try:
            async for chunk in model.astream(turns):
                meta = chunk.response_metadata
                thinking = chunk.additional_kwargs.get("reasoning_content") or ""
                yield Token(str(chunk.text), thinking, meta.get("finish_reason") or meta.get("stop_reason"))
        except Exception as error:
            # every provider's package has exceptions of its own
            raise LLMError(f"模型 {self.name} 出错 / {self.name} failed: {type(error).__name__}") from error
        yield Token(finish="stop")


def _langchain_model(settings: ChatModelSettings) -> BaseChatModel:
    """A provider's class in LangChain, by configuration.

    Raises:
        MissingDependency: its package is not installed; ConfigurationError: it refuses the settings.
    """
    from langchain.chat_models import init_chat_model

    name, options = settings.model or settings.name, settings.arguments()
    try:
        if settings.provider.startswith(COMMUNITY):
            made: BaseChatModel = community_class("chat_models", settings.provider)(model=name, **options)
            return made
        retries, timeout = settings.max_retries, settings.timeout
        if settings.provider == "openai":
            options.setdefault("api_key", "none")
        found: BaseChatModel = init_chat_model(
            name, model_provider=settings.provider, max_retries=retries, timeout=timeout, **options
        )
        return found
    except ImportError as error:
        raise MissingDependency(f"{settings.provider} 需要安装 / needs a package: {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"模型 {settings.name} 的配置有误 / model {settings.name}: {error}") from error


class ChatModels:
    """The configured models by name; clients connect when first asked. A model can be stopped until the next start."""

    def __init__(self, configured: Sequence[ChatModelSettings]) -> None:
        self._models: dict[str, ChatModel] = {
            settings.name: (OpenAIChat if settings.provider == "openai" else LangChainChat)(settings)
            for settings in configured
        }
        self._stopped: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The names of all models in use, the default first."""
        return [name for name in self._models if name not in self._stopped]

    @property
    def configured(self) -> list[ChatModelSettings]:
        """All models, whether in use or stopped."""
        return [model.settings for model in self._models.values()]

    def get(self, name: str) -> ChatModel:
        """The model of that name.

        Raises:
            ConfigurationError: no such model is configured, or it was stopped.
        """
        if name not in self.names:
            known = ", ".join(self.names) or "无 / none"
            reason = ("已停止", "is stopped") if name in self._stopped else ("未配置", "is not configured")
            raise ConfigurationError(
                f"模型 {name} {reason[0]}，可用：{known}（见 configs/model.yaml）/ "
                f"model {name} {reason[1]}, there are: {known} (see configs/model.yaml)"
            )
        return self._models[name]

    def stop(self, name: str) -> None:
        """Take a model out of use."""
        self.get(name)
        self._stopped.add(name)

    def start(self, name: str) -> None:
        """Take a model into use again, before all others: it is the default now.

        Raises:
            ConfigurationError: no such model is configured.
        """
        if name not in self._models:
            self.get(name)
        self._stopped.discard(name)
        self._models = {name: self._models[name], **self._models}

    async def close(self) -> None:
        """Close all connections."""
        for model in self._models.values():
            await model.close()
