"""Jobs: queue, leases, progress, events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, delete, func, insert, or_, select, update

from server.db.tables import JobEventRow, JobRow, KnowledgeBaseRow, utcnow
from server.domain import Job, Progress

_JOB = select(
    JobRow.id, JobRow.kind, JobRow.kb_id, JobRow.file_id, JobRow.payload, JobRow.state, JobRow.reason,
    JobRow.total, JobRow.finished, JobRow.attempts, JobRow.create_time, JobRow.update_time,
)  # fmt: skip
ACTIVE = ("queued", "running")


def add(sql: Connection, kind: str, kb_id: int, file_id: int | None, payload: Mapping[str, Any]) -> int:
    """Queue a job; returns its id."""
    values = {"kind": kind, "kb_id": kb_id, "file_id": file_id, "payload": dict(payload)}
    key = sql.execute(insert(JobRow).values(values)).inserted_primary_key
    return int(key[0]) if key else 0


def get(sql: Connection, job_id: int) -> Job | None:
    """The job with that id."""
    row = sql.execute(_JOB.where(JobRow.id == job_id)).first()
    return Job(*row) if row else None


def list_by_ids(sql: Connection, ids: Iterable[int]) -> list[Job]:
    """Jobs with these ids."""
    return [Job(*row) for row in sql.execute(_JOB.where(JobRow.id.in_(list(ids))))]


def list_recent(
    sql: Connection, kb_id: int | None = None, state: str | None = None, limit: int = 100, before: int | None = None
) -> list[Job]:
    """Jobs of the knowledge bases that people see, newest first; `before` is the id to go on from."""
    seen = select(KnowledgeBaseRow.id).where(KnowledgeBaseRow.kind == "")
    query = _JOB.where(JobRow.kb_id.in_(seen)).order_by(JobRow.id.desc()).limit(limit)
    if kb_id is not None:
        query = query.where(JobRow.kb_id == kb_id)
    if state is not None:
        query = query.where(JobRow.state == state)
    if before is not None:
        query = query.where(JobRow.id < before)
    return [Job(*row) for row in sql.execute(query)]


def active(sql: Connection, kb_id: int, kind: str | None = None, file_id: int | None = None) -> list[Job]:
    """Jobs of a knowledge base that wait or run, oldest first."""
    query = _JOB.where(JobRow.kb_id == kb_id, JobRow.state.in_(ACTIVE)).order_by(JobRow.id)
    if kind is not None:
        query = query.where(JobRow.kind == kind)
    if file_id is not None:
        query = query.where(JobRow.file_id == file_id)
    return [Job(*row) for row in sql.execute(query)]


def last(sql: Connection, kb_id: int, kind: str) -> Job | None:
    """The newest job of a kind."""
    row = sql.execute(
        _JOB.where(JobRow.kb_id == kb_id, JobRow.kind == kind).order_by(JobRow.id.desc()).limit(1)
    ).first()
    return Job(*row) if row else None


def claim(sql: Connection, worker: str, now: float, lease: float, per_kb: int) -> Job | None:
    """Take the next job: knowledge bases take turns, and a file is worked on by one job at a time."""
    running = sql.execute(
        select(JobRow.kb_id, JobRow.file_id).where(JobRow.state == "running", JobRow.lease >= now)
    ).all()
    load = Counter(kb_id for kb_id, _ in running)
    full = [kb_id for kb_id, count in load.items() if count >= per_kb]
    busy = [file_id for _, file_id in running if file_id is not None]
    waiting = or_(JobRow.state == "queued", (JobRow.state == "running") & (JobRow.lease < now))
    query = select(JobRow.kb_id, func.min(JobRow.id)).where(waiting, JobRow.kb_id.not_in(full)).group_by(JobRow.kb_id)
    if busy:
        query = query.where(or_(JobRow.file_id.is_(None), JobRow.file_id.not_in(busy)))
    candidates = sorted((load[kb_id], job_id) for kb_id, job_id in sql.execute(query))
    if not candidates:
        return None
    job_id = candidates[0][1]
    taken = sql.execute(
        update(JobRow)
        .where(JobRow.id == job_id, waiting)
        .values(state="running", worker=worker, lease=now + lease, attempts=JobRow.attempts + 1, update_time=utcnow())
    )
    return get(sql, job_id) if taken.rowcount == 1 else None


def renew(sql: Connection, worker: str, until: float) -> None:
    """Show that a worker is alive."""
    sql.execute(update(JobRow).where(JobRow.worker == worker, JobRow.state == "running").values(lease=until))


def running_workers(sql: Connection) -> list[str]:
    """Names of the workers that hold running jobs."""
    return list(sql.scalars(select(JobRow.worker).where(JobRow.state == "running").distinct()))


def release(sql: Connection, worker: str) -> int:
    """Queue again what a worker held; returns how many jobs."""
    return sql.execute(
        update(JobRow).where(JobRow.worker == worker, JobRow.state == "running").values(state="queued", worker=None)
    ).rowcount


def progress(sql: Connection, job_id: int, finished: int, total: int, event: Mapping[str, Any] | None) -> bool:
    """Record how far a job is; False when somebody cancelled it meanwhile."""
    if event is not None:
        number = sql.scalar(select(func.count()).select_from(JobEventRow).where(JobEventRow.job_id == job_id)) or 0
        sql.execute(insert(JobEventRow).values(job_id=job_id, seq=number + 1, data=dict(event)))
    changed = sql.execute(
        update(JobRow)
        .where(JobRow.id == job_id, JobRow.state == "running")
        .values(finished=finished, total=total, update_time=utcnow())
    )
    return changed.rowcount == 1


def forget_file(sql: Connection, file_id: int) -> None:
    """Delete the jobs of a file, with the chunks that a client may have put into them. A worker that is at one
    of them stops at its next step."""
    sql.execute(delete(JobRow).where(JobRow.file_id == file_id))


def finish(sql: Connection, job_id: int, state: str, reason: str, last: Progress) -> None:
    """End a job that runs. One that is done does not keep the chunks that a client supplied."""
    job = get(sql, job_id)
    if job is not None and state == "done" and "docs" in job.payload:
        set_payload(sql, job_id, {key: value for key, value in job.payload.items() if key != "docs"})
    sql.execute(
        update(JobRow)
        .where(JobRow.id == job_id, JobRow.state == "running")
        .values(state=state, reason=reason, worker=None, finished=last.finished, total=last.total, update_time=utcnow())
    )


def cancel(sql: Connection, ids: Iterable[int], reason: str) -> int:
    """Cancel jobs that wait or run; a running one stops at its next step. Returns how many."""
    return sql.execute(
        update(JobRow)
        .where(JobRow.id.in_(list(ids)), JobRow.state.in_(ACTIVE))
        .values(state="cancelled", reason=reason, worker=None, update_time=utcnow())
    ).rowcount


def retry(sql: Connection, job_id: int) -> bool:
    """Queue an ended job again; False when it has not ended badly."""
    changed = sql.execute(
        update(JobRow)
        .where(JobRow.id == job_id, JobRow.state.in_(("failed", "cancelled")))
        .values(state="queued", reason="", worker=None, update_time=utcnow())
    )
    return changed.rowcount == 1


def set_payload(sql: Connection, job_id: int, payload: Mapping[str, Any]) -> None:
    """Remember something that the job needs when it is taken up again."""
    sql.execute(update(JobRow).where(JobRow.id == job_id).values(payload=dict(payload)))


def events(sql: Connection, job_id: int, after: int = 0) -> list[tuple[int, dict[str, Any]]]:
    """(number, event) of a job from a number on."""
    rows = sql.execute(
        select(JobEventRow.seq, JobEventRow.data)
        .where(JobEventRow.job_id == job_id, JobEventRow.seq > after)
        .order_by(JobEventRow.seq)
    )
    return [(row[0], row[1]) for row in rows]


def counts(sql: Connection) -> dict[str, int]:
    """Number of jobs by state."""
    rows = sql.execute(select(JobRow.state, func.count()).group_by(JobRow.state))
    return {row[0]: row[1] for row in rows}


def prune(sql: Connection, keep: int) -> None:
    """Forget ended jobs beyond the newest `keep`."""
    newest = sql.scalar(select(func.max(JobRow.id))) or 0
    sql.execute(delete(JobRow).where(JobRow.id <= newest - keep, JobRow.state.not_in(ACTIVE)))
