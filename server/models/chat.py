"""Chat models: one promise, OpenAI-compatible servers directly, all other providers through LangChain."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from configs import ChatModelSettings
from server.errors import LLMIncomplete
from server.models.thinking import ThinkingSplitter

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

Role = Literal["system", "user", "assistant"]


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
    """Some more of a reply: of the answer, or of what a reasoning model thinks before it. The last one tells when the
    reply was `cut` at the length that the caller asked for."""

    text: str = ""
    thinking: str = ""
    usage: Usage | None = None
    cut: bool = False


class Reply(NamedTuple):
    """A whole reply, without what a reasoning model thought before it."""

    text: str
    usage: Usage


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
    def tokens(
        self, messages: Sequence[Message], temperature: float, max_tokens: int | None, options: Mapping[str, Any]
    ) -> AsyncGenerator[Token]:
        """What the server sends, as it comes; `options` are further arguments of the provider."""

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

    async def reply(
        self, messages: Sequence[Message], temperature: float = 0.0, schema: Mapping[str, Any] | None = None
    ) -> Reply:
        """The whole reply at once, for work in the background.

        With a JSON `schema` a server that can holds the reply to it; others only have the prompt.

        Raises:
            LLMError: as for `stream`.
        """
        del schema  # for those that know a way to pass it on
        text, usage = "", Usage(0, 0)
        async with aclosing(self.stream(messages, temperature)) as pieces:
            async for piece in pieces:
                text, usage = text + piece.text, piece.usage or usage
        return Reply(text, usage)

    async def stream(
        self,
        messages: Sequence[Message],
        temperature: float,
        max_tokens: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Piece]:
        """The reply as it comes. Closing the iterator closes the connection to the model.

        Raises:
            LLMError: the model failed; LLMRateLimited: it is asked too often;
            LLMIncomplete: the reply is empty, or was cut although the caller set no `max_tokens`.
        """
        ended, empty = None, True
        splitter = ThinkingSplitter(opened=self.settings.begins_thinking)
        async with self._slots, aclosing(self.tokens(messages, temperature, max_tokens, options or {})) as parts:
            async for token in parts:
                ended = token.finish or ended
                answer, thinking = splitter.feed(token.text) if token.text else ("", "")
                empty = empty and not answer
                if answer or thinking or token.thinking or token.usage:
                    yield Piece(answer, token.thinking + thinking, token.usage)
        answer, thinking = splitter.finish()
        if answer or thinking or ended == "length":
            yield Piece(answer, thinking, cut=ended == "length")
        if ended == "length" and max_tokens is None:
            raise was_cut(self.name)
        if ended is None:
            raise LLMIncomplete(f"模型 {self.name} 的回答中断 / the reply of {self.name} broke off")
        if empty and not answer.strip():
            raise was_empty(self.name)

    async def reachable(self) -> bool:
        """Whether its server answers; where there is no way to ask it counts as there."""
        return True

    def warm(self) -> None:  # noqa: B027  # most providers have nothing that takes long
        """Load what the first question would wait for."""

    async def close(self) -> None:  # noqa: B027  # most providers hold nothing
        """Close connections."""


def was_cut(name: str) -> LLMIncomplete:
    """The error of a reply that reached its greatest length."""
    return LLMIncomplete(f"模型 {name} 的回答被截断，请调大 max_tokens / the reply of {name} was cut: raise max_tokens")


def was_empty(name: str) -> LLMIncomplete:
    """The error of a reply that says nothing."""
    return LLMIncomplete(f"模型 {name} 返回了空回答 / {name} gave an empty reply")
