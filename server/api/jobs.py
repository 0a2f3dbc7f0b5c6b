"""Jobs: what goes on in the background."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from server.api import events
from server.api.deps import ServiceDep
from server.api.schemas import BaseResponse, JobView
from server.db import files, kbs
from server.db import jobs as job_rows
from server.domain import Job
from server.errors import NotFound
from server.knowledge_base.operations import service_of
from server.service import Service

router = APIRouter(prefix="/jobs", tags=["Jobs"])

JobId = Annotated[int, Path(description="the job", ge=1, le=2**62)]


@router.get("", operation_id="list_jobs")
async def list_jobs(
    service: ServiceDep,
    knowledge_base_name: Annotated[str, Query(description="only of this knowledge base")] = "",
    state: Annotated[str, Query(description="only in this state")] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="most jobs to return")] = 100,
    before: Annotated[int | None, Query(description="go on from this id", le=2**62)] = None,
) -> list[JobView]:
    """Jobs, newest first."""

    def load() -> list[JobView]:
        kb_id = service_of(knowledge_base_name).kb().id if knowledge_base_name else None
        with service.context.db.read() as sql:
            found = job_rows.list_recent(sql, kb_id, state or None, limit, before)
        return _views(service, found)

    return await service.gates.run_free(load)


@router.get("/{job_id}", operation_id="get_job")
async def get_job(job_id: JobId, service: ServiceDep) -> JobView:
    """One job."""
    return await service.gates.run_free(lambda: _view(service, job_id))


@router.get("/{job_id}/events", operation_id="watch_job")
async def watch_job(
    job_id: JobId,
    service: ServiceDep,
    after: Annotated[int, Query(ge=0, le=2**31, description="go on after this event number")] = 0,
) -> Response:
    """Progress as server-sent events, until the job ends; the last event is the job itself."""
    await service.gates.run_free(lambda: _view(service, job_id))
    return events.stream(_progress(service, job_id, after))


@router.post("/{job_id}/cancel", operation_id="cancel_job")
async def cancel_job(job_id: JobId, service: ServiceDep) -> BaseResponse:
    """Stop a job; a running one stops at its next step."""
    await service.gates.run_free(lambda: _view(service, job_id))
    stopped = await service.gates.run_free(lambda: service.operations.cancel(job_id))
    if not stopped:
        return BaseResponse(code=409, msg=f"任务 {job_id} 已结束 / the job is over already")
    return BaseResponse(msg=f"已取消任务 {job_id} / cancelled")


@router.post("/{job_id}/retry", operation_id="retry_job")
async def retry_job(job_id: JobId, service: ServiceDep) -> BaseResponse:
    """Queue a failed or cancelled job again; what was finished is not done twice."""
    await service.gates.run_free(lambda: _view(service, job_id))
    again = await service.gates.run_free(lambda: service.runner.retry(job_id))
    if not again:
        return BaseResponse(code=409, msg=f"任务 {job_id} 没有失败 / the job did not fail")
    return BaseResponse(msg=f"已重新排队 / queued again: {job_id}")


def _view(service: Service, job_id: int) -> JobView:
    """A job of a knowledge base that people see: the name of a hidden one is a secret of who uses it."""
    found = _views(service, [service.runner.get(job_id)])
    if not found:
        raise NotFound(f"没有任务 {job_id} / no job {job_id}")
    return found[0]


def _views(service: Service, found: list[Job]) -> list[JobView]:
    with service.context.db.read() as sql:
        names = {kb.id: kb.name for kb in kbs.list_all(sql)}
        file_names = {job.file_id: getattr(files.get(sql, job.file_id), "name", None) for job in found if job.file_id}
    return [
        JobView(
            id=job.id,
            kind=job.kind,
            knowledge_base_name=names[job.kb_id],
            file_name=file_names.get(job.file_id or 0),
            state=job.state,
            reason=job.reason,
            finished=job.finished,
            total=job.total,
            attempts=job.attempts,
            create_time=job.create_time,
            update_time=job.update_time,
        )
        for job in found
        if job.kb_id in names
    ]


async def _progress(service: Service, job_id: int, after: int) -> AsyncIterator[Mapping[str, Any]]:
    async for number, event in service.runner.watch(job_id, after):
        yield {"seq": number, **event}
    view = await service.gates.run_free(lambda: _view(service, job_id))
    yield view.model_dump(mode="json")
