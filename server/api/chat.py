"""Chat: with knowledge bases, files, the web, tools, or the model alone, as server-sent events."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi import Body as JsonBody
from fastapi.responses import JSONResponse, Response

from server.api import events, links, shapes
from server.api.deps import ServiceDep
from server.api.gone import unless_gone
from server.api.proxies import public_url
from server.api.schemas import BYPASS, BaseResponse
from server.api.schemas_chat import (
    AgentChat,
    Chat,
    ChatFields,
    Feedback,
    FileChat,
    HistoryItem,
    KBChat03,
    KnowledgeBaseChat,
    PassageFields,
    SearchEngineChat,
)
from server.chat.context import message
from server.chat.deep import DEEP_MODES, DeepSearch
from server.chat.parts import Asked, Conversation
from server.chat.service import Finder, Tell
from server.chat.support import Closeness
from server.db import messages
from server.domain import Found, SearchOptions
from server.errors import InvalidRequest
from server.knowledge_base.backends.graph import GraphKBService
from server.knowledge_base.operations import service_of
from server.knowledge_base.service import KBService
from server.names import kb_label
from server.service import Service

router = APIRouter(prefix="/chat", tags=["Chat"])
_NO_FEEDBACK = Feedback()


def asked_of(body: ChatFields, kind: str, history: list[HistoryItem]) -> Asked:
    """What a request asks."""
    return Asked(
        query=body.query,
        kind=kind,
        model_name=body.model_name,
        temperature=body.temperature,
        max_tokens=body.max_tokens if body.max_tokens and body.max_tokens > 0 else None,
        prompt_name=body.prompt_name,
        history=[message(item.role, item.content) for item in history],
        cited=body.details,
    )


def passages_of(service: Service, kb_services: list[KBService], body: PassageFields) -> Finder:
    """Finds passages in these knowledge bases."""
    return finder_of(service, kb_services, SearchOptions(body.top_k, body.score_threshold, body.search_type))


def finder_of(
    service: Service, kb_services: list[KBService], options: SearchOptions, asked: Asked | None = None
) -> Finder:
    """Finds passages in these knowledge bases; where a mode asks a language model on the way, the one that is asked for
    the answer."""
    model = service.chat.model_of(asked) if asked and options.mode in DEEP_MODES else None

    async def find(question: str, tell: Tell) -> Found:
        with_words = await service.keywords.added(options, question)
        if model is not None and len(kb_services) == 1 and isinstance(kb_services[0], GraphKBService):
            deep = DeepSearch(kb_services[0], model, service.chat.prompts, service.gates, tell)
            return await deep.find(question, with_words)
        return await service.searcher.search(kb_services, question, with_words)

    return find


async def web_finder(service: Service, engine: str, top_k: int | None) -> Finder:
    """Finds pages with a search engine."""
    return await service.gates.run_free(
        lambda: service.web.finder(engine, top_k or service.settings.search_engine_top_k)
    )


def sources_in(service: Service, request: Request, asked: Asked, link: links.Link | None = None) -> shapes.Sources:
    """How sources are shown: with links to the files unless told otherwise."""
    base = public_url(request, service.settings)
    quotes = service.chat.quotes(asked)
    none_found = shapes.NOTHING_FOUND if quotes else shapes.NO_HITS
    return shapes.Sources(link or links.to_files(base), base, none_found)


@router.post("/chat", operation_id="chat")
async def chat(body: Chat, service: ServiceDep) -> Response:
    """Chat with the model alone. Server-sent events: `{"text": …, "message_id": …}`."""
    given = body.history if isinstance(body.history, list) else []
    turns = body.history if isinstance(body.history, int) else body.history_len
    asked = asked_of(body, "llm_chat", given).kept(Conversation(body.conversation_id, turns))
    service.chat.check(asked)
    return events.stream(shapes.text_with_id(service.chat.answer(asked), stream=body.stream, details=body.details))


@router.post("/knowledge_base_chat", operation_id="knowledge_base_chat")
async def knowledge_base_chat(body: KnowledgeBaseChat, request: Request, service: ServiceDep) -> Response:
    """Answer a question from a knowledge base. Server-sent events: `{"answer": …}` as it is written, then
    `{"docs": […]}`; with `stream: false` one event with both. `{"code": 500, "msg": …}` reports a failure."""
    name = kb_label(body.knowledge_base_name)
    asked = asked_of(body, "knowledge_base_chat", body.history)
    if body.conversation_id:
        turns = service.settings.history_len if body.history_len is None else body.history_len
        asked = asked.kept(Conversation(body.conversation_id, turns))
    if body.mode == BYPASS:
        asked = replace(asked, kind="llm_chat", prompt_name="default")
    service.chat.check(asked)
    kb_service = await service.gates.run(name, lambda: service_of(name))
    options = SearchOptions(body.top_k, body.score_threshold, body.search_type, mode=body.mode)
    options = replace(
        options, community_level=body.community_level, dynamic_selection=body.dynamic_community_selection
    )  # fmt: skip
    find = finder_of(service, [kb_service], options, asked) if body.mode != BYPASS else None
    parts = service.chat.answer(asked, find, kb_service.closeness)
    return events.stream(
        shapes.answer_and_docs(parts, sources_in(service, request, asked), stream=body.stream, details=body.details)
    )


@router.post("/file_chat", operation_id="file_chat", tags=["Knowledge Base Management"])
async def file_chat(body: FileChat, request: Request, service: ServiceDep) -> Response:
    """Answer a question from the files of a conversation (see `upload_temp_docs`); events as for a knowledge base."""
    asked = asked_of(body, "knowledge_base_chat", body.history)
    service.chat.check(asked)
    kb_service = await service.gates.run_free(lambda: service.temp.open(body.knowledge_id))
    parts = service.chat.answer(asked, passages_of(service, [kb_service], body), kb_service.closeness)
    shown = sources_in(service, request, asked, links.to_nothing)
    return events.stream(shapes.answer_and_docs(parts, shown, stream=body.stream, details=body.details))


@router.post("/search_engine_chat", operation_id="search_engine_chat")
async def search_engine_chat(body: SearchEngineChat, request: Request, service: ServiceDep) -> Response:
    """Answer a question from what a web search finds; events as for a knowledge base."""
    asked = asked_of(body, "search_engine_chat", body.history)
    service.chat.check(asked)
    find = await web_finder(service, body.search_engine_name, body.top_k)
    parts = service.chat.answer(asked, find, service.context.closeness)
    shown = sources_in(service, request, asked, links.to_pages)
    return events.stream(shapes.answer_and_docs(parts, shown, stream=body.stream, details=body.details))


@router.post("/agent_chat", operation_id="agent_chat")
async def agent_chat(body: AgentChat, service: ServiceDep) -> Response:
    """Answer a question with the help of tools. Events: `{"answer": …}`, `{"tools": […]}`, `{"final_answer": …}`."""
    asked = asked_of(body, "agent_chat", body.history)
    service.chat.check(asked)
    parts = service.agent.answer(asked, body.tools)
    return events.stream(shapes.agent_steps(parts, stream=body.stream))


@router.post("/feedback", operation_id="chat_feedback")
async def chat_feedback(service: ServiceDep, body: Annotated[Feedback, JsonBody()] = _NO_FEEDBACK) -> BaseResponse:
    """Store what somebody thought of an answer."""

    def store() -> bool:
        with service.context.db.write() as sql:
            return messages.set_feedback(sql, body.message_id, body.score, body.reason)

    if not await service.gates.run_free(store):
        return BaseResponse(code=500, msg=f"反馈聊天记录出错： 没有消息 / there is no message {body.message_id}")
    return BaseResponse(msg=f"已反馈聊天记录 {body.message_id}")


# ---- as the 0.3 releases have it


@router.post("/kb_chat", operation_id="kb_chat")
async def kb_chat(body: KBChat03, request: Request, service: ServiceDep) -> Response:
    """Answer a question from a knowledge base, a conversation's files or the web, as 0.3 clients ask: the sources
    come first, in a chunk of their own. With `stream: false` the completion comes as a JSON string."""
    asked = replace(asked_of(body, "knowledge_base_chat", body.history), cited=True)
    chunks = await chunks_of_mode(service, request, asked, body.mode, body.kb_name, body, docs_only=body.return_direct)
    if body.stream:
        return events.stream(chunks)
    return JSONResponse(json.dumps(await unless_gone(request, shapes.whole_reply_03(chunks)), ensure_ascii=False))


async def chunks_of_mode(
    service: Service,
    request: Request,
    asked: Asked,
    mode: str,
    name: str,
    body: PassageFields,
    *,
    docs_only: bool = False,
) -> Any:
    """The chunks of an answer from one of the three kinds of sources that 0.3 clients name."""
    find, closeness, link, asked = await _mode(service, asked, mode, name, body)
    service.chat.check(asked)
    shown = sources_in(service, request, asked, link)
    parts = service.chat.answer(asked, find, closeness)
    return shapes.docs_first(parts, shown, asked.model_name or service.chat.models.default, docs_only=docs_only)


async def _mode(
    service: Service, asked: Asked, mode: str, name: str, body: PassageFields
) -> tuple[Finder, Closeness, links.Link | None, Asked]:
    if mode == "search_engine":
        find = await web_finder(service, name, body.top_k)
        return find, service.context.closeness, links.to_pages, asked.of_kind("search_engine_chat")
    if mode not in ("local_kb", "temp_kb"):
        raise InvalidRequest(f"mode 应为 / mode must be local_kb, temp_kb or search_engine: {mode}")
    local = mode == "local_kb"
    kb_service = await service.gates.run_free(lambda: service_of(name) if local else service.temp.open(name))
    find = passages_of(service, [kb_service], body)
    return find, kb_service.closeness, None if local else links.to_nothing, asked
