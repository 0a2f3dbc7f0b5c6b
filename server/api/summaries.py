"""Summaries of files and of chosen chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from server.api import events
from server.api.deps import ServiceDep
from server.api.schemas import BaseResponse
from server.api.schemas_chat import SummarizeChunks, SummarizeFile, SummarizeKB, SummaryFields
from server.chat.summary import Summary
from server.domain import Chunk, Hit
from server.errors import NotFound, ZhikuError
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.operations import service_of
from server.knowledge_base.service import KBService
from server.knowledge_base.summaries import label_of
from server.names import file_label, kb_label
from server.service import Service

router = APIRouter(prefix="/knowledge_base/kb_summary_api", tags=["Knowledge kb_summary_api Management"])


@router.post("/summary_file_to_vector_store", operation_id="summary_file_to_vector_store")
async def summary_file_to_vector_store(body: SummarizeFile, service: ServiceDep) -> Response:
    """Summarise a file and store the summary; one event. Without a language model its own sentences are chosen."""
    return events.stream(_file_events(service, body, [body.file_name], counted=False))


@router.post("/recreate_summary_vector_store", operation_id="recreate_summary_vector_store")
async def recreate_summary_vector_store(body: SummarizeKB, service: ServiceDep) -> Response:
    """Summarise every file of a knowledge base anew; an event per file."""
    return events.stream(_file_events(service, body, None, counted=True))


async def _file_events(
    service: Service, body: SummaryFields, names: Sequence[str] | None, *, counted: bool
) -> AsyncIterator[Mapping[str, Any]]:
    try:
        kb_service = await service.gates.run_free(lambda: _service(service, body))
        if names is None:
            names = await service.gates.run_free(kb_service.list_files)
            await service.gates.run_free(lambda: service.summaries.clear(kb_service.kb()))
    except ZhikuError as error:
        yield {"code": error.code, "msg": error.message}
        return
    for number, name in enumerate(names, start=1):
        try:
            await _summarize_file(service, kb_service, body, name)
        except ZhikuError as error:
            told = f"知识库'{kb_service.kb_name}'总结文件‘{name}’时出错。已跳过。{error.message}"
            yield {"code": 500, "msg": told}
        else:
            place = {"total": len(names), "finished": number} if counted else {}
            told = f"({number} / {len(names)}): {name}" if counted else f"{name} 总结完成"
            yield {"code": 200, "msg": told, **place, "doc": name}


def _service(service: Service, body: SummaryFields) -> KBService:
    """The knowledge base, made when it does not exist and may."""
    name = kb_label(body.knowledge_base_name)
    found = KBServiceFactory.get_service_by_name(name)
    if found is None and not body.allow_empty_kb:
        raise NotFound(f"未找到知识库 {name}")
    if found is None:
        kind = body.vs_type or service.settings.default_vs_type
        found = KBServiceFactory.get_service(name, kind, body.embed_model)
        found.create_kb()
    return found


async def _summarize_file(service: Service, kb_service: KBService, body: SummaryFields, name: str) -> None:
    label = file_label(name)
    kb_service_file = await service.gates.run_free(lambda: kb_service.find_file(label))
    hits = await service.gates.run_free(lambda: kb_service.list_docs([kb_service_file.name]))
    if not hits:
        raise NotFound(f"文件 {name} 没有可总结的内容 / there is nothing to summarise in {name}")
    await _summarize(service, kb_service, body, kb_service_file.name, hits)


async def _summarize(
    service: Service, kb_service: KBService, body: SummaryFields, label: str, hits: Sequence[Hit]
) -> Chunk:
    temperature = 0.01 if body.temperature is None else body.temperature
    limit = body.max_tokens if body.max_tokens and body.max_tokens > 0 else None
    texts = [hit.text for hit in hits]
    summary = await service.summarizer.summarize(texts, body.model_name, temperature, limit)
    chunk = _chunk(summary, body.file_description, hits)
    kb = await service.gates.run_free(kb_service.kb)
    outcome = await service.gates.run_free(lambda: service.summaries.store(kb, label, chunk))
    failed = outcome.add_ended(await service.runner.wait(outcome.jobs))
    if failed:
        raise NotFound("; ".join(failed.values()))
    return chunk


def _chunk(summary: Summary, description: str, hits: Sequence[Hit]) -> Chunk:
    metadata = {
        "file_description": description,
        "summary_intermediate_steps": "\n".join(summary.steps),
        "doc_ids": ",".join(hit.id for hit in hits),
        "summary_of": hits[0].file_name,
    }
    return Chunk(summary.text, metadata=metadata)


@router.post("/summary_doc_ids_to_vector_store", operation_id="summary_doc_ids_to_vector_store")
async def summary_doc_ids_to_vector_store(body: SummarizeChunks, service: ServiceDep) -> BaseResponse:
    """Summarise chosen chunks, store the summary and return it."""
    name = kb_label(body.knowledge_base_name)
    kb_service = await service.gates.run_free(lambda: KBServiceFactory.get_service_by_name(name))
    if kb_service is None:
        return BaseResponse(code=404, msg=f"未找到知识库 {name}", data={})
    wanted = [int(key) for key in body.doc_ids if key.isascii() and key.isdigit() and len(key) < 19]
    hits = await service.gates.run(name, lambda: service_of(name).get_doc_by_ids(wanted))
    if len(hits) < len(body.doc_ids) or not hits:
        missing = set(body.doc_ids) - {hit.id for hit in hits}
        return BaseResponse(code=404, msg=f"没有这些片段 / no such chunks: {', '.join(sorted(missing))[:200]}", data={})
    label = label_of(hits[0].file_name, [hit.id for hit in hits])
    chunk = await _summarize(service, kb_service, body, label, hits)
    shown = {"page_content": chunk.text, "metadata": dict(chunk.metadata), "type": "Document"}
    return BaseResponse(msg="总结完成", data={"summarize": [shown]})
