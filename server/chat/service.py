"""Chats: one event after the other, as the contract has them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlencode

from configs import Settings
from configs.settings import EXTRACTIVE
from server.chat import extractive
from server.chat.prompts import Prompts, context_of, conversation, estimate_tokens, fit_sources
from server.db import messages
from server.db.session import Database
from server.domain import Hit
from server.errors import InvalidRequest, LLMError, ZhikuError
from server.models.chat import ChatModel, ChatModels, Message
from server.retrieval.analysis import language

log = logging.getLogger(__name__)

Event = dict[str, Any]
Closeness = Callable[[str, Sequence[str]], Sequence[float]]
"""How near each of some texts is to a question, for quotations in another language than the question's."""
NO_HITS = "<span style='color:red'>未找到相关文档,该回答为大模型自身能力解答！</span>"
"""What the old web page shows when no passage was found and the model answers by itself."""
NOTHING_FOUND = "<span style='color:red'>未找到相关文档 / no relevant documents found</span>"
"""The same when there is no model either."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked, and how it is to be answered."""

    query: str
    stream: bool = False
    model_name: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    prompt_name: str = "default"
    history: Sequence[Message] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """A stored conversation; `turns` is how many earlier ones the model is shown."""

    id: str
    turns: int


class ChatService:
    """Answers questions, with a knowledge base's passages or without."""

    def __init__(self, settings: Settings, models: ChatModels, db: Database) -> None:
        self._settings = settings
        self._models = models
        self._db = db
        self._prompts = Prompts(settings.prompt_templates)

    def check(self, request: Request, kind: str) -> None:
        """Refuse what cannot work before the stream begins.

        Raises:
            ConfigurationError: no such model; InvalidRequest: no such prompt.
        """
        if self._model_name(request) != EXTRACTIVE:
            self._models.get(self._model_name(request))
            self._require_room(request)
        self._prompts.render(kind, request.prompt_name, input="", context="", question="", history="")

    def _require_room(self, request: Request) -> None:
        model = self._models.get(self._model_name(request))
        if estimate_tokens(request.query) > self._budget(model, request):
            raise InvalidRequest(
                f"问题过长，超出模型 {model.name} 的上下文 / the question does not fit into the context of {model.name}"
            )

    def _model_name(self, request: Request) -> str:
        return request.model_name or self._settings.default_llm

    # ---- a knowledge base's passages

    async def answer(
        self, request: Request, kb_name: str, hits: Sequence[Hit], base_url: str, closeness: Closeness | None = None
    ) -> AsyncGenerator[Event]:
        """Events of a question to a knowledge base: the answer, then its sources; an error ends the stream."""
        used = self._used_hits(request, hits)
        docs = [source_line(number, hit, kb_name, base_url) for number, hit in enumerate(used, start=1)]
        docs = docs or [NOTHING_FOUND if self._model_name(request) == EXTRACTIVE else NO_HITS]
        try:
            whole: list[str] = []
            async with aclosing(self._texts(request, used, closeness)) as texts:
                async for text in texts:
                    if request.stream:
                        yield {"answer": text}
                    whole.append(text)
        except ZhikuError as error:
            log.warning("no answer from %s: %s", self._model_name(request), error.message)
            yield {"code": error.code, "msg": error.message}
            return
        except Exception as error:  # the stream has begun: only an event can tell the client
            log.exception("answer broke off")
            yield {"code": 500, "msg": f"内部错误 / internal error: {type(error).__name__}"}
            return
        if request.stream:
            yield {"docs": docs}
        else:
            yield {"answer": "".join(whole), "docs": docs}

    def _used_hits(self, request: Request, hits: Sequence[Hit]) -> list[Hit]:
        """The hits that fit into the model's prompt."""
        name = self._model_name(request)
        if name == EXTRACTIVE:
            return list(hits)
        model = self._models.get(name)
        return fit_sources(hits, self._budget(model, request) - estimate_tokens(request.query) - 400)

    def _budget(self, model: ChatModel, request: Request) -> int:
        return model.settings.context_size - (request.max_tokens or model.settings.max_output_tokens) - 50

    async def _texts(self, request: Request, hits: Sequence[Hit], closeness: Closeness | None) -> AsyncGenerator[str]:
        """The answer's text as it comes, from the model or, when there is none, from the passages."""
        if self._model_name(request) == EXTRACTIVE:
            async for text in self._quote(request, hits, closeness):
                yield text
            return
        begun = False
        try:
            async with aclosing(self._generate(request, self._question(request, hits))) as texts:
                async for text in texts:
                    begun = True
                    yield text
        except LLMError as error:
            if begun or not self._settings.extractive_fallback:
                raise
            log.warning("answering by quotation, the model failed: %s", error.message)
            async for text in self._quote(request, hits, closeness):
                yield text

    def _question(self, request: Request, hits: Sequence[Hit]) -> str:
        if not hits:
            return self._prompts.render("knowledge_base_chat", "empty", question=request.query, context="")
        return self._prompts.render(
            "knowledge_base_chat", request.prompt_name, question=request.query, context=context_of(hits)
        )

    async def _generate(self, request: Request, question: str) -> AsyncGenerator[str]:
        model = self._models.get(self._model_name(request))
        turns = conversation(request.history, question, self._budget(model, request))
        temperature = self._settings.temperature if request.temperature is None else request.temperature
        async with aclosing(model.stream(turns, temperature, request.max_tokens)) as texts:
            async for text in texts:
                yield text

    async def _quote(self, request: Request, hits: Sequence[Hit], closeness: Closeness | None) -> AsyncGenerator[str]:
        answer = partial(extractive.answer, request.query, hits, closeness=closeness)
        pieces = await asyncio.to_thread(lambda: list(answer()))
        for piece in pieces:
            yield piece

    # ---- the model alone

    async def chat(self, request: Request, kept: Conversation) -> AsyncGenerator[Event]:
        """Events of a chat with the model alone; question and answer are stored."""
        message_id = uuid.uuid4().hex
        try:
            history = request.history or await asyncio.to_thread(self._earlier, kept)
            await asyncio.to_thread(self._store_question, message_id, kept.id, request.query)
            whole: list[str] = []
            async with aclosing(self._chat_texts(request, history)) as texts:
                async for text in texts:
                    if request.stream:
                        yield {"text": text, "message_id": message_id}
                    whole.append(text)
            await asyncio.to_thread(self._store_answer, message_id, "".join(whole))
        except ZhikuError as error:
            log.warning("no answer from %s: %s", self._model_name(request), error.message)
            yield {"code": error.code, "msg": error.message}
            return
        except Exception as error:  # the stream has begun: only an event can tell the client
            log.exception("chat broke off")
            yield {"code": 500, "msg": f"内部错误 / internal error: {type(error).__name__}"}
            return
        if not request.stream:
            yield {"text": "".join(whole), "message_id": message_id}

    async def _chat_texts(self, request: Request, history: Sequence[Message]) -> AsyncGenerator[str]:
        if self._model_name(request) == EXTRACTIVE:
            yield extractive.NO_MODEL["zh" if language(request.query) == "zh" else "en"]
            return
        question = self._prompts.render("llm_chat", request.prompt_name, input=request.query, history="")
        shown = replace(request, history=history)
        async with aclosing(self._generate(shown, question)) as texts:
            async for text in texts:
                yield text

    def _earlier(self, kept: Conversation) -> list[Message]:
        if not kept.id or kept.turns <= 0:
            return []
        with self._db.read() as sql:
            pairs = messages.last_answered(sql, kept.id, kept.turns)
        return [turn for query, reply in pairs for turn in (Message("user", query), Message("assistant", reply))]

    def _store_question(self, message_id: str, conversation_id: str, query: str) -> None:
        with self._db.write() as sql:
            messages.add(sql, message_id, conversation_id, "llm_chat", query)

    def _store_answer(self, message_id: str, text: str) -> None:
        with self._db.write() as sql:
            messages.set_response(sql, message_id, text)


def source_line(number: int, hit: Hit, kb_name: str, base_url: str) -> str:
    """A source as the contract writes it: number, link to the file, text."""
    query = urlencode({"knowledge_base_name": kb_name, "file_name": hit.file_name})
    return f"出处 [{number}] [{hit.file_name}]({base_url}knowledge_base/download_doc?{query}) \n\n{hit.text}\n\n"
