"""OpenAI-compatible files and vector stores: a vector store is a knowledge base."""

from __future__ import annotations

import calendar
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import chain, zip_longest
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from fastapi import APIRouter, File, Form, Query, UploadFile
from fastapi.responses import FileResponse

from server.api.deps import ServiceDep
from server.api.filters import condition_of
from server.api.forms import LargeFormRoute
from server.api.knowledge_base import file_response, sent_name
from server.api.openai_shapes import page_json
from server.api.schemas_openai import (
    AttachFile,
    Attributes,
    ChunkingStrategy,
    CreateVectorStore,
    FileBatch,
    ModifyVectorStore,
    VectorStoreSearch,
)
from server.api.text import clean_text, safe_json
from server.domain import Hit, KnowledgeBase, SearchOptions, StoredFile
from server.errors import InvalidRequest
from server.ingest.pipeline import SplitOptions
from server.knowledge_base.service import NO_LIMIT, KBService
from server.knowledge_base.vector_stores import LIBRARY, PURPOSE, uid_of
from server.service import Service

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=LargeFormRoute)

Limit = Annotated[int, Query(ge=1, le=10_000, description="how many at most")]
After = Annotated[str | None, Query(description="the id to go on from")]
Order = Annotated[Literal["asc", "desc"], Query(description="by time of making")]


def _page(items: Sequence[dict[str, Any]], *, limit: int, after: str | None, order: str) -> dict[str, Any]:
    """One page of items that are at hand."""
    known = {item["id"]: item for item in items}
    page = page_json(known, limit=limit, after=after, order=order)
    return {**page, "data": [known[key] for key in page["data"]]}


def _seconds(moment: datetime) -> int:
    return calendar.timegm(moment.timetuple())


# ---- files


def _file(file: StoredFile) -> dict[str, Any]:
    return {
        "id": f"file-{file.uid}", "object": "file", "bytes": file.size, "created_at": _seconds(file.create_time),
        "filename": PurePosixPath(file.name).name, "purpose": file.attributes.get(PURPOSE, "assistants"),
        "status": "processed", "status_details": None, "expires_at": None,
    }  # fmt: skip


@router.post("/files", operation_id="openai_upload_file")
async def openai_upload_file(
    service: ServiceDep,
    upload: Annotated[UploadFile, File(alias="file", description="the file")],
    purpose: Annotated[str, Form(max_length=100, description="assistants, user_data …")] = "assistants",
) -> dict[str, Any]:
    """Keep a file, to put it into vector stores later."""
    name = sent_name(upload.filename)
    stored = await service.gates.run(
        LIBRARY, lambda: service.vector_stores.add_file(name, upload.file, clean_text(purpose))
    )
    return _file(stored)


@router.get("/files", operation_id="openai_list_files")
async def openai_list_files(
    service: ServiceDep,
    purpose: Annotated[str | None, Query(description="only those for this purpose")] = None,
    limit: Limit = 10_000,
    after: After = None,
    order: Order = "desc",
) -> dict[str, Any]:
    """The files that were uploaded here."""
    found = await service.gates.run(LIBRARY, service.vector_stores.list_uploaded)
    shown = [item for item in map(_file, found) if purpose in (None, item["purpose"])]
    return _page(shown, limit=limit, after=after, order=order)


@router.get("/files/{file_id}", operation_id="openai_get_file")
async def openai_get_file(file_id: str, service: ServiceDep) -> dict[str, Any]:
    """One uploaded file."""
    uid = uid_of(file_id, "file-")
    return _file(await service.gates.run(LIBRARY, lambda: service.vector_stores.file(uid)))


@router.get("/files/{file_id}/content", operation_id="openai_file_content", response_class=FileResponse)
async def openai_file_content(file_id: str, service: ServiceDep) -> FileResponse:
    """The bytes of an uploaded file."""
    uid = uid_of(file_id, "file-")
    file = await service.gates.run(LIBRARY, lambda: service.vector_stores.file(uid))
    path = service.context.files.path(file.kb_id, file.storage or "")
    return file_response(file.name, path, inline=False)


@router.delete("/files/{file_id}", operation_id="openai_delete_file")
async def openai_delete_file(file_id: str, service: ServiceDep) -> dict[str, Any]:
    """Delete an uploaded file, also from the vector stores that hold it."""
    uid = uid_of(file_id, "file-")
    await service.gates.run(LIBRARY, lambda: service.vector_stores.drop_file(uid))
    return {"id": file_id, "object": "file", "deleted": True}


# ---- vector stores


_FILE_STATES = {"ready": "completed", "partial": "completed", "failed": "failed", "stored": "completed"}


def _status(file: StoredFile) -> str:
    if file.state == "failed" and "cancelled" in file.reason:
        return "cancelled"
    return _FILE_STATES.get(file.state, "in_progress")


def _counts(members: Sequence[StoredFile]) -> dict[str, int]:
    states = Counter(_status(file) for file in members)
    kinds = ("in_progress", "completed", "failed", "cancelled")
    return {**{kind: states[kind] for kind in kinds}, "total": len(members)}


def _store(kb: KnowledgeBase, members: Sequence[StoredFile]) -> dict[str, Any]:
    counts = _counts(members)
    note = kb.attributes.get("expires_after")
    return {
        "id": f"vs_{kb.uid}", "object": "vector_store", "created_at": _seconds(kb.create_time), "name": kb.name,
        "description": kb.info, "usage_bytes": sum(file.size for file in members), "file_counts": counts,
        "status": "in_progress" if counts["in_progress"] else "completed",
        "expires_after": note, "expires_at": int(kb.expires) if kb.expires else None,
        "last_active_at": _seconds(kb.create_time), "metadata": kb.attributes.get("metadata", {}),
    }  # fmt: skip


def _shown(service: Service, kb_service: KBService) -> dict[str, Any]:
    kb = kb_service.kb()
    return _store(kb, service.vector_stores.members(kb))


async def _open(service: Service, store_id: str) -> KBService:
    uid = uid_of(store_id, "vs_")
    return await service.gates.run_free(lambda: service.vector_stores.open(uid))


def _options(store: KBService, strategy: ChunkingStrategy | None) -> SplitOptions:
    static = strategy.static if strategy else None
    if static is None:
        return store.split_options()
    return store.split_options(chunk_size=static.max_chunk_size_tokens, chunk_overlap=static.chunk_overlap_tokens)


def _noted(body: CreateVectorStore | ModifyVectorStore) -> tuple[dict[str, Any], float | None]:
    """(what is to be noted about a vector store, when its time is over)."""
    days = body.expires_after.days if body.expires_after else None
    noted: dict[str, Any] = {} if body.metadata is None else {"metadata": safe_json(body.metadata)}
    if days:
        noted["expires_after"] = {"anchor": "last_active_at", "days": days}
    return noted, time.time() + days * 86400 if days else None


@router.post("/vector_stores", operation_id="openai_create_vector_store")
async def openai_create_vector_store(body: CreateVectorStore, service: ServiceDep) -> dict[str, Any]:
    """Make a knowledge base, and put uploaded files into it. A name that is taken gets a number."""

    def create() -> dict[str, Any]:
        attributes, expires = _noted(body)
        uids = [uid_of(file_id, "file-") for file_id in body.file_ids]
        for uid in uids:
            service.vector_stores.file(uid)  # an unknown one is refused before anything is made
        made = service.vector_stores.create(body.name, attributes, expires)
        for uid in uids:
            service.vector_stores.attach(made, uid, {}, _options(made, body.chunking_strategy))
        return _shown(service, made)

    return await service.gates.run_free(create)


@router.get("/vector_stores", operation_id="openai_list_vector_stores")
async def openai_list_vector_stores(
    service: ServiceDep, limit: Limit = 20, after: After = None, order: Order = "desc"
) -> dict[str, Any]:
    """All knowledge bases, as vector stores."""

    def load() -> dict[str, Any]:
        stores = {f"vs_{kb.uid}": kb for kb in service.vector_stores.list_stores()}
        page = page_json(stores, limit=limit, after=after, order=order)
        shown = [_store(stores[key], service.vector_stores.members(stores[key])) for key in page["data"]]
        return {**page, "data": shown}

    return await service.gates.run_free(load)


@router.get("/vector_stores/{store_id}", operation_id="openai_get_vector_store")
async def openai_get_vector_store(store_id: str, service: ServiceDep) -> dict[str, Any]:
    """One vector store."""
    opened = await _open(service, store_id)
    return await service.gates.run(opened.kb_name, lambda: _shown(service, opened))


@router.post("/vector_stores/{store_id}", operation_id="openai_modify_vector_store")
async def openai_modify_vector_store(store_id: str, body: ModifyVectorStore, service: ServiceDep) -> dict[str, Any]:
    """Change name, metadata or how long it is kept."""
    uid = uid_of(store_id, "vs_")
    attributes, expires = _noted(body)

    def modify() -> dict[str, Any]:
        service.vector_stores.modify(uid, body.name, attributes, expires)
        return _shown(service, service.vector_stores.open(uid))

    return await service.gates.run_free(modify)


@router.delete("/vector_stores/{store_id}", operation_id="openai_delete_vector_store")
async def openai_delete_vector_store(store_id: str, service: ServiceDep) -> dict[str, Any]:
    """Delete a knowledge base with everything in it."""
    opened = await _open(service, store_id)
    await service.gates.run(opened.kb_name, opened.drop_kb)
    return {"id": store_id, "object": "vector_store.deleted", "deleted": True}


@router.post("/vector_stores/{store_id}/search", operation_id="openai_search_vector_store")
async def openai_search_vector_store(store_id: str, body: VectorStoreSearch, service: ServiceDep) -> dict[str, Any]:
    """The passages that answer a query best. `score` is the similarity from 0 to 1."""
    opened = await _open(service, store_id)
    queries = [body.query] if isinstance(body.query, str) else body.query
    ranking = body.ranking_options
    least = ranking.score_threshold if ranking else None
    rerank = not (ranking and ranking.ranker == "none")
    threshold = None if least is None else 2.0 * (1.0 - least) if least > 0 else NO_LIMIT
    options = SearchOptions(body.max_num_results, threshold, None, condition_of(body.filters), rerank)
    lists = [(await service.searcher.search([opened], query, options)).hits for query in queries]
    hits = {hit.id: hit for hit in chain.from_iterable(zip_longest(*lists)) if hit is not None}  # in turns

    def used() -> dict[str, StoredFile]:
        service.vector_stores.renew(opened)
        return {file.name: file for file in service.vector_stores.members(opened.kb())}

    known = await service.gates.run(opened.kb_name, used)
    data = [_result(hit, known.get(hit.file_name)) for hit in list(hits.values())[: body.max_num_results]]
    return {
        "object": "vector_store.search_results.page", "search_query": queries, "data": data, "has_more": False,
        "next_page": None,
    }  # fmt: skip


def _result(hit: Hit, file: StoredFile | None) -> dict[str, Any]:
    attributes = {**(file.attributes if file else {}), **hit.metadata}
    place = {"page": hit.page, "start": hit.start, "end": hit.end, "chunk_id": hit.id}
    return {
        "file_id": f"file-{file.uid}" if file else "", "filename": hit.file_name,
        "score": hit.similarity if hit.similarity is not None else 0.0,
        "attributes": {**attributes, **{key: value for key, value in place.items() if value is not None}},
        "content": [{"type": "text", "text": hit.text}],
    }  # fmt: skip


# ---- files of a vector store


def _member(file: StoredFile, store_id: str) -> dict[str, Any]:
    bad = _status(file) in ("failed", "cancelled") or file.state == "partial"
    return {
        "id": f"file-{file.uid}", "object": "vector_store.file", "created_at": _seconds(file.create_time),
        "usage_bytes": file.size, "vector_store_id": store_id, "status": _status(file),
        "last_error": {"code": "invalid_file", "message": file.reason} if bad else None,
        "attributes": dict(file.attributes), "chunking_strategy": {"type": "other"}, "filename": file.name,
    }  # fmt: skip


@router.post("/vector_stores/{store_id}/files", operation_id="openai_attach_file")
async def openai_attach_file(store_id: str, body: AttachFile, service: ServiceDep) -> dict[str, Any]:
    """Put an uploaded file into a vector store; its `status` tells how far it is."""
    opened = await _open(service, store_id)
    uid, attributes = uid_of(body.file_id, "file-"), safe_json(body.attributes or {})

    def attach() -> StoredFile:
        return service.vector_stores.attach(opened, uid, attributes, _options(opened, body.chunking_strategy))

    file = await service.gates.run(opened.kb_name, attach)
    return _member(file, store_id)


@router.get("/vector_stores/{store_id}/files", operation_id="openai_list_vector_store_files")
async def openai_list_vector_store_files(
    store_id: str,
    service: ServiceDep,
    status: Annotated[str | None, Query(alias="filter", description="in_progress, completed, failed")] = None,
    limit: Limit = 20,
    after: After = None,
    order: Order = "desc",
) -> dict[str, Any]:
    """The files of a vector store."""
    opened = await _open(service, store_id)
    found = await service.gates.run(opened.kb_name, lambda: service.vector_stores.members(opened.kb()))
    shown = [_member(file, store_id) for file in found if status in (None, _status(file))]
    return _page(shown, limit=limit, after=after, order=order)


@router.get("/vector_stores/{store_id}/files/{file_id}", operation_id="openai_get_vector_store_file")
async def openai_get_vector_store_file(store_id: str, file_id: str, service: ServiceDep) -> dict[str, Any]:
    """One file of a vector store."""
    opened, uid = await _open(service, store_id), uid_of(file_id, "file-")
    file = await service.gates.run(opened.kb_name, lambda: service.vector_stores.member(opened, uid))
    return _member(file, store_id)


@router.post("/vector_stores/{store_id}/files/{file_id}", operation_id="openai_update_vector_store_file")
async def openai_update_vector_store_file(
    store_id: str, file_id: str, body: Attributes, service: ServiceDep
) -> dict[str, Any]:
    """Replace the attributes of a file, which searches can filter by."""
    opened, uid = await _open(service, store_id), uid_of(file_id, "file-")
    attributes = safe_json(body.attributes)
    file = await service.gates.run(
        opened.kb_name, lambda: service.vector_stores.set_attributes(opened, uid, attributes)
    )
    return _member(file, store_id)


@router.delete("/vector_stores/{store_id}/files/{file_id}", operation_id="openai_detach_file")
async def openai_detach_file(store_id: str, file_id: str, service: ServiceDep) -> dict[str, Any]:
    """Take a file out of a vector store."""
    opened, uid = await _open(service, store_id), uid_of(file_id, "file-")
    await service.gates.run(opened.kb_name, lambda: service.vector_stores.detach(opened, uid))
    return {"id": file_id, "object": "vector_store.file.deleted", "deleted": True}


@router.get("/vector_stores/{store_id}/files/{file_id}/content", operation_id="openai_vector_store_file_content")
async def openai_vector_store_file_content(store_id: str, file_id: str, service: ServiceDep) -> dict[str, Any]:
    """The text of a file as searches see it, chunk by chunk."""
    opened, uid = await _open(service, store_id), uid_of(file_id, "file-")

    def load() -> list[Hit]:
        return opened.list_docs([service.vector_stores.member(opened, uid).name])

    data = [{"type": "text", "text": hit.text} for hit in await service.gates.run(opened.kb_name, load)]
    return {"object": "vector_store.file_content.page", "data": data, "has_more": False, "next_page": None}


# ---- batches


def _batch(uid: str, store_id: str, members: Sequence[StoredFile], made: float) -> dict[str, Any]:
    counts = _counts(members)
    status = "in_progress" if counts["in_progress"] else "cancelled" if counts["cancelled"] else "completed"
    return {
        "id": f"vsfb_{uid}", "object": "vector_store.files_batch", "created_at": int(made),
        "vector_store_id": store_id, "status": status, "file_counts": counts,
    }  # fmt: skip


@router.post("/vector_stores/{store_id}/file_batches", operation_id="openai_create_file_batch")
async def openai_create_file_batch(store_id: str, body: FileBatch, service: ServiceDep) -> dict[str, Any]:
    """Put several uploaded files into a vector store."""
    opened = await _open(service, store_id)
    wanted = body.files or [AttachFile(file_id=file_id, attributes=body.attributes) for file_id in body.file_ids]
    if not wanted:
        raise InvalidRequest("没有文件 / there are no files: file_ids")

    def add() -> dict[str, Any]:
        uids = [uid_of(item.file_id, "file-") for item in wanted]
        for uid in uids:
            service.vector_stores.file(uid)  # all or nothing: an unknown one is refused before any is put in
        for uid, item in zip(uids, wanted, strict=True):
            options = _options(opened, item.chunking_strategy or body.chunking_strategy)
            service.vector_stores.attach(opened, uid, safe_json(item.attributes or {}), options)
        return _loaded(service, opened, store_id, service.vector_stores.add_batch(opened, uids))

    return await service.gates.run(opened.kb_name, add)


def _loaded(service: Service, opened: KBService, store_id: str, uid: str) -> dict[str, Any]:
    members, made = service.vector_stores.batch(opened, uid)
    return _batch(uid, store_id, members, made)


@router.get("/vector_stores/{store_id}/file_batches/{batch_id}", operation_id="openai_get_file_batch")
async def openai_get_file_batch(store_id: str, batch_id: str, service: ServiceDep) -> dict[str, Any]:
    """How far the files of a batch are."""
    opened, uid = await _open(service, store_id), uid_of(batch_id, "vsfb_")
    return await service.gates.run(opened.kb_name, lambda: _loaded(service, opened, store_id, uid))


@router.post("/vector_stores/{store_id}/file_batches/{batch_id}/cancel", operation_id="openai_cancel_file_batch")
async def openai_cancel_file_batch(store_id: str, batch_id: str, service: ServiceDep) -> dict[str, Any]:
    """Stop what is not done yet of a batch."""
    opened, uid = await _open(service, store_id), uid_of(batch_id, "vsfb_")

    def cancel() -> dict[str, Any]:
        service.vector_stores.cancel_batch(opened, uid)
        return _loaded(service, opened, store_id, uid)

    return await service.gates.run(opened.kb_name, cancel)


@router.get("/vector_stores/{store_id}/file_batches/{batch_id}/files", operation_id="openai_list_file_batch")
async def openai_list_file_batch(
    store_id: str, batch_id: str, service: ServiceDep, limit: Limit = 20, after: After = None, order: Order = "desc"
) -> dict[str, Any]:
    """The files of a batch."""
    opened, uid = await _open(service, store_id), uid_of(batch_id, "vsfb_")
    members, _ = await service.gates.run(opened.kb_name, lambda: service.vector_stores.batch(opened, uid))
    return _page([_member(file, store_id) for file in members], limit=limit, after=after, order=order)
