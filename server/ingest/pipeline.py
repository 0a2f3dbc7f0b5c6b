"""From a file's bytes to searchable chunks: load, split, add, embed, publish.

Searchers see the old version of a file until the new one is complete. A file that has no version yet is
visible as soon as its chunks are in, so that it is found by keyword while its vectors are on the way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection

from server.db import chunks as chunk_rows
from server.db import files, graphs, kbs, texts
from server.db.session import Database
from server.db.vectors import pack
from server.domain import Block, Chunk, Generation, Progress, Reached, StoredFile
from server.errors import (
    DamagedFile,
    DimensionMismatch,
    EmbeddingError,
    EmptyDocument,
    GenerationGone,
    JobCancelled,
    LoadError,
    NotFound,
    PartlyEmbedded,
)
from server.filestore import FileStore
from server.ingest.sandbox import Reading, Sandbox
from server.ingest.splitters.base import BLOCK_SEPARATOR, Section, sections
from server.ingest.splitters.factory import splitter
from server.ingest.splitters.zh_title import TitleEnhancer
from server.models.embeddings import EmbeddingModel, EmbeddingModels
from server.retrieval.analysis import language

_STEP = 64
_BATCH = 2_000_000
"""Characters that one transaction writes: a file of any size needs no more memory than that, and others get to write
in between."""
_COMMIT_SECONDS = 2.0
"""Vectors are embedded in steps, and committed when so much time has gone by: a crash loses the work of two
seconds, and pages are not rewritten for each step."""


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """How a document is cut."""

    chunk_size: int
    chunk_overlap: int
    zh_title_enhance: bool = False
    splitter: str = "ChineseRecursiveTextSplitter"

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SplitOptions:
        """From what a job or a generation remembers."""
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})

    def changed(self, **values: Any) -> SplitOptions:
        """These, but for the values that are not None."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})

    def as_dict(self) -> dict[str, Any]:
        """For a job or a generation to remember."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A version that was written to SQL; `live` says whether searchers see it already."""

    document_id: int
    live: bool
    total: int


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be done with a file."""

    file: StoredFile
    generation: Generation
    options: SplitOptions
    custom: Sequence[Chunk] | None
    job_id: int | None


@dataclass(frozen=True, slots=True)
class _Part:
    """A stretch of a file: its chunks, its canonical text and where that begins."""

    chunks: Sequence[Chunk]
    start: int = 0
    text: str = ""


class Pipeline:
    """Turns stored files into searchable versions of a generation."""

    def __init__(self, db: Database, store: FileStore, embeddings: EmbeddingModels) -> None:
        self._db = db
        self._store = store
        self._embeddings = embeddings
        self.sandbox = Sandbox()
        # splitting is Python at work: several files at once would not be quicker, and would keep requests waiting
        self._one_at_a_time = threading.Lock()

    def ingest(
        self,
        file: StoredFile,
        generation: Generation,
        options: SplitOptions,
        custom: Sequence[Chunk] | None = None,
        job_id: int | None = None,
    ) -> Iterator[Progress]:
        """Make the file's current bytes (or the client's own chunks) searchable; yields as vectors come in.

        A job that is taken up again goes on where it was. Nothing that was embedded is embedded twice.

        Raises:
            LoadError: the file cannot be read or holds no text; nothing of this version is visible.
            EmbeddingError: some chunks have no vector; keyword search still finds a first version.
        """
        try:
            draft = self._resume(file, generation, job_id)
            if draft is None:
                draft = yield from self._write(_Work(file, generation, options, custom, job_id))
            bad = yield from self._embed(file, generation, draft)
        except (LoadError, EmbeddingError) as error:
            self._fail(file, generation, error.message)
            raise
        if bad:
            raise PartlyEmbedded(_skipped(bad, draft.total))

    # load, split, add

    def _resume(self, file: StoredFile, generation: Generation, job_id: int | None) -> _Draft | None:
        if job_id is None:
            return None
        with self._db.read() as sql:
            found = files.document_of_job(sql, file.id, generation.id, job_id)
        if found is None or found.file_version != file.file_version:
            return None
        return _Draft(found.id, found.live, found.chunk_count)

    def _write(self, work: _Work) -> Generator[Progress, None, _Draft]:
        """Read and split the file, and write what comes out; a small file in one transaction."""
        reading, document_id, total, live = Reading(iter(())), 0, 0, False
        with closing(self._parts(work, reading)) as parts:
            for batch in _batches(parts):
                if isinstance(batch, Reached):
                    yield Progress(batch.page, batch.pages)
                    continue
                yield Progress(0, batch.seen)
                if not batch.full:
                    continue
                chunks = [chunk for part in batch.parts for chunk in part.chunks]
                languages = [language(chunk.text) for chunk in chunks]
                with self._db.write(work.file.kb_id) as sql:
                    self._require_current(sql, work.file, work.generation)
                    document_id = document_id or self._begin(sql, work)
                    for part in batch.parts:
                        texts.add(sql, document_id, part.start, part.text)
                    chunk_rows.add(sql, work.file.kb_id, document_id, total, chunks, languages)
                    total += len(chunks)
                    if batch.last:
                        live = self._finish(sql, work, _Draft(document_id, live, total), reading)
        return _Draft(document_id, live, total)

    def _begin(self, sql: Connection, work: _Work) -> int:
        """A version without chunks, in place of what earlier attempts left."""
        file, generation = work.file, work.generation
        files.drop_documents(sql, files.unpublished_documents(sql, file.id, generation.id))
        document_id = files.add_document(
            sql,
            kb_id=file.kb_id,
            file_id=file.id,
            generation_id=generation.id,
            file_version=file.file_version,
            job_id=work.job_id,
            splitter=work.options.splitter,
            options=work.options.as_dict(),
        )
        if work.custom is not None and any(chunk.start is not None for chunk in work.custom):
            texts.copy(sql, file.id, file.file_version, document_id)  # edited chunks still point into it
        return document_id

    def _finish(self, sql: Connection, work: _Work, draft: _Draft, reading: Reading) -> bool:
        """All chunks are in: use what is known of them, and publish the version if it is the file's first; whether it
        is."""
        if not draft.total:
            raise EmptyDocument("文件中没有文字 / there is no text in the file")
        file, generation, document_id = work.file, work.generation, draft.document_id
        files.finish_document(sql, document_id, reading.loader, reading.warnings, draft.total)
        if generation.dimension is not None:
            chunk_rows.reuse_vectors(sql, document_id, file.id, generation.embed_model, generation.dimension)
        if generation.has_graph:
            graphs.reuse(sql, document_id, file.id)
        files.set_custom(sql, file.id, custom=work.custom is not None)
        first = files.live_document(sql, file.id, generation.id) is None
        if first:
            kbs.bump(sql, file.kb_id, files.publish(sql, document_id, file.id, generation.id))
            self._set_state(sql, file, generation, "keyword")
        return first

    def _parts(self, work: _Work, reading: Reading) -> Generator[_Part | Reached, None, None]:
        """The file, read and split; `reading` tells the rest when the last part is in."""
        if work.custom is not None:
            reading.loader = "custom"
            yield _Part(work.custom)
            return
        with self._opened(work.file) as source:
            for section, chunks in self._cut(source.blocks, work.options, work.generation.embed_model):
                if isinstance(section, Reached):
                    yield section
                    continue
                separator = BLOCK_SEPARATOR if section.offset else ""
                yield _Part(chunks, section.offset - len(separator), separator + section.text)
            reading.loader, reading.warnings = source.loader, source.warnings

    def _cut(
        self, blocks: Iterable[Block | Reached], options: SplitOptions, embed_model: str
    ) -> Iterator[tuple[Section | Reached, Sequence[Chunk]]]:
        model = self._embeddings.get(embed_model)
        cutter = splitter(options.splitter, options.chunk_size, options.chunk_overlap, model.ruler)
        titles = TitleEnhancer()
        for section in sections(blocks):
            if isinstance(section, Reached):
                yield section, ()
                continue
            with self._one_at_a_time:
                chunks = cutter.split_section(section)
            yield section, titles.enhance(chunks) if options.zh_title_enhance else chunks

    def preview(self, path: Path, name: str, options: SplitOptions, embed_model: str) -> Iterator[Chunk]:
        """The chunks that a file would have; nothing is stored.

        Raises:
            LoadError: it cannot be read.
        """
        with self.sandbox.open(path, name) as source:
            for _, chunks in self._cut(source.blocks, options, embed_model):
                yield from chunks

    @contextmanager
    def _opened(self, file: StoredFile) -> Iterator[Reading]:
        try:
            path = self._store.path(file.kb_id, file.storage or "")
            with self.sandbox.open(path, file.name, file.password) as reading:
                yield reading
        except NotFound as error:
            with self._db.read() as sql:
                self._require_version(sql, file)  # replaced since we looked: then the old bytes may be gone
            raise DamagedFile(error.message) from None

    def _require_version(self, sql: Connection, file: StoredFile) -> None:
        current = files.get(sql, file.id)
        if current is None or current.file_version != file.file_version:
            raise JobCancelled("文件已被删除或替换 / the file was deleted or replaced meanwhile")

    def _require_current(self, sql: Connection, file: StoredFile, generation: Generation) -> Generation:
        """The generation as it is now, if the file's version is still wanted there."""
        self._require_version(sql, file)
        stored = kbs.get_generation(sql, generation.id)
        if stored is None:
            raise GenerationGone("知识库已被删除或重建 / the knowledge base was deleted or rebuilt meanwhile")
        return stored

    def _set_state(
        self, sql: Connection, file: StoredFile, generation: Generation, state: str, reason: str = ""
    ) -> None:
        """Tell how far the file is, unless this is a rebuild that searchers do not see."""
        kb = kbs.get(sql, file.kb_id)
        if kb is not None and kb.generation.id == generation.id:
            files.set_state(sql, file.id, state, reason)

    # embed, publish

    def _embed(self, file: StoredFile, generation: Generation, draft: _Draft) -> Generator[Progress, None, int]:
        """Embed what has no vector yet and publish; returns the number of chunks that could not be embedded."""
        model = self._embeddings.get(generation.embed_model)
        with self._db.read() as sql:
            waiting = chunk_rows.count_without_vector(sql, draft.document_id)
        done, seen, bad = draft.total - waiting, 0, 0
        ready: dict[int, bytes] = {}
        committed = time.monotonic()
        for step in self._steps(draft.document_id):
            yield Progress(done + len(ready), draft.total)
            try:
                vectors = embed_checked(model, generation, [text for _, text, _ in step])
            except EmbeddingError:
                with self._db.write(file.kb_id) as sql:  # what was paid for is kept
                    self._add_vectors(sql, file, generation, draft, ready)
                raise
            good = np.isfinite(vectors).all(axis=1)
            ready |= {step[row][0]: pack(vectors[row]) for row in np.flatnonzero(good).tolist()}
            seen, bad = seen + len(step), bad + int((~good).sum())
            if seen < waiting and time.monotonic() - committed > _COMMIT_SECONDS:
                with self._db.write(file.kb_id) as sql:
                    self._add_vectors(sql, file, generation, draft, ready)
                done, ready, committed = done + len(ready), {}, time.monotonic()
        with self._db.write(file.kb_id) as sql:
            self._add_vectors(sql, file, generation, draft, ready)
            self._publish(sql, file, generation, draft, bad)
        yield Progress(draft.total, draft.total)
        return bad

    def _steps(self, document_id: int) -> Iterator[Sequence[tuple[int, str, bytes]]]:
        """The chunks that need a vector, as (id, text, hash), some at a time."""
        after = 0
        while True:
            with self._db.read() as sql:
                page = chunk_rows.without_vector(sql, document_id, after)
            if not page:
                return
            yield from (page[at : at + _STEP] for at in range(0, len(page), _STEP))
            after = page[-1][0]

    def _add_vectors(
        self, sql: Connection, file: StoredFile, generation: Generation, draft: _Draft, ready: Mapping[int, bytes]
    ) -> None:
        stored = self._require_current(sql, file, generation)
        if not ready:
            return
        dimension = len(next(iter(ready.values()))) // 2
        check_dimension(stored, dimension)
        if stored.dimension is None:
            kbs.set_dimension(sql, generation.id, dimension)
        chunk_rows.add_vectors(sql, ready)
        if draft.live:
            kbs.bump(sql, file.kb_id, [(min(ready), max(ready))], vectors_only=True)

    def _publish(self, sql: Connection, file: StoredFile, generation: Generation, draft: _Draft, bad: int) -> None:
        if not draft.live:
            kbs.bump(sql, file.kb_id, files.publish(sql, draft.document_id, file.id, generation.id))
        state, reason = ("partial", _skipped(bad, draft.total)) if bad else ("ready", "")
        self._set_state(sql, file, generation, state, reason)

    def _fail(self, file: StoredFile, generation: Generation, reason: str) -> None:
        with self._db.write(file.kb_id) as sql:
            files.drop_documents(sql, files.unpublished_documents(sql, file.id, generation.id, begun_only=True))
            live = files.live_document(sql, file.id, generation.id)
            current = live is not None and live.file_version == file.file_version
            self._set_state(sql, file, generation, "partial" if current else "failed", reason)


class _Batch(NamedTuple):
    """Parts that are written together once they are `full`; `seen` counts the chunks of the file up to here."""

    parts: list[_Part]
    seen: int
    full: bool
    last: bool = False


def _batches(parts: Iterator[_Part | Reached]) -> Iterator[_Batch | Reached]:
    """Parts in batches of about `_BATCH` characters, shown also while they grow; what is small is one batch."""
    gathered: list[_Part] = []
    size = seen = 0
    for part in parts:
        if isinstance(part, Reached):
            yield part
            continue
        if size > _BATCH:
            yield _Batch(gathered, seen, full=True)
            gathered, size = [], 0
        gathered.append(part)
        size += sum(len(chunk.text) for chunk in part.chunks)
        seen += len(part.chunks)
        yield _Batch(gathered, seen, full=False)
    yield _Batch(gathered, seen, full=True, last=True)


def embed_checked(model: EmbeddingModel, generation: Generation, texts: Sequence[str]) -> np.ndarray:
    """Unit vectors of passages that fit the generation, shape (n, d); NaN rows where there is none.

    Raises:
        EmbeddingError: the model failed.
        DimensionMismatch: its vectors have another length than those that the knowledge base holds.
    """
    vectors = model.embed_many(texts)
    check_dimension(generation, vectors.shape[1])
    return vectors


def check_dimension(generation: Generation, dimension: int) -> None:
    """Refuse vectors that cannot be compared with the stored ones.

    Raises:
        DimensionMismatch: names both sides and the way out.
    """
    if generation.dimension is not None and generation.dimension != dimension:
        raise DimensionMismatch(
            f"知识库的向量为 {generation.dimension} 维（{generation.embed_model}），当前模型给出 {dimension} 维；"
            f"请用 recreate_vector_store 以新模型重建 / the knowledge base holds vectors of "
            f"{generation.dimension} dimensions ({generation.embed_model}), the model now gives {dimension}; "
            f"rebuild it with recreate_vector_store and the embed_model you want"
        )


def _skipped(bad: int, total: int) -> str:
    return (
        f"{total} 个片段中有 {bad} 个无法向量化，其余可搜索 / "
        f"{bad} of {total} chunks could not be embedded; the others are searchable"
    )
