"""Server State, LLM Model Management and Other: what old clients ask of the server itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from fastapi import Body as JsonBody
from fastapi.responses import Response
from sse_starlette import EventSourceResponse

from configs import ChatModelSettings
from configs.settings import EXTRACTIVE
from server.api import shapes
from server.api.chat import asked_of
from server.api.deps import ServiceDep
from server.api.schemas import BaseResponse
from server.api.schemas_models import ChangeModel, Completion, EmbedTexts, ListConfigModels, ModelName
from server.chat.parts import Said
from server.errors import EmbeddingError, InvalidRequest, ZhikuError
from server.ingest.splitters.factory import SPLITTERS
from server.service import Service

router = APIRouter()

PromptKind = Literal["llm_chat", "knowledge_base_chat", "search_engine_chat", "agent_chat"]


# ---- LLM Model Management


def _shown(settings: ChatModelSettings) -> dict[str, Any]:
    """A model's settings without what could be a secret: no key, no arguments, no name of a variable."""
    return {
        "model_name": settings.name,
        "provider": settings.provider,
        "model": settings.model or settings.name,
        "api_base_url": settings.base_url,
        "context_size": settings.context_size,
        "max_output_tokens": settings.max_output_tokens,
        "online_api": True,
    }


_ALL_TYPES = ListConfigModels()
_QUOTES = {"model_name": EXTRACTIVE, "provider": "zhiku", "online_api": False, "local": True}
"""The answerer that needs no model, as clients see it in the list of models."""


@router.post("/llm_model/list_running_models", operation_id="list_running_models", tags=["LLM Model Management"])
async def list_running_models(
    service: ServiceDep,
    controller_address: Annotated[str | None, JsonBody(description="accepted and without effect")] = None,  # noqa: ARG001
    placeholder: Annotated[str | None, JsonBody(description="accepted and without effect")] = None,  # noqa: ARG001
) -> BaseResponse:
    """The models that are configured, not stopped, and answer; by name, with their settings."""
    models = [service.chat.models.get(name) for name in service.chat.models.names]
    reachable = await asyncio.gather(*(model.reachable() for model in models))
    running = {model.name: _shown(model.settings) for model, there in zip(models, reachable, strict=True) if there}
    return BaseResponse(data=running if models else {EXTRACTIVE: _QUOTES})


@router.post("/llm_model/list_config_models", operation_id="list_config_models", tags=["LLM Model Management"])
async def list_config_models(
    service: ServiceDep, body: Annotated[ListConfigModels, JsonBody()] = _ALL_TYPES
) -> BaseResponse:
    """All configured models by type: `online` are behind an API, `local` is the answerer that needs none."""
    known = {
        "local": {EXTRACTIVE: _QUOTES},
        "online": {settings.name: _shown(settings) for settings in service.chat.models.configured},
    }
    return BaseResponse(data={kind: known.get(kind, {}) for kind in body.types})


@router.post("/llm_model/get_model_config", operation_id="get_model_config", tags=["LLM Model Management"])
async def get_model_config(body: ModelName, service: ServiceDep) -> BaseResponse:
    """The settings of a model, without secrets."""
    if body.model_name == EXTRACTIVE:
        return BaseResponse(data=_QUOTES)
    found = {settings.name: settings for settings in service.chat.models.configured}.get(body.model_name)
    return BaseResponse(data=_shown(found) if found else {})


@router.post("/llm_model/stop", operation_id="stop_llm_model", tags=["LLM Model Management"])
async def stop_llm_model(body: ModelName, service: ServiceDep) -> BaseResponse:
    """Take a model out of use until the service starts again, or `change` takes it back."""
    service.chat.models.stop(body.model_name)
    return BaseResponse(msg=f"已停止模型 / stopped: {body.model_name}")


@router.post("/llm_model/change", operation_id="change_llm_model", tags=["LLM Model Management"])
async def change_llm_model(body: ChangeModel, service: ServiceDep) -> BaseResponse:
    """Take one model out of use and make another the default, until the service starts again."""
    models = service.chat.models
    if body.new_model_name not in {settings.name for settings in models.configured}:
        models.get(body.new_model_name)
    if body.model_name != body.new_model_name and body.model_name in models.names:
        models.stop(body.model_name)
    models.start(body.new_model_name)
    return BaseResponse(msg=f"已切换模型 / changed: {body.model_name} → {body.new_model_name}")


# ---- Server State


@router.post("/server/configs", operation_id="server_configs", tags=["Server State"])
async def server_configs(service: ServiceDep) -> dict[str, Any]:
    """The settings that clients begin with, under the names that they know."""
    settings = service.settings
    return {
        "DEFAULT_KNOWLEDGE_BASE": settings.default_knowledge_base,
        "DEFAULT_SEARCH_ENGINE": settings.default_search_engine,
        "DEFAULT_VS_TYPE": settings.default_vs_type,
        "CHUNK_SIZE": settings.chunk_size,
        "OVERLAP_SIZE": settings.chunk_overlap,
        "SCORE_THRESHOLD": settings.score_threshold,
        "VECTOR_SEARCH_TOP_K": settings.top_k,
        "SEARCH_ENGINE_TOP_K": settings.search_engine_top_k,
        "ZH_TITLE_ENHANCE": settings.zh_title_enhance,
        "text_splitter_dict": {name: {"source": "", "tokenizer_name_or_path": ""} for name in SPLITTERS},
        "TEXT_SPLITTER_NAME": settings.text_splitter,
        "LLM_MODELS": service.chat.models.names or [service.chat.models.default],
        "EMBEDDING_MODEL": settings.default_embed_model,
        "HISTORY_LEN": settings.history_len,
        "TEMPERATURE": settings.temperature,
        "PROMPT_TEMPLATES": service.chat.prompts.kinds(),
        "controller_address": "",
        "openai_api_address": "/v1",
        "api_address": settings.public_url or f"http://{settings.host}:{settings.port}",
    }


@router.post("/server/list_search_engines", operation_id="list_search_engines", tags=["Server State"])
async def list_search_engines(service: ServiceDep) -> BaseResponse:
    """Names of the search engines that there are."""
    return BaseResponse(data=await service.gates.run_free(lambda: service.web.names))


@router.post("/server/get_prompt_template", operation_id="get_prompt_template", tags=["Server State"])
async def get_prompt_template(
    service: ServiceDep,
    kind: Annotated[PromptKind, JsonBody(alias="type", description="the kind of chat")] = "llm_chat",
    name: Annotated[str, JsonBody(description="name of the template")] = "default",
) -> str:
    """A prompt template as it is written."""
    return service.chat.prompts.text(kind, name, "zh")


# ---- Other


@router.post("/other/completion", operation_id="completion", tags=["Other"])
async def completion(body: Completion, service: ServiceDep) -> Response:
    """Continue a text. The events hold the raw text and no JSON."""
    asked = asked_of(body, "completion", [])
    service.chat.check(asked)

    async def texts() -> AsyncIterator[Mapping[str, str]]:
        said = [body.query] if body.echo else []
        if body.stream and said:
            yield {"data": said[0]}
        try:
            async with aclosing(shapes.guarded(service.chat.answer(asked))) as parts:
                async for part in parts:
                    if isinstance(part, Said):
                        said.append(part.text)
                        if body.stream:
                            yield {"data": part.text}
        except shapes.Failure as failure:
            yield {"data": json.dumps({"code": failure.code, "msg": failure.message}, ensure_ascii=False)}
            return
        if not body.stream:
            yield {"data": "".join(said)}

    return EventSourceResponse(texts(), headers={"Cache-Control": "no-cache"}, ping=15)


@router.post("/other/embed_texts", operation_id="embed_texts", tags=["Other"])
async def embed_texts(body: EmbedTexts, service: ServiceDep) -> BaseResponse:
    """Raw unit vectors of texts."""
    try:
        vectors = await embedded(service, body.texts, body.embed_model, query=body.to_query)
    except ZhikuError as error:
        return BaseResponse(code=500, msg=f"文本向量化过程中出现错误：{error.message}", data=[])
    return BaseResponse(data=vectors)


async def embedded(service: Service, texts: list[str], name: str | None, *, query: bool = False) -> list[list[float]]:
    """Vectors of texts, by an embedding model of that name."""
    chosen = name or service.settings.default_embed_model

    def embed() -> list[list[float]]:
        model = service.context.embeddings.get(chosen)
        if query:
            return [model.embed_query(text).tolist() for text in texts]
        found = model.embed_many(texts)
        if not np.isfinite(found).all():
            raise EmbeddingError("有文本无法向量化 / some of the texts cannot be embedded")
        return list(found.tolist())

    if not texts:
        raise InvalidRequest("没有文本 / there are no texts")
    return await service.gates.run_free(embed)
