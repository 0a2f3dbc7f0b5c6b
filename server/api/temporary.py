"""Files of one conversation: upload them, search them; `/chat/file_chat` answers from them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, File, Form, UploadFile

from server.api.deps import ServiceDep
from server.api.forms import LargeFormRoute
from server.api.knowledge_base import given_passwords, search_item, sent_name
from server.api.schemas import PASSWORDS, BaseResponse, FormBool, FormInt
from server.api.schemas_chat import SearchTempDocs
from server.domain import SearchOptions
from server.errors import NotFound
from server.knowledge_base.operations import Upload
from server.knowledge_base.service import KBService

router = APIRouter(prefix="/knowledge_base", tags=["Knowledge Base Management"], route_class=LargeFormRoute)


@router.post("/upload_temp_docs", operation_id="upload_temp_docs")
async def upload_temp_docs(
    service: ServiceDep,
    uploads: Annotated[list[UploadFile], File(alias="files", description="one or more files")],
    prev_id: Annotated[str | None, Form(description="add to the files of this id")] = None,
    knowledge_id: Annotated[str | None, Form(description="the same under another name")] = None,
    chunk_size: Annotated[FormInt, Form(description="longest chunk, in tokens of the embedding model")] = None,
    chunk_overlap: Annotated[FormInt, Form(description="tokens that neighbouring chunks share")] = None,
    zh_title_enhance: Annotated[FormBool, Form(description="mark Chinese titles")] = None,
    passwords: Annotated[str, Form(description=PASSWORDS)] = "{}",
) -> BaseResponse:
    """Keep files for a conversation and make them searchable for who knows the `id`. With `prev_id` they are added to
    those of that id; a file of the same name is replaced. An id that is unknown or over gives a new one."""
    options = service.context.split_options.changed(
        chunk_size=chunk_size, chunk_overlap=chunk_overlap, zh_title_enhance=zh_title_enhance
    )
    sent = [Upload(sent_name(upload.filename), upload.file) for upload in uploads]
    known, keys = prev_id or knowledge_id, given_passwords(passwords)

    def opened() -> KBService:
        try:
            return service.temp.open(known) if known else service.temp.create()
        except NotFound:
            return service.temp.create()

    kb_service = await service.gates.run_free(opened)
    outcome = await service.gates.run(
        kb_service.kb_name, lambda: service.operations.upload(kb_service, sent, options, override=True, passwords=keys)
    )
    failed = outcome.add_ended(await service.runner.wait(outcome.jobs))
    return BaseResponse(data={"id": kb_service.kb_name, "failed_files": [{name: why} for name, why in failed.items()]})


@router.post("/search_temp_docs", operation_id="search_temp_docs")
async def search_temp_docs(body: SearchTempDocs, service: ServiceDep) -> list[dict[str, Any]]:
    """The chunks of a conversation's files that answer a query best, as a bare array."""
    kb_service = await service.gates.run_free(lambda: service.temp.open(body.knowledge_id))
    options = SearchOptions(body.top_k, body.score_threshold, body.search_type)
    found = await service.searcher.search([kb_service], body.query, options)
    return [search_item(hit) for hit in found.hits]
