"""Knowledge Base Management: the routes of the contract, and file states."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

from fastapi import APIRouter, File, Form, Query, UploadFile
from fastapi import Body as JsonBody
from fastapi.responses import FileResponse, Response
from pydantic import TypeAdapter, ValidationError

from server.api import events
from server.api.deps import ServiceDep
from server.api.forms import LargeFormRoute
from server.api.schemas import (
    PASSWORDS,
    BaseResponse,
    CreateKB,
    DeleteDocs,
    DocItem,
    FileDetails,
    FormBool,
    FormInt,
    KBDetails,
    KBName,
    ListResponse,
    Manifest,
    MigrateKnowledgeBase,
    RecreateVectorStore,
    SearchDocs,
    SplitFields,
    SplitSettings,
    UpdateDocs,
    UpdateDocsById,
    UpdateInfo,
)
from server.api.text import clean_text, own_metadata, safe_json, whole
from server.db import chunks as chunk_rows
from server.db import files, kbs
from server.domain import Chunk, Hit, SearchOptions, StoredFile
from server.errors import InvalidRequest, NotFound, ZhikuError
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.manifest import compare
from server.knowledge_base.operations import Outcome, Upload, check_split, service_of
from server.knowledge_base.service import KBService
from server.names import file_label, kb_label
from server.service import Service

router = APIRouter(prefix="/knowledge_base", tags=["Knowledge Base Management"], route_class=LargeFormRoute)

LISTING_SCORE = 3.0
"""The score of chunks that were listed and not searched, as the contract has it."""


@router.get("/list_knowledge_bases", operation_id="list_knowledge_bases")
async def list_knowledge_bases(service: ServiceDep) -> ListResponse:
    """Names of all knowledge bases."""

    def load() -> list[str]:
        with service.context.db.read() as sql:
            return [kb.name for kb in kbs.list_all(sql)]

    return ListResponse(data=await service.gates.run_free(load))


@router.get("/list_knowledge_base_details", operation_id="list_knowledge_base_details")
async def list_knowledge_base_details(service: ServiceDep) -> list[KBDetails]:
    """All knowledge bases with their settings."""

    def load() -> list[KBDetails]:
        with service.context.db.read() as sql:
            counts = kbs.count_files(sql)
            return [
                KBDetails(
                    kb_name=kb.name,
                    kb_info=kb.info,
                    vs_type=kb.generation.vs_type,
                    embed_model=kb.generation.embed_model,
                    file_count=counts.get(kb.id, 0),
                    create_time=kb.create_time,
                )
                for kb in kbs.list_all(sql)
            ]

    return await service.gates.run_free(load)


@router.post("/create_knowledge_base", operation_id="create_knowledge_base")
async def create_knowledge_base(body: CreateKB, service: ServiceDep) -> BaseResponse:
    """Make an empty knowledge base."""
    name = kb_label(body.knowledge_base_name)

    def create() -> None:
        kind = body.vector_store_type or service.settings.default_vs_type
        options = service.context.split_options.changed(**_split_fields(body))
        check_split(options)
        KBServiceFactory.get_service(name, kind, body.embed_model).create_kb(clean_text(body.kb_info or ""), options)

    await service.gates.run(name, create)
    return BaseResponse(msg=f"已新增知识库 {name}")


def _split_fields(body: SplitFields) -> dict[str, Any]:
    return {
        "chunk_size": body.chunk_size,
        "chunk_overlap": body.chunk_overlap,
        "zh_title_enhance": body.zh_title_enhance,
        "splitter": body.text_splitter or None,
    }


@router.post("/update_split_settings", operation_id="update_split_settings")
async def update_split_settings(body: SplitSettings, service: ServiceDep) -> BaseResponse:
    """Cut files that come from now on in another way; `recreate_vector_store` cuts those that are there so."""
    name = kb_label(body.knowledge_base_name)

    def change() -> dict[str, Any]:
        kb = service_of(name)
        options = kb.split_options(**_split_fields(body))
        check_split(options)
        kb.set_split_options(options)
        return options.as_dict()

    return BaseResponse(data=await service.gates.run(name, change))


@router.post("/delete_knowledge_base", operation_id="delete_knowledge_base")
async def delete_knowledge_base(
    body: Annotated[str | KBName, JsonBody(description="the name as a bare JSON string", examples=["my_kb"])],
    service: ServiceDep,
) -> BaseResponse:
    """Delete a knowledge base with everything in it."""
    name = await _existing(service, body if isinstance(body, str) else body.knowledge_base_name)
    await service.gates.run(name, lambda: service_of(name).drop_kb())
    return BaseResponse(msg=f"成功删除知识库 {name}")


async def _existing(service: Service, given: str) -> str:
    """The name that a client means: as it stands, or, as old clients write it, with %XX for its characters."""
    name = kb_label(given)

    def there() -> bool:
        return KBServiceFactory.get_service_by_name(name) is not None

    if "%" not in name or await service.gates.run(name, there):
        return name
    return kb_label(unquote(given))


@router.get("/list_files", operation_id="list_files")
async def list_files(
    service: ServiceDep, knowledge_base_name: Annotated[str, Query(description="the knowledge base")]
) -> ListResponse:
    """Names of the files that searches can find."""
    try:
        name = await _existing(service, knowledge_base_name)
        return ListResponse(data=await service.gates.run(name, lambda: service_of(name).list_files()))
    except ZhikuError as error:
        return ListResponse(code=error.code, msg=error.message)


@router.get("/list_file_details", operation_id="list_file_details")
async def list_file_details(
    service: ServiceDep, knowledge_base_name: Annotated[str, Query(description="the knowledge base")]
) -> list[FileDetails]:
    """All files with their state, and the reason where something is wrong."""
    name = await _existing(service, knowledge_base_name)

    def load() -> list[FileDetails]:
        kb = service_of(name).kb()
        with service.context.db.read() as sql:
            found = files.list_all(sql, kb.id)
            documents = files.documents(sql, [file.id for file in found], kb.generation.id)
            counts = chunk_rows.count_by_file(sql, kb.generation.id)
        return [_details(file, documents.get(file.id), counts.get(file.id, (0, 0))) for file in found]

    return await service.gates.run(name, load)


def _details(file: StoredFile, document: files.DocumentInfo | None, counts: tuple[int, int]) -> FileDetails:
    return FileDetails(
        file_name=file.name,
        file_ext=PurePosixPath(file.name).suffix.lower(),
        file_version=file.file_version,
        file_size=file.size,
        state=file.state,
        reason=file.reason,
        warnings=document.warnings if document else [],
        document_loader=document.loader if document else "",
        text_splitter=document.splitter if document else "",
        docs_count=counts[0],
        vectors_count=counts[1],
        custom_docs=file.custom_docs,
        create_time=file.create_time,
        update_time=file.update_time,
    )


@router.post("/search_docs", operation_id="search_docs")
async def search_docs(body: SearchDocs, service: ServiceDep) -> list[dict[str, Any]]:
    """The chunks that answer a query best, as a bare array; an unknown knowledge base gives an empty one."""

    name = body.knowledge_base_name
    kb_service = await service.gates.run(name, lambda: KBServiceFactory.get_service_by_name(name))
    if kb_service is None:
        return []
    if body.query.strip():
        options = SearchOptions(body.top_k, body.score_threshold, body.search_type)
        return [search_item(hit) for hit in (await service.searcher.search([kb_service], body.query, options)).hits]
    if not (body.file_name or body.metadata):
        return []
    hits = await service.gates.run(name, lambda: _listed(kb_service, body))
    return [search_item(hit, LISTING_SCORE) for hit in hits]


def _listed(kb_service: KBService, body: SearchDocs) -> list[Hit]:
    """The chunks of a file, or of those whose name fits an SQL pattern, as the contract has it."""
    if not body.file_name:
        return kb_service.list_docs(None, body.metadata)
    exact = kb_service.list_docs([file_label(body.file_name)], body.metadata)
    return exact or kb_service.list_docs_like(body.file_name, body.metadata)


def search_item(hit: Hit, score: float | None = None) -> dict[str, Any]:
    """A hit as the contract has it."""
    place = {"page": hit.page, "headings": list(hit.headings) or None, "start": hit.start, "end": hit.end}
    return {
        "page_content": hit.text,
        "metadata": {
            **hit.metadata,
            **{key: value for key, value in place.items() if value is not None},
            "source": hit.file_name,
            "id": hit.id,
        },
        "type": "Document",
        "id": hit.id,
        "score": hit.score if score is None else score,
        "similarity": hit.similarity,
        "ranks": dict(hit.ranks),
    }


@router.post("/update_docs_by_id", operation_id="update_docs_by_id")
async def update_docs_by_id(body: UpdateDocsById, service: ServiceDep) -> BaseResponse:
    """Edit or delete single chunks; the others stay as they are."""
    name = body.knowledge_base_name
    edits = {
        _chunk_id(key): _chunk(item) if item is not None and item.page_content.strip() else None
        for key, item in body.docs.items()
    }

    def update() -> BaseResponse:
        kb_service = KBServiceFactory.get_service_by_name(name)
        if kb_service is None:
            return BaseResponse(code=500, msg=f"指定的知识库 {name} 不存在")
        kb_service.update_doc_by_ids(edits)
        return BaseResponse(msg="文档更新成功")

    return await service.gates.run(name, update)


def _chunk(item: DocItem) -> Chunk:
    return Chunk(clean_text(item.page_content), metadata=own_metadata(item.metadata))


def _chunk_id(key: str) -> int:
    if not key.isascii() or not key.isdigit() or len(key) > 18:
        raise NotFound(f"没有这个片段 / no such chunk: {key[:40]}")
    return int(key)


_DOCS: TypeAdapter[dict[str, list[DocItem]]] = TypeAdapter(dict[str, list[DocItem]])


def _custom_docs(text: str) -> dict[str, list[Chunk]]:
    try:
        docs = _DOCS.validate_python(safe_json(json.loads(text.strip() or "{}") or {}))
    except (ValueError, RecursionError) as error:
        problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "JSON"
        raise InvalidRequest(
            f'docs 应为 JSON 字符串 / docs must be a JSON string like {{"file": [{{"page_content": "…"}}]}}: {problem}'
        ) from None
    return {whole(name): [_chunk(item) for item in items if item.page_content.strip()] for name, items in docs.items()}


def given_passwords(value: str | dict[str, Any]) -> dict[str, str]:
    """The passwords of files by name; raises InvalidRequest with words that hold none of them."""
    try:
        found = json.loads(value.strip() or "{}") if isinstance(value, str) else value
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(password, str) for password in found.values()):
        raise InvalidRequest(
            'passwords 应为 JSON 对象 / passwords must be a JSON object like {"file name": "password"}'
        ) from None
    return {whole(name): whole(password).replace("\0", "") for name, password in found.items()}


@router.post("/upload_docs", operation_id="upload_docs")
async def upload_docs(
    service: ServiceDep,
    uploads: Annotated[list[UploadFile], File(alias="files", description="one or more files")],
    knowledge_base_name: Annotated[str, Form(description="the knowledge base")],
    override: Annotated[FormBool, Form(description="replace files of the same name")] = False,
    to_vector_store: Annotated[FormBool, Form(description="false = only store the files")] = True,
    chunk_size: Annotated[FormInt, Form(description="longest chunk, in tokens of the embedding model")] = None,
    chunk_overlap: Annotated[FormInt, Form(description="tokens that neighbouring chunks share")] = None,
    zh_title_enhance: Annotated[FormBool, Form(description="mark Chinese titles")] = None,
    docs: Annotated[str, Form(description='own chunks: {"file": [{"page_content": "…"}]}')] = "{}",
    passwords: Annotated[str, Form(description=PASSWORDS)] = "{}",
    not_refresh_vs_cache: Annotated[FormBool, Form(description="accepted; nothing is lost")] = False,  # noqa: ARG001
    wait: Annotated[FormBool, Form(description="false = answer at once with the ids of the jobs")] = True,
) -> BaseResponse:
    """Store files and make them searchable; answers when all is done, with the reasons of those that failed."""
    name = kb_label(knowledge_base_name)
    custom, keys = _custom_docs(docs), given_passwords(passwords)
    given = {"chunk_size": chunk_size, "chunk_overlap": chunk_overlap, "zh_title_enhance": zh_title_enhance}
    sent = [Upload(sent_name(upload.filename), upload.file) for upload in uploads]

    def store() -> Outcome:
        kb = service_of(name)
        return service.operations.upload(
            kb,
            sent,
            kb.split_options(**given),
            override=bool(override),
            vectorise=to_vector_store is not False,
            docs=custom,
            passwords=keys,
        )

    outcome = await service.gates.run(name, store)
    return await _report(service, outcome, "文件上传与向量化完成", wait=wait is not False)


def sent_name(name: str | None) -> str:
    """A form's file name as the user knows it: browsers write a quotation mark as %22."""
    return (name or "").replace("%22", '"')


async def _report(service: Service, outcome: Outcome, done: str, *, wait: bool) -> BaseResponse:
    jobs = [{"id": number, "file_name": name} for number, name in outcome.jobs.items()]
    if not wait:
        return BaseResponse(msg="已加入任务队列 / queued", data={"failed_files": outcome.failed, "jobs": jobs})
    failed = outcome.add_ended(await service.runner.wait(outcome.jobs))
    return BaseResponse(msg=done, data={"failed_files": failed, "jobs": jobs})


@router.post("/delete_docs", operation_id="delete_docs")
async def delete_docs(body: DeleteDocs, service: ServiceDep) -> BaseResponse:
    """Take files out of the search, and with `delete_content` off the server."""
    name = kb_label(body.knowledge_base_name)
    failed = await service.gates.run(
        name, lambda: service.operations.delete(service_of(name), body.file_names, delete_content=body.delete_content)
    )
    return BaseResponse(msg="文件删除完成", data={"failed_files": failed})


@router.post("/diff_files", operation_id="diff_files")
async def diff_files(body: Manifest, service: ServiceDep) -> BaseResponse:
    """Tell which of a client's files have to be uploaded (with `override`), which the knowledge base has already, and
    which it has that the client has not. Nothing is changed."""
    name = kb_label(body.knowledge_base_name)
    manifest = {item.name: item.sha256 for item in body.files}
    found = await service.gates.run(name, lambda: compare(service_of(name), manifest))
    return BaseResponse(data=asdict(found))


@router.post("/update_info", operation_id="update_info")
async def update_info(body: UpdateInfo, service: ServiceDep) -> BaseResponse:
    """Change the description of a knowledge base."""
    name = kb_label(body.knowledge_base_name)
    await service.gates.run(name, lambda: service_of(name).update_info(clean_text(body.kb_info)))
    return BaseResponse(msg="知识库介绍修改完成", data={"kb_info": body.kb_info})


@router.post("/update_docs", operation_id="update_docs")
async def update_docs(body: UpdateDocs, service: ServiceDep) -> BaseResponse:
    """Split and embed files anew that are on the server."""
    name = kb_label(body.knowledge_base_name)
    custom, keys = _custom_docs(body.docs), given_passwords(body.passwords)

    def update() -> Outcome:
        kb = service_of(name)
        return service.operations.update(
            kb,
            body.file_names,
            kb.split_options(**_split_fields(body)),
            override_custom=body.override_custom_docs,
            docs=custom,
            passwords=keys,
        )

    outcome = await service.gates.run(name, update)
    return await _report(service, outcome, "更新文档完成", wait=body.wait)


@router.get("/download_doc", operation_id="download_doc", response_class=FileResponse)
async def download_doc(
    service: ServiceDep,
    knowledge_base_name: Annotated[str, Query(description="the knowledge base")],
    file_name: Annotated[str, Query(description="a name as list_files shows it")],
    preview: Annotated[bool, Query(description="show it in the browser")] = False,
) -> Response:
    """The bytes of a file."""
    name = kb_label(knowledge_base_name)

    def find() -> tuple[StoredFile, Any]:
        file = service_of(name).find_file(file_label(file_name))
        path = service.context.files.path(file.kb_id, file.storage or "")
        if not path.is_file():
            raise NotFound(f"{file.name} 读取文件失败")
        return file, path

    file, path = await service.gates.run(name, find)
    return file_response(file.name, path, inline=preview)


def file_response(name: str, path: Any, *, inline: bool) -> FileResponse:
    """A file that a browser shows without running anything in it."""
    base = PurePosixPath(name).name
    kind: Literal["inline", "attachment"] = "inline" if inline else "attachment"
    return FileResponse(
        path,
        media_type=mimetypes.guess_type(base)[0] or "application/octet-stream",
        headers={
            "content-disposition": f"{kind}; filename*=utf-8''{quote(base)}",
            "x-content-type-options": "nosniff",
            "content-security-policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:",
        },
    )


@router.post("/recreate_vector_store", operation_id="recreate_vector_store")
async def recreate_vector_store(body: RecreateVectorStore, service: ServiceDep) -> Response:
    """Rebuild beside the live index and swap; an event per file. The work goes on when the client leaves."""
    name = kb_label(body.knowledge_base_name)
    options = _split_fields(body)

    def begin() -> int:
        return service.operations.rebuild(
            name, options, vs_type=body.vs_type, embed_model=body.embed_model, create=body.allow_empty_kb
        )

    return await _followed(service, name, begin)


@router.post("/migrate", operation_id="migrate_knowledge_base")
async def migrate_knowledge_base(body: MigrateKnowledgeBase, service: ServiceDep) -> Response:
    """Move to another vector store or embedding model while searches go on; an event for each step. The work goes on
    when the client leaves, and what fails changes nothing."""
    name = kb_label(body.knowledge_base_name)

    def begin() -> int:
        return service.operations.migrate(name, vs_type=body.vs_type, embed_model=body.embed_model, back=body.back)

    return await _followed(service, name, begin)


async def _followed(service: Service, name: str, begin: Callable[[], int]) -> Response:
    """The events of the job that is begun."""
    try:
        job_id = await service.gates.run(name, begin)
    except ZhikuError as error:
        return events.stream(_once({"code": error.code, "msg": error.message}))
    return events.stream(_rebuild_events(service, job_id))


async def _once(event: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    yield event


async def _rebuild_events(service: Service, job_id: int) -> AsyncIterator[Mapping[str, Any]]:
    try:
        async for _, event in service.runner.watch(job_id):
            yield event
        job = await service.gates.run_free(lambda: service.runner.get(job_id))
        if job.state != "done":
            yield {"code": 500, "msg": job.reason or job.state}
    except NotFound:
        yield {"code": 404, "msg": "知识库已被删除 / the knowledge base was deleted meanwhile"}
