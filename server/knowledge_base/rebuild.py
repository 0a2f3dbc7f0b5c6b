"""Builds a new generation of a knowledge base beside the live one, and swaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from server.db import chunks as chunk_rows
from server.db import files, kbs, moves
from server.db import jobs as job_rows
from server.domain import Chunk, Generation, Job, KnowledgeBase, Progress, StoredFile
from server.errors import EmbeddingError, GenerationGone, JobCancelled, LoadError, MoveFailed, NotFound, PartlyEmbedded
from server.ingest.pipeline import SplitOptions
from server.knowledge_base.context import KBContext
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.graph_builds import queue_build
from server.knowledge_base.moving import verify

REBUILD = "rebuild"


class RebuildHandler:
    """Runs `rebuild` jobs.

    Searches see the old generation until the new one is complete. Files that come, change or go meanwhile
    are looked at again before the swap. A rebuild that was interrupted or failed goes on where it stopped.
    """

    def __init__(self, context: KBContext) -> None:
        self._context = context

    def __call__(self, job: Job) -> Iterator[Progress]:
        """Rebuild the job's knowledge base; one event for each file, as the contract has them."""
        kb = _knowledge_base(self._context, job.kb_id)
        rebuild = _Rebuild(self._context, job, kb, self._generation(job, kb))
        finished = job.finished
        while (waiting := rebuild.waiting()) or not rebuild.swap():
            total = finished + len(waiting)
            for file in waiting:
                finished += 1
                yield from rebuild.file(file, finished, total)
        drop_orphans(self._context, kb.id)

    def _generation(self, job: Job, kb: KnowledgeBase) -> Generation:
        """The generation that this job began, or a new one."""
        with self._context.db.write(kb.id) as sql:
            known = job.payload.get("generation_id")
            if known and (found := kbs.get_generation(sql, known)):
                return found
            payload = job.payload
            new = kbs.add_generation(sql, kb.id, payload["vs_type"], payload["embed_model"], payload["options"])
            job_rows.set_payload(sql, job.id, {**payload, "generation_id": new})
            made = kbs.get_generation(sql, new)
        if made is None:
            raise NotFound("重建已不存在 / the rebuild is gone")
        return made


@dataclass(frozen=True)
class _Rebuild:
    """One run of a rebuild: the generation that it fills, and the files that it could not put there."""

    context: KBContext
    job: Job
    kb: KnowledgeBase
    new: Generation
    failures: dict[int, _Failure] = field(default_factory=dict)

    def waiting(self) -> list[StoredFile]:
        """Files whose current bytes are not in the new generation and did not fail yet."""
        with self.context.db.read() as sql:
            return _waiting(sql, self.kb.id, self.new, self.failures)

    def file(self, file: StoredFile, number: int, total: int) -> Iterator[Progress]:
        """Ingest one file into the new generation. A file that cannot be read is skipped and reported; a model
        that is down ends the rebuild, for the old index is better than an empty one."""
        event: dict[str, Any] = {
            "code": 200, "msg": f"({number} / {total}): {file.name}", "total": total, "finished": number,
            "doc": file.name,
        }  # fmt: skip
        outage = None
        try:
            for _ in self._ingest(file):
                yield Progress(number - 1, total)
        except (LoadError, EmbeddingError) as error:
            self.failures[file.id] = _Failure(file.file_version, error.message)
            event = {
                "code": 500,
                "msg": f"添加文件‘{file.name}’到知识库‘{self.kb.name}’时出错：{error.message}。已跳过。",
            }
            if isinstance(error, EmbeddingError) and not isinstance(error, PartlyEmbedded):
                outage = error
        yield Progress(number, total, event)
        if outage is not None:
            raise outage

    def _ingest(self, file: StoredFile) -> Iterator[Progress]:
        pipeline, options = self.context.pipeline, SplitOptions.of(self.new.options)
        try:
            yield from pipeline.ingest(file, self.new, options, self._supplied(file), self.job.id)
        except GenerationGone:
            raise
        except JobCancelled:
            return  # deleted or replaced meanwhile: the next look at what waits knows

    def _supplied(self, file: StoredFile) -> list[Chunk] | None:
        """The chunks that a client supplied for the file, from the live generation."""
        if not file.custom_docs:
            return None
        live = _knowledge_base(self.context, file.kb_id).generation
        with self.context.db.read() as sql:
            kept = chunk_rows.of_files(sql, live.id, [file.name])
        return [Chunk(it.text, it.start, it.end, it.page, it.headings, it.metadata, it.enabled) for it in kept] or None

    def swap(self) -> bool:
        """Point searchers to the new generation, unless a file came in between. A move looks first whether all has
        arrived, and keeps the old one."""
        service = KBServiceFactory.get_service_of_generation(self.kb.name, self.new)
        moving = self.job.payload.get("keep")
        service.catch_up()
        if moving:
            verify(service, self.new, self.new)
        with self.context.db.write(self.kb.id) as sql:
            if _waiting(sql, self.kb.id, self.new, self.failures):
                return False
            live = kbs.get(sql, self.kb.id)
            if live is None or live.generation.id == self.new.id:
                return True  # the process died after the swap
            if moving and (lost := files.documents(sql, self.failures, live.generation.id)):
                raise MoveFailed(_not_moved([self.failures[file_id] for file_id in lost]))
            moves.keep(sql, self.kb.id, live.generation if moving else None)
            kbs.set_generation(sql, self.kb.id, self.new.id)
            kbs.bump(sql, self.kb.id)
            counts = chunk_rows.count_by_file(sql, self.new.id)
            for file in files.list_all(sql, self.kb.id):
                files.set_state(sql, file.id, *_state(counts.get(file.id), self.failures.get(file.id)))
            if (kb := kbs.get(sql, self.kb.id)) is not None:
                queue_build(sql, self.context, kb)
        if moving:  # of what is kept SQL has all; its indexes are made again when it is gone back to
            KBServiceFactory.get_service_of_generation(self.kb.name, live.generation).drop_vectors(live.generation)
            self.context.forget(self.kb.id, live.generation.id)
        return True


def _not_moved(failures: Sequence[_Failure]) -> str:
    reasons = "; ".join(sorted({failure.reason for failure in failures}))
    return (
        f"有 {len(failures)} 个文件未能向量化，未切换 / "
        f"{len(failures)} files could not be embedded, nothing was changed: {reasons}"
    )


def _knowledge_base(context: KBContext, kb_id: int) -> KnowledgeBase:
    with context.db.read() as sql:
        kb = kbs.get(sql, kb_id)
    if kb is None:
        raise NotFound("知识库已被删除 / the knowledge base is gone")
    return kb


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a version of a file is not, or not wholly, in the new generation."""

    file_version: int
    reason: str


def _state(counts: tuple[int, int] | None, failure: _Failure | None) -> tuple[str, str]:
    reason = failure.reason if failure else ""
    if counts is None:
        return ("failed", reason) if failure else ("stored", "")
    return ("ready", "") if counts[0] == counts[1] else ("partial", reason)


def _waiting(sql: Connection, kb_id: int, new: Generation, failures: dict[int, _Failure]) -> list[StoredFile]:
    present = files.list_all(sql, kb_id)
    have = files.documents(sql, [file.id for file in present], new.id)
    counts = chunk_rows.count_by_file(sql, new.id)

    def settled(file: StoredFile) -> bool:
        failure, document = failures.get(file.id), have.get(file.id)
        if failure is not None and failure.file_version == file.file_version:
            return True
        if document is None or document.file_version != file.file_version:
            return False
        chunks, vectors = counts.get(file.id, (0, 0))
        return chunks == vectors

    return [file for file in present if file.storage and not settled(file)]


def drop_orphans(context: KBContext, kb_id: int) -> None:
    """Delete generations that are neither live, nor being built, nor kept."""
    with context.db.read() as sql:
        kb = kbs.get(sql, kb_id)
        if kb is None:
            return
        needed = {job.payload.get("generation_id") for job in job_rows.active(sql, kb_id)}
        if (kept := moves.kept(sql, kb_id)) is not None:
            needed.add(kept.id)
        numbers = [number for number in kbs.list_generation_ids(sql, kb_id) if number not in needed]
        others = [kbs.get_generation(sql, number) for number in numbers if number != kb.generation.id]
    for other in others:
        if other is not None:
            KBServiceFactory.get_service_of_generation(kb.name, other).drop_generation(other)
