"""What people do with a knowledge base: each step writes SQL, queues jobs, and reports by file."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from server.db import chunks as chunk_rows
from server.db import files, graphs, kbs, moves
from server.db import jobs as job_rows
from server.db.graphs import Extracted
from server.db.vectors import text_hash
from server.domain import Chunk, Extraction, Generation, Job, KnowledgeBase, Progress, StoredFile
from server.errors import GenerationGone, InvalidRequest, LoadError, NotFound, PartlyEmbedded, ZhikuError
from server.filestore import StoredBytes
from server.ingest.jobs import JobRunner
from server.ingest.loaders.factory import loader_for
from server.ingest.pipeline import SplitOptions
from server.ingest.splitters.factory import splitter
from server.knowledge_base.companions import forget_summaries
from server.knowledge_base.context import KBContext
from server.knowledge_base.factory import KBServiceFactory, vs_type_of
from server.knowledge_base.graph_builds import INGEST, queue_build
from server.knowledge_base.moving import MOVE
from server.knowledge_base.rebuild import REBUILD, drop_orphans
from server.knowledge_base.service import KBService
from server.names import file_label, kb_label

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file as a client sent it."""

    name: str
    stream: BinaryIO


@dataclass
class Outcome:
    """What became of the files of one request: the jobs that go on, and the reasons of those that failed."""

    jobs: dict[int, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add_ended(self, ended: Iterable[Job]) -> dict[str, str]:
        """The reasons of all files that failed, now that the jobs have ended."""
        by_id = {job.id: job for job in ended}
        last = {name: by_id.get(number) for number, name in sorted(self.jobs.items())}
        gone = "文件或知识库已被删除 / the file or its knowledge base was deleted meanwhile"
        bad = {name: job.reason if job else gone for name, job in last.items() if job is None or job.state != "done"}
        return {**self.failed, **bad}


def service_of(name: str) -> KBService:
    """The service of a knowledge base.

    Raises:
        NotFound: there is none of that name.
    """
    found = KBServiceFactory.get_service_by_name(name)
    if found is None:
        raise NotFound(f"未找到知识库 {kb_label(name)}")
    return found


class Operations:
    """Uploads, updates, deletions and rebuilds."""

    def __init__(self, context: KBContext, runner: JobRunner) -> None:
        self._context = context
        self._runner = runner

    # ---- files in

    def upload(
        self,
        kb_service: KBService,
        uploads: Sequence[Upload],
        options: SplitOptions,
        *,
        override: bool = False,
        vectorise: bool = True,
        docs: Mapping[str, Sequence[Chunk]] | None = None,
        passwords: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Store files and queue their ingestion. A name that is taken is left alone unless `override`."""
        check_split(options)
        kb = kb_service.kb()
        outcome = Outcome()
        custom = {file_label(name): chunks for name, chunks in (docs or {}).items()}
        keys = {file_label(name): password for name, password in (passwords or {}).items()}
        done = set()
        for upload in uploads:
            try:
                file = self._store(kb, upload, override)
                done.add(file.name)
                self._keep_password(kb, file, keys.get(file.name))
                if vectorise:
                    self._queue(kb, file, options, custom.get(file.name), outcome)
            except ZhikuError as error:
                outcome.failed[upload.name] = error.message
            except OSError as error:
                log.exception("cannot store an upload")
                reason = f"{upload.name} 文件上传失败，报错信息为: {error.strerror} / the file could not be stored"
                outcome.failed[upload.name] = reason
        for name in custom.keys() - done if vectorise else ():
            self._queue_custom(kb, name, options, custom[name], outcome)
        self._runner.notify()
        return outcome

    def bring_in(
        self, kb_service: KBService, upload: Upload, chunks: Sequence[Chunk], said: Sequence[Extraction]
    ) -> Outcome:
        """Store a file with a client's own chunks and what each of them says for the graph, and queue its ingestion. A
        name that is taken is left alone."""
        kb, outcome = kb_service.kb(), Outcome()
        try:
            file = self._store(kb, upload, override=False)
            self._queue(kb, file, kb_service.split_options(), chunks, outcome, said)
        except ZhikuError as error:
            outcome.failed[upload.name] = error.message
        self._runner.notify()
        return outcome

    def _store(self, kb: KnowledgeBase, upload: Upload, override: bool) -> StoredFile:
        """The stored file: disk first, then the row, then the bytes that the row no longer names."""
        label = file_label(upload.name)
        stored = self._context.files.put(kb.id, upload.stream)
        try:
            file, old = self._record(kb, label, stored, override)
        except BaseException:
            self._context.files.remove(kb.id, stored.storage)
            raise
        self._context.files.remove(kb.id, old)
        if old not in (None, stored.storage):
            forget_summaries(self._context, kb, [label])
        return file

    def _record(
        self, kb: KnowledgeBase, label: str, stored: StoredBytes, override: bool
    ) -> tuple[StoredFile, str | None]:
        """Write the row; returns it and the storage name that nobody needs any more.

        A client that lost patience sends its upload again: the same bytes join the work under way.
        """
        with self._context.db.write(kb.id) as sql:
            if kbs.get(sql, kb.id) is None:
                raise NotFound(f"未找到知识库 {kb.name}")
            known = files.find(sql, kb.id, label)
            if known is not None and known.storage and not override:
                same = known.sha256 == stored.sha256
                under_way = bool(job_rows.active(sql, kb.id, INGEST, known.id))
                if not (same and (under_way or known.state in ("failed", "partial"))):
                    raise InvalidRequest(f"文件 {label} 已存在。")
                return known, stored.storage
            if known is not None:
                older = job_rows.active(sql, kb.id, INGEST, known.id)
                job_rows.cancel(sql, [job.id for job in older], "已有新版本 / a newer version was uploaded")
            file = files.put(sql, kb.id, label, stored.storage, stored.sha256, stored.size)
            return file, known.storage if known else None

    def _keep_password(self, kb: KnowledgeBase, file: StoredFile, password: str | None) -> None:
        """Keep a password that was given, "" for none; work under way with another one is given up."""
        if password is None or (password or None) == file.password:
            return
        with self._context.db.write(kb.id) as sql:
            files.set_password(sql, file.id, password or None)
            older = job_rows.active(sql, kb.id, INGEST, file.id)
            job_rows.cancel(sql, [job.id for job in older], "已有新的密码 / another password was given")

    def _queue(
        self,
        kb: KnowledgeBase,
        file: StoredFile,
        options: SplitOptions,
        custom: Sequence[Chunk] | None,
        outcome: Outcome,
        said: Sequence[Extraction] | None = None,
    ) -> None:
        payload: dict[str, Any] = {"options": options.as_dict()}
        if custom is not None:
            payload["docs"] = [{"text": chunk.text, "metadata": dict(chunk.metadata)} for chunk in custom]
        else:
            self._require_loader(file)
        if said is not None:
            payload["graph"] = [graphs.dump(one).decode() for one in said]
        with self._context.db.write(kb.id) as sql:
            if files.get(sql, file.id) is None:
                raise NotFound(f"未找到文件 {file.name}")
            under_way = job_rows.active(sql, kb.id, INGEST, file.id)
            if under_way and custom is None and under_way[-1].payload == payload:
                outcome.jobs[under_way[-1].id] = file.name
                return
            outcome.jobs[job_rows.add(sql, INGEST, kb.id, file.id, payload)] = file.name
            if file.state in ("stored", "failed"):
                files.set_state(sql, file.id, "pending")

    def _require_loader(self, file: StoredFile) -> None:
        try:
            loader_for(file.name)
        except LoadError as error:
            with self._context.db.write() as sql:
                files.set_state(sql, file.id, "failed", error.message)
            raise InvalidRequest(f"加载文档 {file.name} 时出错：{error.message}") from None

    def _queue_custom(
        self, kb: KnowledgeBase, name: str, options: SplitOptions, chunks: Sequence[Chunk], outcome: Outcome
    ) -> None:
        """Chunks for a file that is on the server already; for others nothing happens, as clients expect."""
        with self._context.db.read() as sql:
            file = files.find(sql, kb.id, name)
        if file is not None:
            self._queue(kb, file, options, chunks, outcome)

    def update(
        self,
        service: KBService,
        names: Sequence[str],
        options: SplitOptions,
        *,
        override_custom: bool = False,
        docs: Mapping[str, Sequence[Chunk]] | None = None,
        passwords: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Split and embed files anew that are on the server already."""
        check_split(options)
        kb, outcome = service.kb(), Outcome()
        custom = {file_label(name): chunks for name, chunks in (docs or {}).items()}
        keys = {file_label(name): password for name, password in (passwords or {}).items()}
        for name in names:
            try:
                file = service.find_file(file_label(name))
                self._keep_password(kb, file, keys.get(file.name))
                if file.name in custom or not file.custom_docs or override_custom:
                    self._queue(kb, file, options, custom.get(file.name), outcome)
            except ZhikuError as error:
                outcome.failed[name] = f"加载文档 {name} 时出错：{error.message}"
        for name in custom.keys() - {file_label(name) for name in names if name not in outcome.failed}:
            self._queue_custom(kb, name, options, custom[name], outcome)
        self._runner.notify()
        return outcome

    def delete(self, service: KBService, names: Sequence[str], *, delete_content: bool) -> dict[str, str]:
        """Take files out; returns the reasons of those that could not be."""
        failed: dict[str, str] = {}
        for name in names:
            try:
                service.delete_doc(service.find_file(file_label(name)), delete_content=delete_content)
            except ZhikuError as error:
                failed[name] = error.message
        forget_summaries(self._context, service.kb(), (file_label(name) for name in names if name not in failed))
        service.settle()
        return failed

    # ---- jobs

    def cancel(self, job_id: int) -> bool:
        """Stop a job; False when it was over already. What a cancelled rebuild made is deleted."""
        stopped = self._runner.cancel([job_id]) > 0
        with self._context.db.read() as sql:
            job = job_rows.get(sql, job_id)
        if stopped and job is not None:
            if job.kind in (REBUILD, MOVE):
                drop_orphans(self._context, job.kb_id)
            else:
                settle_file(self._context, job)
        return stopped

    def cancel_files(self, kb: KnowledgeBase, wanted: Iterable[StoredFile]) -> None:
        """Stop the jobs of these files."""
        with self._context.db.read() as sql:
            active = [job for file in wanted for job in job_rows.active(sql, kb.id, INGEST, file.id)]
        for job in active:
            self.cancel(job.id)

    # ---- rebuild

    def rebuild(
        self,
        kb_name: str,
        options: Mapping[str, int | bool | None],
        *,
        vs_type: str | None = None,
        embed_model: str | None = None,
        create: bool = True,
    ) -> int:
        """Queue a rebuild beside the live index; returns the job's id. What is not named stays as it is.

        Raises:
            NotFound: no such knowledge base, and it is not to be created.
        """
        service = KBServiceFactory.get_service_by_name(kb_name)
        vs_type, embed_model = vs_type or None, embed_model or None
        if service is None:
            if not create:
                raise NotFound(f"未找到知识库 ‘{kb_label(kb_name)}’")
            settings = self._context.settings
            service = KBServiceFactory.get_service(kb_name, vs_type or settings.default_vs_type, embed_model)
            service.create_kb()
        kb = service.kb()
        old = kb.generation
        kept = SplitOptions.of(old.options).as_dict() | {k: v for k, v in options.items() if v is not None}
        chosen = SplitOptions.of(kept)
        check_split(chosen)
        if embed_model is not None:
            self._context.embeddings.get(embed_model)
        wanted = replace(
            old,
            vs_type=vs_type_of(vs_type or old.vs_type).value,
            embed_model=embed_model or old.embed_model,
            options=chosen.as_dict(),
        )
        return self._queue_once(kb, REBUILD, _rebuild_of(wanted))

    def _queue_once(self, kb: KnowledgeBase, kind: str, payload: Mapping[str, Any]) -> int:
        """The id of a job of this kind; the same asked for twice is one job."""
        with self._context.db.write(kb.id) as sql:
            for job in job_rows.active(sql, kb.id, kind):
                if {key: job.payload.get(key) for key in payload} == payload:
                    return job.id
            job_id = job_rows.add(sql, kind, kb.id, None, payload)
        self._runner.notify()
        return job_id

    def migrate(
        self, kb_name: str, *, vs_type: str | None = None, embed_model: str | None = None, back: bool = False
    ) -> int:
        """Queue a move to another vector store or embedding model, or `back` to the model before the last such move;
        returns the job's id. Searches go on in the old place until all has arrived in the new one.

        Raises:
            NotFound: no such knowledge base.
            InvalidRequest: it is there already, or there is nothing to go back to.
            MissingDependency, ConfigurationError: the store or the model cannot be used.
        """
        kb = service_of(kb_name).kb()
        live = kb.generation
        if back:
            with self._context.db.read() as sql:
                kept = moves.kept(sql, kb.id)
            if kept is None or vs_type or embed_model:
                raise InvalidRequest("没有保留可回退的版本 / there is nothing that was kept to go back to")
            return self._queue_once(kb, REBUILD, _rebuild_of(kept) | {"generation_id": kept.id, "keep": True})
        wanted = replace(
            live, vs_type=vs_type_of(vs_type or live.vs_type).value, embed_model=embed_model or live.embed_model
        )
        if wanted == live:
            raise InvalidRequest(
                f"知识库已在 {live.vs_type} 中使用 {live.embed_model}，请指定其他向量库或模型 / "
                f"the knowledge base is in {live.vs_type} with {live.embed_model}: name another store or model"
            )
        self._context.embeddings.get(wanted.embed_model)
        KBServiceFactory.get_service(kb.name, wanted.vs_type, wanted.embed_model)
        if wanted.embed_model == live.embed_model:
            return self._queue_once(kb, MOVE, {"vs_type": wanted.vs_type})
        return self._queue_once(kb, REBUILD, _rebuild_of(wanted) | {"keep": True})


def _rebuild_of(generation: Generation) -> dict[str, Any]:
    """What a rebuild job has to know to make a generation like this one."""
    return {
        "vs_type": generation.vs_type, "embed_model": generation.embed_model, "options": dict(generation.options)
    }  # fmt: skip


def check_split(options: SplitOptions) -> None:
    """Refuse impossible sizes before anything is stored.

    Raises:
        InvalidRequest: names the field.
    """
    splitter(options.splitter, options.chunk_size, options.chunk_overlap)


def settle_file(context: KBContext, job: Job) -> None:
    """Tell how far a file is whose job was cancelled."""
    with context.db.write(job.kb_id) as sql:
        current = job_rows.get(sql, job.id)
        kb, file = kbs.get(sql, job.kb_id), files.get(sql, job.file_id or 0)
        if current is None or current.state != "cancelled" or kb is None or file is None:
            return
        chunks, vectors = chunk_rows.count_of_file(sql, kb.generation.id, file.id)
        if chunks and chunks == vectors:
            files.set_state(sql, file.id, "ready")
        else:
            reason = "任务已取消，可重试任务或重新上传 / the job was cancelled: retry it or upload the file again"
            files.set_state(sql, file.id, "partial" if chunks else "failed", reason)


class IngestHandler:
    """Runs `ingest` jobs."""

    def __init__(self, context: KBContext) -> None:
        self._context = context

    def __call__(self, job: Job) -> Iterator[Progress]:
        """Make the job's file searchable in the live generation, also when a rebuild swaps it meanwhile."""
        while True:
            kb, file = self._load(job)
            try:
                yield from self._ingest(job, kb, file)
            except GenerationGone:
                continue
            except GeneratorExit:
                settle_file(self._context, job)
                raise
            return

    def _load(self, job: Job) -> tuple[KnowledgeBase, StoredFile]:
        with self._context.db.read() as sql:
            kb = kbs.get(sql, job.kb_id)
            file = files.get(sql, job.file_id or 0)
        if kb is None or file is None:
            raise NotFound("文件或知识库已被删除 / the file or its knowledge base is gone")
        return kb, file

    def _ingest(self, job: Job, kb: KnowledgeBase, file: StoredFile) -> Iterator[Progress]:
        docs = job.payload.get("docs")
        custom = [Chunk(item["text"], metadata=item["metadata"]) for item in docs] if docs is not None else None
        options = SplitOptions.of(job.payload["options"])
        try:
            yield from self._context.pipeline.ingest(file, kb.generation, options, custom, job.id)
        except PartlyEmbedded:
            self._tell(job, kb, file)
            raise
        self._tell(job, kb, file)
        if kb.generation.has_graph:
            with self._context.db.write(kb.id) as sql:
                queue_build(sql, self._context, kb, again=True)  # reports wait for the last file
        with self._context.db.read() as sql:
            waiting = [other for other in job_rows.active(sql, kb.id, INGEST) if other.id != job.id]
        if not waiting or job.id % _CATCH_UP_EVERY == 0:
            KBServiceFactory.get_service_of_generation(kb.name, kb.generation).catch_up()
        if file.file_version > 1:
            self._context.db.scrub()  # the old version's text goes from the disk too

    def _tell(self, job: Job, kb: KnowledgeBase, file: StoredFile) -> None:
        """Store what the chunks say for the graph where they were brought with it; reading them would find less."""
        brought = job.payload.get("graph")
        if brought is None:
            return
        with self._context.db.write(kb.id) as sql:
            chunks = chunk_rows.of_files(sql, kb.generation.id, [file.name])
            said = [
                Extracted(chunk.id, text_hash(chunk.text), graphs.load(brought[chunk.ordinal].encode()))
                for chunk in chunks if chunk.ordinal < len(brought)
            ]  # fmt: skip
            for at in range(0, len(said), _TOLD_TOGETHER):
                graphs.add(sql, kb.generation.id, graphs.IMPORTED, said[at : at + _TOLD_TOGETHER])
            if said:  # a build may have read them before, and others hold what it found
                numbers = [one.chunk_id for one in said]
                kbs.bump(sql, kb.id, [(min(numbers), max(numbers))])


_TOLD_TOGETHER = 500
_CATCH_UP_EVERY = 20
"""While many files wait, the indexes are brought forward once for so many of them: searches do it anyway."""
