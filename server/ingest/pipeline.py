"""From a file's bytes to searchable chunks: load, split, add, embed, publish.

Searchers see the old version of a file until the new one is complete. A file that has no version yet is
visible as soon as its chunks are in, so that it is found by keyword while its vectors are on the way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection

from server.db import chunks as chunk_rows
from server.db import files, kbs, texts
from server.db.session import Database
from server.db.vectors import pack
from server.domain import Chunk, Generation, LoadedDocument, Progress, StoredFile
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
from server.ingest.sandbox import Sandbox
from server.ingest.splitters.factory import splitter
from server.ingest.splitters.zh_title import enhance_titles
from server.models.embeddings import EmbeddingModel, EmbeddingModels
from server.retrieval.analysis import language

_STEP = 64
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

    def as_dict(self) -> dict[str, Any]:
        """For a job or a generation to remember."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A version that was written to SQL; `live` says whether searchers see it already."""

    document_id: int
    live: bool
    total: int


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
            draft = self._resume(file, generation, job_id) or self._write(file, generation, options, custom, job_id)
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

    def _write(
        self,
        file: StoredFile,
        generation: Generation,
        options: SplitOptions,
        custom: Sequence[Chunk] | None,
        job_id: int | None,
    ) -> _Draft:
        loaded, parts = self._chunks(file, options, custom)
        languages = [language(part.text) for part in parts]
        with self._db.write() as sql:
            self._require_current(sql, file, generation)
            stale = files.unpublished_documents(sql, file.id, generation.id)
            files.drop_documents(sql, stale)
            document_id = files.add_document(
                sql,
                kb_id=file.kb_id,
                file_id=file.id,
                generation_id=generation.id,
                file_version=file.file_version,
                job_id=job_id,
                loader=loaded.loader,
                splitter=options.splitter,
                options=options.as_dict(),
                warnings=list(loaded.warnings),
                chunk_count=len(parts),
            )
            texts.add(sql, document_id, (block.text for block in loaded.blocks))
            if custom is not None and any(part.start is not None for part in custom):
                texts.copy(sql, file.id, file.file_version, document_id)  # edited chunks still point into it
            chunk_rows.add(sql, file.kb_id, document_id, parts, languages)
            self._reuse(sql, file, generation, document_id)
            files.set_custom(sql, file.id, custom=custom is not None)
            first = files.live_document(sql, file.id, generation.id) is None
            if first:
                kbs.bump(sql, file.kb_id, files.publish(sql, document_id, file.id, generation.id))
                self._set_state(sql, file, generation, "keyword")
        return _Draft(document_id, first, len(parts))

    def _chunks(
        self, file: StoredFile, options: SplitOptions, custom: Sequence[Chunk] | None
    ) -> tuple[LoadedDocument, Sequence[Chunk]]:
        if custom is not None:
            return LoadedDocument(blocks=(), loader="custom"), _not_empty(custom)
        loaded = self._load(file)
        cutter = splitter(options.splitter, options.chunk_size, options.chunk_overlap)
        with self._one_at_a_time:
            parts: Sequence[Chunk] = cutter.split(loaded)
            if options.zh_title_enhance:
                parts = enhance_titles(parts)
        return loaded, _not_empty(parts)

    def _load(self, file: StoredFile) -> LoadedDocument:
        try:
            return self.sandbox.load(self._store.path(file.kb_id, file.storage or ""), file.name, file.password)
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

    def _reuse(self, sql: Connection, file: StoredFile, generation: Generation, document_id: int) -> None:
        waiting = chunk_rows.without_vector(sql, document_id)
        if generation.dimension is None:
            return
        known = chunk_rows.known_vectors(
            sql, file.id, generation.embed_model, generation.dimension, (digest for _, _, digest in waiting)
        )
        chunk_rows.add_vectors(sql, {chunk_id: known[digest] for chunk_id, _, digest in waiting if digest in known})

    # embed, publish

    def _embed(self, file: StoredFile, generation: Generation, draft: _Draft) -> Generator[Progress, None, int]:
        """Embed what has no vector yet and publish; returns the number of chunks that could not be embedded."""
        with self._db.read() as sql:
            waiting = chunk_rows.without_vector(sql, draft.document_id)
        model = self._embeddings.get(generation.embed_model)
        done, bad = draft.total - len(waiting), 0
        ready: dict[int, bytes] = {}
        committed = time.monotonic()
        for at in range(0, len(waiting), _STEP):
            yield Progress(done + len(ready), draft.total)
            step = waiting[at : at + _STEP]
            try:
                vectors = embed_checked(model, generation, [text for _, text, _ in step])
            except EmbeddingError:
                with self._db.write() as sql:  # what was paid for is kept
                    self._add_vectors(sql, file, generation, draft, ready)
                raise
            good = np.isfinite(vectors).all(axis=1)
            ready |= {step[row][0]: pack(vectors[row]) for row in np.flatnonzero(good)}
            bad += int((~good).sum())
            if at + _STEP < len(waiting) and time.monotonic() - committed > _COMMIT_SECONDS:
                with self._db.write() as sql:
                    self._add_vectors(sql, file, generation, draft, ready)
                done, ready, committed = done + len(ready), {}, time.monotonic()
        with self._db.write() as sql:
            self._add_vectors(sql, file, generation, draft, ready)
            self._publish(sql, file, generation, draft, bad)
        yield Progress(draft.total, draft.total)
        return bad

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
        with self._db.write() as sql:
            live = files.live_document(sql, file.id, generation.id)
            current = live is not None and live.file_version == file.file_version
            self._set_state(sql, file, generation, "partial" if current else "failed", reason)


def _not_empty(parts: Sequence[Chunk]) -> Sequence[Chunk]:
    if not parts:
        raise EmptyDocument("文件中没有文字 / there is no text in the file")
    return parts


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
