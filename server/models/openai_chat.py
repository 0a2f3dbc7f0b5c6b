"""Chat models behind OpenAI-compatible servers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from configs import ChatModelSettings
from server.errors import LLMError, LLMRateLimited
from server.models.chat import ChatModel, Message, Reply, Token, Usage
from server.models.completions import Completions
from server.models.langchain_chat import langchain_model

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from openai import AsyncOpenAI

_PING = 3.0
"""Seconds in which a server has to answer to count as reachable."""


class OpenAIChat(ChatModel):
    """Any OpenAI-compatible server. The client's retries honour Retry-After; the stream is read as bytes,
    because at a hundred streams the per-token cost of a general client would fill a core."""

    def __init__(self, settings: ChatModelSettings) -> None:
        super().__init__(settings)
        self._client: AsyncOpenAI | None = None
        self._langchain: BaseChatModel | None = None
        self._completions = Completions(settings)

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
        self, messages: Sequence[Message], temperature: float, max_tokens: int | None, options: Mapping[str, Any]
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
            **options,
        }
        try:
            async with self._connect().chat.completions.with_streaming_response.create(**body) as response:
                halves = _Halves()
                async for data in _sse_data(response.iter_bytes()):
                    token = _part(data, self.name)
                    yield token._replace(text=halves.joined(token.text)) if token.text else token
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

    async def reply(
        self, messages: Sequence[Message], temperature: float = 0.0, schema: Mapping[str, Any] | None = None
    ) -> Reply:
        """The whole reply at once, as JSON of the schema where the server has that."""
        async with self._slots:
            return await self._completions.reply(messages, temperature, schema)

    def langchain(self) -> BaseChatModel:
        """The same model as LangChain's agents take it; made once, for it opens connections of its own."""
        if self._langchain is None:
            self._langchain = langchain_model(self.settings)
        return self._langchain

    def warm(self) -> None:
        """The package takes about a second to import."""
        import openai  # noqa: F401

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
        await self._completions.close()
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
    event = _json(data, name)
    if not isinstance(event, dict) or event.get("error"):
        raise LLMError(f"模型 {name} 在回答中途报错 / {name} reported an error in mid-reply")
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    thinking = _text(delta.get("reasoning_content") or delta.get("reasoning"))
    counted = event.get("usage") or {}
    usage = Usage(counted.get("prompt_tokens") or 0, counted.get("completion_tokens") or 0) if counted else None
    return Token(_text(delta.get("content")), thinking, choices[0].get("finish_reason"), usage)


def _json(data: bytes, name: str) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass  # it is strict about half characters, which some servers send one by one
    try:
        return json.loads(data)
    except ValueError:
        raise LLMError(f"模型 {name} 的响应无法解析 / {name} sent something that is not JSON") from None


def _text(content: Any) -> str:
    """The text of a delta, which some servers send as a list of parts."""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


class _Halves:
    """Joins characters whose halves (surrogates) come in two pieces; a half that stays alone is replaced."""

    def __init__(self) -> None:
        self._held = ""

    def joined(self, text: str) -> str:
        text, self._held = self._held + text, ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
