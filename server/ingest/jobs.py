"""Runs jobs on threads: fair between knowledge bases, taken up again after a crash, watched by whoever asks."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from server.db import jobs
from server.db.session import Database
from server.domain import Job, Progress
from server.errors import JobCancelled, NotFound, ZhikuError

log = logging.getLogger(__name__)

LEASE = 15.0
"""Seconds after which a job whose worker is silent counts as abandoned."""
KEPT_JOBS = 2000
_POLL, _NAP = 1.0, 60.0
_PROGRESS_EVERY = 0.5
"""Seconds between two records of a job's progress: each is a transaction, and it asks whether to stop."""

Handler = Callable[[Job], Iterator[Progress]]


class Signal:
    """Wakes coroutines and threads when something happened.

    Take a `ticket` before you look, and wait with it when there was nothing to see: what happened in between ends the
    wait at once.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._notices = 0

    @property
    def ticket(self) -> int:
        """The number of notices until now."""
        return self._notices

    def notify(self) -> None:
        """Wake all who wait."""
        with self._condition:
            self._notices += 1
            self._condition.notify_all()
            for loop, event in self._waiters:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(event.set)

    def wait_thread(self, ticket: int, timeout: float) -> None:
        """Block this thread until there is a notice after the ticket, or the timeout, in seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self._notices != ticket, timeout)

    async def wait(self, ticket: int, timeout: float) -> None:  # noqa: ASYNC109  # a time-out is no error here
        """Suspend until there is a notice after the ticket, or the timeout, in seconds."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._condition:
            if self._notices != ticket:
                return
            self._waiters.add(entry)
        try:
            await asyncio.wait_for(entry[1].wait(), timeout)
        except TimeoutError:
            pass
        finally:
            with self._condition:
                self._waiters.discard(entry)


class JobRunner:
    """Takes jobs from SQL and runs their handlers, `workers` at a time."""

    def __init__(self, db: Database, handlers: Mapping[str, Handler], workers: int) -> None:
        self._db = db
        self._handlers = handlers
        self._count = workers
        self._name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._stop = threading.Event()
        self._queued = Signal()
        self._changed = Signal()
        self._threads: list[threading.Thread] = []

    # running

    def start(self) -> None:
        """Take up what a dead process left behind, and begin."""
        self._recover()
        self._threads = [
            threading.Thread(target=self._work, args=(_POLL if n == 0 else None,), name=f"job-{n}", daemon=True)
            for n in range(self._count)
        ]
        self._threads.append(threading.Thread(target=self._heartbeat, name="job-lease", daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self, patience: float = 10.0) -> None:
        """Stop after the step at hand; what was not finished is queued again."""
        self._stop.set()
        self._queued.notify()
        deadline = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._db.write() as sql:
            jobs.release(sql, self._name)

    def _recover(self) -> None:
        host = socket.gethostname()
        with self._db.write() as sql:
            for worker in jobs.running_workers(sql):
                if worker and worker.startswith(f"{host}:") and not _alive(worker):
                    jobs.release(sql, worker)
            jobs.prune(sql, KEPT_JOBS)

    def _heartbeat(self) -> None:
        while not self._stop.wait(LEASE / 3):
            try:
                with self._db.write() as sql:
                    jobs.renew(sql, self._name, time.time() + LEASE)
            except SQLAlchemyError:
                log.exception("cannot renew the lease of running jobs")

    def _work(self, poll: float | None) -> None:
        """Take jobs until the end. One worker looks at the queue from time to time, for jobs of other processes."""
        while True:
            ticket = self._queued.ticket
            if self._stop.is_set():
                return
            try:
                job = self._claim()
            except SQLAlchemyError:
                log.exception("cannot take a job; trying again")
                job = None
            if job is None:
                self._queued.wait_thread(ticket, poll or _NAP)
            else:
                self._queued.notify()  # where there is one job there may be more
                self._run(job)

    def _claim(self) -> Job | None:
        now = time.time()
        with self._db.read() as sql:
            if not jobs.counts(sql).keys() & {"queued", "running"}:
                return None
        with self._db.write() as sql:
            return jobs.claim(sql, self._name, now, LEASE, per_kb=max(1, self._count - 1))

    def _run(self, job: Job) -> None:
        state, reason, last = "done", "", Progress(job.finished, job.total)
        try:
            recorded = time.monotonic()
            for step in self._handlers[job.kind](job):
                last = step
                if step.event is not None or time.monotonic() - recorded > _PROGRESS_EVERY:
                    self._record(job, step)
                    recorded = time.monotonic()
                elif self._stop.is_set():
                    raise _stopping()
        except JobCancelled as error:
            state, reason = "cancelled", error.message
        except ZhikuError as error:
            state, reason = "failed", error.message
            log.warning("job %s (%s) failed: %s", job.id, job.kind, error.message)
        except Exception as error:  # whatever it is, the job must not stay "running" for ever
            state, reason = "failed", f"内部错误 / internal error: {type(error).__name__}"
            log.exception("job %s (%s) failed", job.id, job.kind)
        if not (self._stop.is_set() and state == "cancelled"):
            self._finish(job, state, reason, last)

    def _finish(self, job: Job, state: str, reason: str, last: Progress) -> None:
        """Note how a job ended; while the database is away again and again, for else it would be running for ever."""
        while True:
            try:
                with self._db.write(job.kb_id) as sql:
                    jobs.finish(sql, job.id, state, reason, last)
            except SQLAlchemyError:
                log.exception("cannot note the end of job %s; trying again", job.id)
                if self._stop.wait(_POLL):
                    return
            else:
                break
        self._changed.notify()
        self._queued.notify()

    def _record(self, job: Job, step: Progress) -> None:
        if self._stop.is_set():
            raise _stopping()
        with self._db.write(job.kb_id) as sql:
            if not jobs.progress(sql, job.id, step.finished, step.total, step.event):
                raise JobCancelled("任务已被取消 / the job was cancelled")
        self._changed.notify()

    # asking

    def notify(self) -> None:
        """Tell the workers that jobs were queued."""
        self._queued.notify()

    def cancel(self, ids: Iterable[int], reason: str = "已取消 / cancelled") -> int:
        """Cancel jobs; running ones stop at their next step. Returns how many were not over yet."""
        with self._db.write() as sql:
            count = jobs.cancel(sql, ids, reason)
        self._changed.notify()
        return count

    def retry(self, job_id: int) -> bool:
        """Queue a failed or cancelled job again."""
        with self._db.write() as sql:
            again = jobs.retry(sql, job_id)
        self._queued.notify()
        return again

    async def wait(self, ids: Iterable[int]) -> list[Job]:
        """The jobs, once all of them have ended."""
        wanted = list(ids)
        while True:
            ticket = self._changed.ticket
            found = await asyncio.to_thread(self._load, wanted)
            if all(job.ended for job in found):
                return found
            await self._changed.wait(ticket, 1.0)

    def wait_blocking(self, ids: Iterable[int]) -> Iterator[list[Job]]:
        """The state of jobs whenever it may have changed, until all have ended."""
        wanted = list(ids)
        while True:
            ticket = self._changed.ticket
            found = self._load(wanted)
            yield found
            if all(job.ended for job in found):
                return
            self._changed.wait_thread(ticket, 1.0)

    def get(self, job_id: int) -> Job:
        """A job as it is now.

        Raises:
            NotFound: there is none of that id.
        """
        return self._look(job_id, 0)[0]

    def _load(self, ids: list[int]) -> list[Job]:
        with self._db.read() as sql:
            return jobs.list_by_ids(sql, ids)

    async def watch(self, job_id: int, after: int = 0) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        """(number, event) of a job as they come, from a number on, until it ends."""
        while True:
            ticket = self._changed.ticket
            job, events = await asyncio.to_thread(self._look, job_id, after)
            for number, event in events:
                after = number
                yield number, event
            if job.ended:
                return
            await self._changed.wait(ticket, 1.0)

    def _look(self, job_id: int, after: int) -> tuple[Job, list[tuple[int, dict[str, Any]]]]:
        with self._db.read() as sql:
            job = jobs.get(sql, job_id)
            if job is None:
                raise NotFound(f"没有任务 {job_id} / no job {job_id}")
            return job, jobs.events(sql, job_id, after)


def _stopping() -> JobCancelled:
    return JobCancelled("服务正在停止 / the service is stopping")


def _alive(worker: str) -> bool:
    """Whether the process that a worker's name tells of still runs (and is not this one, reborn)."""
    pid = int(worker.split(":")[1])
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
