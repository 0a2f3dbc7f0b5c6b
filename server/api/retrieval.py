"""Retrieval without a language model, and the chunks of files: list, read, edit, disable, delete."""

from __future__ import annotations

import html
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from server.api import links
from server.api.deps import ServiceDep
from server.api.filters import condition_of
from server.api.proxies import public_url
from server.api.schemas import BaseResponse
from server.api.schemas_retrieval import ChunkIds, ChunkView, EditChunk, HitView, Retrieval, RetrievalResult
from server.api.text import clean_text, own_metadata
from server.domain import Hit, SearchOptions
from server.errors import InvalidRequest, NotFound
from server.knowledge_base.operations import service_of
from server.knowledge_base.service import KBService
from server.names import file_label, kb_label
from server.service import Service

router = APIRouter(tags=["Retrieval"])

ChunkId = Annotated[int, Path(description="the chunk", ge=0, le=2**62)]
KB = Annotated[str, Query(description="the knowledge base")]
_LONGEST_VIEW = 200_000
"""Characters of a text that are shown at once."""


@router.post("/retrieval/search", operation_id="retrieve")
async def retrieve(body: Retrieval, request: Request, service: ServiceDep) -> RetrievalResult:
    """The passages that answer a query best, from one or several knowledge bases, with their place in the source and
    their rank in each search. No language model is asked.

    Filters compare metadata: `{"type": "eq", "key": "year", "value": 2024}` with eq, ne, gt, gte, lt, lte, in, nin,
    joined by `{"type": "and", "filters": […]}`, or, not. Keys are a chunk's own metadata, its file's attributes, and
    `file_name`, `page`, `language`."""
    names = body.knowledge_base_names
    if not names:
        raise InvalidRequest("请给出知识库 / name at least one knowledge base: knowledge_base_names")
    options = SearchOptions(
        body.top_k,
        body.score_threshold,
        body.search_type,
        condition_of(body.filters),
        body.rerank is not False,
        body.mode,
        community_level=body.community_level,
    )

    def services() -> list[KBService]:
        return [_scoped(service, kb_label(name), body.scope) for name in dict.fromkeys(names)]

    opened = await service.gates.run_free(services)
    found = await service.searcher.search(opened, body.query, options)
    base = public_url(request, service.settings)
    return RetrievalResult(
        hits=[hit_view(hit, base, visible=body.scope == "chunks") for hit in found.hits], warnings=list(found.warnings)
    )


def _scoped(service: Service, name: str, scope: str) -> KBService:
    found = service_of(name)
    if scope == "chunks":
        return found
    summaries = service.summaries.find(found.kb())
    if summaries is None:
        raise NotFound(f"知识库 {name} 还没有摘要 / there are no summaries of {name} yet")
    return summaries


def hit_view(hit: Hit, base: str, *, visible: bool) -> HitView:
    """A hit as clients see it; one that is not `visible` names no place that could be opened."""
    return HitView(
        id=hit.id,
        knowledge_base_name=hit.kb_name if visible else "",
        file_name=hit.file_name,
        text=hit.text,
        score=hit.score,
        similarity=hit.similarity,
        relevance=hit.relevance,
        ranks=dict(hit.ranks),
        page=hit.page,
        headings=list(hit.headings),
        start=hit.start,
        end=hit.end,
        metadata=dict(hit.metadata),
        url=links.place_url(base, hit) if visible else None,
    )


# ---- chunks


@router.get("/knowledge_base/chunks", operation_id="list_chunks")
async def list_chunks(
    service: ServiceDep,
    knowledge_base_name: KB,
    file_name: Annotated[str | None, Query(description="of this file; default: of all")] = None,
    offset: Annotated[int, Query(ge=0, le=2**31, description="how many to leave out")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="how many at most")] = 100,
) -> dict[str, Any]:
    """The chunks of a file, or of all files, in reading order; disabled ones too."""
    label = file_label(file_name) if file_name else None
    name = kb_label(knowledge_base_name)
    total, hits = await service.gates.run(name, lambda: service_of(name).page_of_docs(label, offset, limit))
    return {"total": total, "offset": offset, "chunks": [_chunk_view(hit).model_dump() for hit in hits]}


def _chunk_view(hit: Hit) -> ChunkView:
    return ChunkView(
        id=hit.id,
        file_name=hit.file_name,
        text=hit.text,
        page=hit.page,
        headings=list(hit.headings),
        start=hit.start,
        end=hit.end,
        metadata=dict(hit.metadata),
        enabled=hit.enabled,
    )


@router.get("/knowledge_base/chunks/{chunk_id}", operation_id="get_chunk")
async def get_chunk(service: ServiceDep, chunk_id: ChunkId, knowledge_base_name: KB) -> ChunkView:
    """One chunk."""
    name = kb_label(knowledge_base_name)
    hits = await service.gates.run(name, lambda: service_of(name).get_doc_by_ids([chunk_id]))
    if not hits:
        raise NotFound(f"没有这个片段 / no such chunk: {chunk_id}")
    return _chunk_view(hits[0])


@router.patch("/knowledge_base/chunks/{chunk_id}", operation_id="edit_chunk")
async def edit_chunk(service: ServiceDep, chunk_id: ChunkId, knowledge_base_name: KB, body: EditChunk) -> ChunkView:
    """Change the text or the metadata of one chunk, or whether searches find it. Only a new text is embedded anew."""
    name = kb_label(knowledge_base_name)

    def edit() -> Hit:
        kb_service = service_of(name)
        text = None if body.text is None else clean_text(body.text)
        metadata = None if body.metadata is None else own_metadata(body.metadata)
        return kb_service.edit_doc(chunk_id, text, metadata, body.enabled)

    return _chunk_view(await service.gates.run(name, edit))


@router.post("/knowledge_base/chunks/delete", operation_id="delete_chunks")
async def delete_chunks(service: ServiceDep, body: ChunkIds) -> BaseResponse:
    """Delete chunks for good; their file keeps its bytes."""
    name = kb_label(body.knowledge_base_name)
    await service.gates.run(name, lambda: service_of(name).del_doc_by_ids(body.ids))
    return BaseResponse(msg="已删除 / deleted", data={"deleted": len(body.ids)})


# ---- the text of a file


@router.get("/knowledge_base/view_doc", operation_id="view_doc", response_class=HTMLResponse)
async def view_doc(
    service: ServiceDep,
    knowledge_base_name: KB,
    file_name: Annotated[str, Query(description="a name as list_files shows it")],
    start: Annotated[int | None, Query(ge=0, le=2**40, description="first character of the passage to mark")] = None,
    end: Annotated[int | None, Query(ge=0, le=2**40, description="character after the passage")] = None,
    plain: Annotated[bool, Query(description="true = the marked passage alone, as plain text")] = False,
) -> Response:
    """The text of a file as searches see it, with a passage marked; citations link here. Offsets are characters."""
    name, label = kb_label(knowledge_base_name), file_label(file_name)
    marked = start is not None and end is not None and start < end
    lo, hi = (start, end) if marked and start is not None and end is not None else (0, 0)
    first = max(0, lo - _LONGEST_VIEW // 2)

    def read(begin: int, stop: int) -> tuple[str, int]:
        return service_of(name).read_text(label, begin, stop)

    if plain:
        text, total = await service.gates.run(name, lambda: read(lo, hi if marked else _LONGEST_VIEW))
        return PlainTextResponse(text, headers={**_SAFE, "x-total-characters": str(total)})
    text, total = await service.gates.run(name, lambda: read(first, max(hi, lo) + _LONGEST_VIEW))
    return HTMLResponse(_page(label, text, first, total, lo, hi), headers=_SAFE)


_SAFE = {
    "content-security-policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
}


def _page(name: str, text: str, first: int, total: int, lo: int, hi: int) -> str:
    """The text as a page that runs nothing; a browser scrolls to the mark."""
    before, middle, after = (
        text[: max(0, lo - first)],
        text[max(0, lo - first) : hi - first],
        text[max(0, hi - first) :],
    )
    mark = f'<mark id="mark">{html.escape(middle)}</mark>' if hi > lo else html.escape(middle)
    cut = "" if first == 0 and first + len(text) >= total else f"<p>{first}–{first + len(text)} / {total}</p>"
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><title>{html.escape(name)}</title><style>'
        "body{font:16px/1.6 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem}"
        "pre{white-space:pre-wrap;overflow-wrap:anywhere;font:inherit}mark{background:#fe8}</style></head><body>"
        f"<h1>{html.escape(name)}</h1>{cut}<pre>{html.escape(before)}{mark}{html.escape(after)}</pre></body></html>"
    )
