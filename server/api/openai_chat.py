"""OpenAI-compatible chat and embeddings, a knowledge base being the model `kb:<name>`; and 0.3 routes of that shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from configs.settings import EMBEDDED, EXTRACTIVE
from server.api import events, openai_shapes, shapes
from server.api.chat import chunks_of_mode, finder_of, sources_in
from server.api.deps import ServiceDep
from server.api.filters import condition_of
from server.api.gone import unless_gone
from server.api.schemas import BaseResponse
from server.api.schemas_chat import PassageFields
from server.api.schemas_models import ToolCall
from server.api.schemas_openai import ChatCompletion, Embeddings
from server.api.server_state import embedded
from server.chat.context import message
from server.chat.parts import Asked, Conversation
from server.chat.service import Finder
from server.chat.support import Closeness
from server.db import kbs
from server.domain import SearchOptions
from server.errors import InvalidRequest, NotFound, ZhikuError
from server.knowledge_base.operations import service_of
from server.names import kb_label
from server.service import Service
from server.tokens import estimate_tokens

router = APIRouter()

KB_PREFIX = "kb:"
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "user"}


def _asked(body: ChatCompletion, kind: str, model_name: str | None) -> Asked:
    """The last message is the question, those before it are the history."""
    if any(turn.has_more_than_text for turn in body.messages):
        raise InvalidRequest("只支持文字消息 / only text can be sent, no images or audio")
    turns = [(_ROLES[turn.role], turn.text) for turn in body.messages if turn.role in _ROLES]
    if not turns or turns[-1][0] != "user" or not turns[-1][1].strip():
        raise InvalidRequest("最后一条消息应为用户的提问 / the last message must be the user's question")
    limit = body.max_completion_tokens or body.max_tokens
    asked = Asked(
        query=turns[-1][1],
        kind=kind,
        model_name=model_name,
        temperature=body.temperature,
        max_tokens=limit if limit and limit > 0 else None,
        prompt_name=body.prompt_name,
        history=[message(role, text) for role, text in turns[:-1]],
        may_be_cut=True,
        options=body.provider_options,
    )
    return asked.kept(Conversation(body.conversation_id, 0)) if body.conversation_id else asked


@router.get("/v1/models", operation_id="openai_list_models", tags=["OpenAI"])
async def openai_list_models(service: ServiceDep) -> dict[str, Any]:
    """Language models, embedding models, and every knowledge base as the model `kb:<name>`."""
    return {"object": "list", "data": [_model(name, owner) for name, owner in await _models(service)]}


async def _models(service: Service) -> list[tuple[str, str]]:
    def load() -> list[str]:
        with service.context.db.read() as sql:
            return [kb.name for kb in kbs.list_all(sql)]

    names = await service.gates.run_free(load)
    embedders = [EMBEDDED, *(model.name for model in service.settings.embedding_models)]
    return [
        *((name, "llm") for name in [*service.chat.models.names, EXTRACTIVE]),
        *((f"{KB_PREFIX}{name}", "knowledge base") for name in names),
        *((name, "embedding") for name in embedders),
    ]


def _model(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


@router.get("/v1/models/{model_id:path}", operation_id="openai_get_model", tags=["OpenAI"])
async def openai_get_model(model_id: str, service: ServiceDep) -> dict[str, Any]:
    """One model."""
    for name, owner in await _models(service):
        if name == model_id:
            return _model(name, owner)
    raise NotFound(f"没有模型 / there is no model {model_id}")


@router.post("/v1/chat/completions", operation_id="openai_chat", tags=["OpenAI"])
async def openai_chat(body: ChatCompletion, request: Request, service: ServiceDep) -> Response:
    """Chat with a knowledge base (`model: "kb:<name>"`) or a language model. The sources of an answer are `citations`
    and `sources` of the message, and of the last chunk when streaming."""
    if body.tools or (body.n or 1) != 1:
        raise InvalidRequest("不支持 tools 和 n / tools and n are not supported here; see /chat/agent_chat")
    asked, find, closeness = await _question(service, body)
    service.chat.check(asked)
    parts, shown = service.chat.answer(asked, find, closeness), sources_in(service, request, asked)
    name = body.model or service.chat.models.default
    if body.stream:
        with_usage = bool((body.stream_options or {}).get("include_usage"))
        return openai_shapes.stream(openai_shapes.chunks(parts, shown, name, with_usage=with_usage))
    return JSONResponse(await unless_gone(request, openai_shapes.completion(parts, shown, name)))


async def _question(service: Service, body: ChatCompletion) -> tuple[Asked, Finder | None, Closeness | None]:
    """What is asked of whom: `model` names a knowledge base or a language model, `llm` who writes for the former."""
    name = body.model or ""
    if not name.startswith(KB_PREFIX):
        if name not in ("", EXTRACTIVE, *service.chat.models.names):
            raise NotFound(f"没有模型 / there is no model {name}")
        return _asked(body, "llm_chat", name or None), None, None
    asked = _asked(body, "knowledge_base_chat", body.llm)
    names = [kb_label(name.removeprefix(KB_PREFIX)), *map(kb_label, body.knowledge_base_names)]
    opened = await service.gates.run_free(lambda: [service_of(one) for one in dict.fromkeys(names)])
    options = SearchOptions(
        body.top_k, body.score_threshold, body.search_type, condition_of(body.filters), mode=body.mode,
        community_level=body.community_level, dynamic_selection=body.dynamic_community_selection,
    )  # fmt: skip
    return asked, finder_of(service, opened, options, asked), opened[0].closeness


@router.post("/v1/embeddings", operation_id="openai_embeddings", tags=["OpenAI"])
async def openai_embeddings(body: Embeddings, service: ServiceDep) -> dict[str, Any]:
    """Unit vectors of texts, as passages; with `input_type: "query"` as questions."""
    texts = [body.input] if isinstance(body.input, str) else body.input
    vectors = await embedded(service, texts, body.model, query=body.input_type == "query")
    if body.dimensions not in (None, len(vectors[0])):
        raise InvalidRequest(f"模型只有 {len(vectors[0])} 维 / the model gives {len(vectors[0])} dimensions only")
    tokens = sum(map(estimate_tokens, texts))
    return openai_shapes.embeddings_json(vectors, body.model, body.encoding_format, tokens)


# ---- 0.3: the same bodies, chunks with `docs` first


@router.post("/knowledge_base/{mode}/{param}/chat/completions", operation_id="kb_chat_completions", tags=["Chat"])
async def kb_chat_completions(
    mode: str, param: str, body: ChatCompletion, request: Request, service: ServiceDep
) -> Response:
    """Answer from a knowledge base (`local_kb`), a conversation's files (`temp_kb`) or the web (`search_engine`), for
    OpenAI clients with this address as their base. The first chunk has the sources in `docs`."""
    asked = _asked(body, "knowledge_base_chat", body.model)
    passages = PassageFields(
        top_k=body.top_k, score_threshold=body.score_threshold, search_type=body.search_type, mode=body.mode
    )
    found = await chunks_of_mode(service, request, asked, mode, param, passages, docs_only=body.return_direct)
    if body.stream:
        return events.stream(found)
    return JSONResponse(await unless_gone(request, shapes.whole_reply_03(found)))


@router.post("/chat/chat/completions", operation_id="chat_completions", tags=["Chat"])
async def chat_completions(body: ChatCompletion, request: Request, service: ServiceDep) -> Response:
    """Chat as 0.3 clients do: with `tools` (names, or `tool_choice`) an agent answers, else the model alone."""
    names = _tool_names(body)
    asked = _asked(body, "agent_chat" if names else "llm_chat", body.model)
    service.chat.check(asked)
    if names and body.tool_input is not None:
        output = await service.agent.toolbox.call(names[0], dict(body.tool_input))
        asked = asked.with_query(f"{asked.query}\n\n{names[0]}: {output}").of_kind("llm_chat")
        names = []
    parts = service.agent.answer(asked, names) if names else service.chat.answer(asked)
    model = asked.model_name or service.chat.models.default
    found = shapes.docs_first(parts, sources_in(service, request, asked), model, agent=True)
    if body.stream:
        return events.stream(found)
    return JSONResponse(await unless_gone(request, shapes.whole_reply_03(found)))


def _tool_names(body: ChatCompletion) -> list[str]:
    """Names of tools, however a client gives them."""
    given: list[Any] = [*(body.tools or ())]
    if body.tool_choice not in (None, "none", "auto", "required"):
        given = [body.tool_choice]
    return [it if isinstance(it, str) else _function_name(it) for it in given]


def _function_name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidRequest("tools 应为工具名列表 / tools must be names of tools, see GET /tools")
    return name


# ---- 0.3: tools


@router.get("/tools", operation_id="list_tools", tags=["Tools"])
async def list_tools(service: ServiceDep) -> BaseResponse:
    """The tools that an agent may call, by name, with what they take."""
    tools = await service.gates.run_free(service.agent.toolbox.make)
    shown = {
        name: {"name": name, "title": name, "description": tool.description, "args": tool.args, "config": {}}
        for name, tool in tools.items()
    }
    return BaseResponse(data=shown)


@router.post("/tools/call", operation_id="call_tool", tags=["Tools"])
async def call_tool(body: ToolCall, service: ServiceDep) -> BaseResponse:
    """Call a tool and return what it gives."""
    try:
        return BaseResponse(data=await service.agent.toolbox.call(body.name, body.tool_input))
    except ZhikuError as error:
        return BaseResponse(code=500, msg=error.message)
