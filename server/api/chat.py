"""Chat: with a knowledge base, and with the model alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.api import events
from server.api.deps import ServiceDep
from server.api.schemas import Chat, ChatFields, HistoryItem, KnowledgeBaseChat
from server.chat.prompts import message
from server.chat.service import ChatService, Conversation
from server.chat.service import Request as ChatRequest
from server.domain import Hit
from server.errors import ZhikuError
from server.knowledge_base.operations import service_of
from server.names import kb_label

router = APIRouter(prefix="/chat", tags=["Chat"])


def _request(body: ChatFields, history: list[HistoryItem]) -> ChatRequest:
    return ChatRequest(
        query=body.query,
        stream=body.stream,
        model_name=body.model_name,
        temperature=body.temperature,
        max_tokens=body.max_tokens if body.max_tokens and body.max_tokens > 0 else None,
        prompt_name=body.prompt_name,
        history=[message(item.role, item.content) for item in history],
    )


@router.post("/knowledge_base_chat", operation_id="knowledge_base_chat")
async def knowledge_base_chat(body: KnowledgeBaseChat, request: Request, service: ServiceDep) -> Response:
    """Answer a question from a knowledge base. Server-sent events: `{"answer": …}` as it is written, then
    `{"docs": […]}`; with `stream: false` one event with both. `{"code": 500, "msg": …}` reports a failure."""
    name = kb_label(body.knowledge_base_name)
    asked = _request(body, body.history)
    service.chat.check(asked, "knowledge_base_chat")
    kb_service = await service.gates.run(name, lambda: service_of(name))

    def search() -> list[Hit]:
        return kb_service.search_docs(body.query, body.top_k, body.score_threshold, body.search_type)

    async def answered() -> AsyncIterator[Mapping[str, Any]]:
        try:
            hits = await service.gates.run(name, search)
        except ZhikuError as error:
            yield {"code": error.code, "msg": error.message}
            return
        base, nearness = service.public_url(request), kb_service.closeness
        async for event in service.chat.answer(asked, kb_service.kb_name, hits, base, nearness):
            for part in _fitting(event):
                yield part

    return events.stream(answered())


def _fitting(event: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """An event, spread over several when one would be too large for old clients."""
    answer, docs = event.get("answer", ""), event.get("docs")
    parts: list[Mapping[str, Any]] = [
        {"answer": answer[at : at + _LONGEST_ANSWER]} for at in range(0, len(answer), _LONGEST_ANSWER)
    ]
    if docs is None:
        return parts if "answer" in event else [event]
    groups = [{"docs": group} for group in events.split_docs(docs, events.MAX_EVENT // 2)]
    if "answer" in event and len(parts) <= 1:
        groups[0] = {"answer": answer, **groups[0]}
        parts = []
    return [*parts, *groups]


_LONGEST_ANSWER = 4500
"""Characters of an answer in one event: even as escapes of twelve bytes they stay below what old clients read."""


@router.post("/chat", operation_id="chat")
async def chat(body: Chat, service: ServiceDep) -> Response:
    """Chat with the model alone. Server-sent events: `{"text": …, "message_id": …}`."""
    given = body.history if isinstance(body.history, list) else []
    asked = _request(body, given)
    turns = body.history if isinstance(body.history, int) else body.history_len
    service.chat.check(asked, "llm_chat")
    return events.stream(_chat_events(service.chat, asked, Conversation(body.conversation_id, turns)))


async def _chat_events(
    chat_service: ChatService, asked: ChatRequest, kept: Conversation
) -> AsyncIterator[Mapping[str, Any]]:
    async for event in chat_service.chat(asked, kept):
        yield event
