"""KBService: what every knowledge base can do, whatever vector store it uses.

The public methods own SQL and all rules. A backend fills in the `do_…` hooks of `StoreHooks`, and `Indexes` keeps
what it holds up with SQL.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from server.db import chunks as chunk_rows
from server.db import doomed, files, kbs, texts
from server.db import jobs as job_rows
from server.db.vectors import FloatArray, pack
from server.domain import (
    Chunk,
    Condition,
    Found,
    Generation,
    Hit,
    KnowledgeBase,
    Progress,
    SearchOptions,
    StoredChunk,
    StoredFile,
)
from server.errors import AlreadyExists, Busy, EmbeddingError, InvalidRequest, NotFound, StoreDown
from server.ingest.pipeline import SplitOptions, check_dimension, embed_checked
from server.knowledge_base.context import KBContext, Space
from server.knowledge_base.hooks import StoreHooks
from server.knowledge_base.indexes import Indexes
from server.models.closeness import Closeness
from server.names import kb_label
from server.retrieval.analysis import language
from server.retrieval.hybrid import Question, SearchType, StaleIndex, Wanted, hit_of

log = logging.getLogger(__name__)

_TRIES = 5
"""How often a search is repeated when an index was behind SQL; once is enough unless files change all the time."""
_LONGEST_QUESTION = 4000
"""Characters of a question that are searched for; who pastes a book is answered by its beginning."""
NO_LIMIT = 4.0
"""The largest score there is. Who searches by keyword wants what holds the words, near or not."""


class KBService(StoreHooks):
    """One knowledge base in one vector store.

    An instance is cheap and holds no connection: make one for each request. It works on the generation
    that searchers see, or on `generation` when a rebuild hands one over. `found` is the knowledge base's
    row when the caller has just read it.
    """

    def __init__(
        self,
        knowledge_base_name: str,
        embed_model: str | None = None,
        *,
        context: KBContext,
        generation: Generation | None = None,
        found: KnowledgeBase | None = None,
    ) -> None:
        self.kb_name = kb_label(knowledge_base_name)
        self.embed_model = embed_model or context.settings.default_embed_model
        self.context = context
        self.indexes = Indexes(context, self)
        self._generation = generation
        self._found = found
        self._id = found.id if found else None

    # ---- the knowledge base itself

    def exists(self) -> bool:
        """Whether it is there."""
        with self.context.db.read() as sql:
            return kbs.find(sql, self.kb_name) is not None

    def kb(self) -> KnowledgeBase:
        """Its row as it is now.

        Raises:
            NotFound: there is none of that name.
        """
        with self.context.db.read() as sql:
            found = kbs.find(sql, self.kb_name) if self._id is None else kbs.get(sql, self._id)
        if found is None:
            raise NotFound(f"未找到知识库 {self.kb_name}")
        return found

    def generation(self) -> Generation:
        """The generation that this service works on, as it is now."""
        if self._generation is None:
            return self.kb().generation
        with self.context.db.read() as sql:
            found = kbs.get_generation(sql, self._generation.id)
        if found is None:
            raise NotFound(f"知识库 {self.kb_name} 的这次重建已不存在 / this rebuild is gone")
        return found

    def create_kb(
        self, kb_info: str | None = None, options: SplitOptions | None = None, **hidden: Any
    ) -> KnowledgeBase:
        """Make the knowledge base; `options` tell how its files are cut, `hidden` are `kind`, `parent_id` and `expires`
        of one that people do not see.

        Raises:
            AlreadyExists: the name is taken.
        """
        if not self.kb_name:
            raise NotFound("知识库名称不能为空，请重新填写知识库名称")
        self.context.embeddings.get(self.embed_model)
        chosen = (options or self.context.split_options).as_dict()
        info = kb_info or f"关于{self.kb_name}的知识库"
        taken = AlreadyExists(f"已存在同名知识库 {self.kb_name}")
        try:
            with self.context.db.write() as sql:
                if kbs.find(sql, self.kb_name, hidden.get("kind", "")):
                    raise taken
                made = kbs.create(sql, self.kb_name, info, self.vs_type(), self.embed_model, chosen, **hidden)
        except IntegrityError:
            raise taken from None
        self._id = made.id
        return made

    def split_options(self, **given: Any) -> SplitOptions:
        """How files of this knowledge base are cut; what is given and not None goes first."""
        return SplitOptions.of(self.generation().options).changed(**given)

    def set_split_options(self, options: SplitOptions) -> None:
        """Cut files that come from now on in this way; a rebuild cuts the others so."""
        generation = self.generation()
        with self.context.db.write() as sql:
            kbs.set_options(sql, generation.id, options.as_dict())

    def drop_kb(self) -> None:
        """Delete everything: rows first, which ends it for all who look, then indexes and bytes."""
        kb = self.kb()
        with self.context.db.write() as sql:
            gone = [kb, *kbs.children(sql, kb.id)]
            for one in gone:
                kbs.drop(sql, one.id)
        for one in gone:
            self.drop_vectors(one.generation)
            self.context.forget(one.id)
            self.context.files.remove_all(one.id)
        self.context.db.scrub()

    def clear_vs(self) -> None:
        """Take everything out of the search; the files stay on the server."""
        kb = self.kb()
        old = kb.generation
        with self.context.db.write() as sql:
            new = kbs.add_generation(sql, kb.id, old.vs_type, old.embed_model, old.options)
            kbs.set_generation(sql, kb.id, new)
            kbs.bump(sql, kb.id)
            for file in files.list_all(sql, kb.id):
                files.set_state(sql, file.id, "stored")
        self.drop_generation(old)

    def update_info(self, kb_info: str) -> None:
        """Change the description."""
        kb = self.kb()
        with self.context.db.write() as sql:
            kbs.set_info(sql, kb.id, kb_info)

    def list_kbs(self) -> list[str]:
        """Names of all knowledge bases, whatever their store."""
        with self.context.db.read() as sql:
            return [kb.name for kb in kbs.list_all(sql)]

    def drop_generation(self, generation: Generation) -> None:
        """Delete a generation that searchers no longer see."""
        with self.context.db.write() as sql:
            kbs.drop_generation(sql, generation.id)
        self.drop_vectors(generation)
        self.context.forget(generation.kb_id, generation.id)
        self.context.db.scrub()

    def drop_vectors(self, generation: Generation) -> None:
        """Delete what the store holds of a generation whose row is gone. A store that is out of reach does it later,
        and so does one of another kind (that of a companion)."""
        if generation.vs_type != self.vs_type():
            return
        try:
            self.do_drop_kb(Space.of(generation))
        except StoreDown as error:
            log.warning("vectors of a deleted knowledge base wait for their store: %s", error.message)
            return
        with self.context.db.write() as sql:
            doomed.remove(sql, generation.id)

    # ---- files

    def find_file(self, name: str) -> StoredFile:
        """The file of that canonical name.

        Raises:
            NotFound: the knowledge base has none.
        """
        kb = self.kb()
        with self.context.db.read() as sql:
            found = files.find(sql, kb.id, name)
        if found is None:
            raise NotFound(f"未找到文件 {name}")
        return found

    def exist_doc(self, name: str) -> bool:
        """Whether searches can find the file."""
        return name in self.list_files()

    def list_files(self) -> list[str]:
        """Names of the files that searches can find."""
        kb = self.kb()
        with self.context.db.read() as sql:
            return files.list_searchable(sql, kb.id, kb.generation.id)

    def count_files(self) -> int:
        """Number of files that searches can find."""
        return len(self.list_files())

    def add_doc(
        self, kb_file: StoredFile, docs: Sequence[Chunk] | None = None, *, options: SplitOptions | None = None
    ) -> Iterator[Progress]:
        """Make a file's bytes, or the client's own chunks for it, searchable; yields progress. `catch_up` once
        after the last file: searches would do the same, and the first of them would have to wait for it."""
        generation = self.generation()
        chosen = options or SplitOptions.of(generation.options)
        yield from self.context.pipeline.ingest(kb_file, generation, chosen, docs)

    def delete_doc(self, kb_file: StoredFile, *, delete_content: bool = False) -> None:
        """Take a file out of the search, and off the server when `delete_content`; `settle` once afterwards."""
        context = self.context
        with context.db.write(kb_file.kb_id) as sql:
            job_rows.forget_file(sql, kb_file.id)
            gone = files.drop_documents(sql, files.all_documents(sql, kb_file.id))
            if delete_content:
                files.remove(sql, kb_file.id)
            else:
                files.retire(sql, kb_file.id)
            kbs.bump(sql, kb_file.kb_id, gone)
        if delete_content:
            context.files.remove(kb_file.kb_id, kb_file.storage)

    # ---- chunks

    def list_docs(
        self, file_names: Iterable[str] | None = None, metadata: Mapping[str, Any] | None = None
    ) -> list[Hit]:
        """Chunks of some files (None = all) whose metadata hold these values, in reading order."""
        generation = self.generation()
        with self.context.db.read() as sql:
            found = chunk_rows.of_files(sql, generation.id, file_names)
        hits = [self._hit(chunk) for chunk in found]
        return [hit for hit in hits if _matches(hit, metadata or {})]

    def list_docs_like(self, pattern: str, metadata: Mapping[str, Any] | None = None) -> list[Hit]:
        """Chunks of the files whose name fits a pattern, where `%` stands for any characters and `_` for one; case
        does not count."""
        generation = self.generation()
        with self.context.db.read() as sql:
            names = files.list_like(sql, generation.kb_id, pattern)
        return self.list_docs(names, metadata)

    def page_of_docs(self, file_name: str | None, offset: int, limit: int) -> tuple[int, list[Hit]]:
        """(number of all, one page) of the chunks of a file, or of all files, in reading order; disabled ones too."""
        generation = self.generation()
        with self.context.db.read() as sql:
            total, found = chunk_rows.page_of(sql, generation.id, file_name, offset, limit)
        return total, [self._hit(chunk) for chunk in found]

    def _hit(self, chunk: StoredChunk) -> Hit:
        return replace(hit_of(chunk), kb_name=self.kb_name)

    def get_doc_by_ids(self, ids: Iterable[int]) -> list[Hit]:
        """Chunks with these ids, in the order of the ids; missing ones are left out."""
        wanted = list(ids)
        generation = self.generation()
        with self.context.db.read() as sql:
            found = chunk_rows.by_ids(sql, generation.id, wanted, disabled=True)
        return [self._hit(found[chunk_id]) for chunk_id in wanted if chunk_id in found]

    def read_text(self, file_name: str, start: int, end: int) -> tuple[str, int]:
        """(characters of a file's canonical text from one offset to another, length of the whole).

        Raises:
            NotFound: there is no such file, or searches cannot find it.
        """
        file, generation = self.find_file(file_name), self.generation()
        with self.context.db.read() as sql:
            document = files.live_document(sql, file.id, generation.id)
            if document is None:
                raise NotFound(f"文件 {file.name} 没有可供查看的文本 / there is no text of {file.name} yet")
            return texts.read(sql, document.id, start, end), texts.length(sql, document.id)

    def enable_docs(self, ids: Sequence[int], *, enabled: bool) -> None:
        """Let searches find chunks, or not; they stay where they are.

        Raises:
            NotFound: an id is not in this knowledge base.
        """
        kb = self.kb()
        with self.context.db.write(kb.id) as sql:
            present = _present(sql, kb, ids)
            chunk_rows.set_enabled(sql, ids, enabled=enabled)
            _keep_edits(sql, present.values())
            kbs.bump(sql, kb.id, [(chunk_id, chunk_id) for chunk_id in ids])
        self.settle()

    def del_doc_by_ids(self, ids: Iterable[int]) -> None:
        """Delete single chunks."""
        self.update_doc_by_ids(dict.fromkeys(ids))

    def update_doc_by_ids(self, docs: Mapping[int, Chunk | None]) -> None:
        """Edit chunks in place, or delete those mapped to None; all or nothing. Only they are embedded anew.

        Raises:
            NotFound: an id is not in this knowledge base.
            EmbeddingError: a new text cannot be embedded.
        """
        kb = self.kb()
        edits = {chunk_id: chunk for chunk_id, chunk in docs.items() if chunk is not None}
        with self.context.db.read() as sql:
            before = _present(sql, kb, docs)
        fresh = {chunk_id: chunk for chunk_id, chunk in edits.items() if chunk.text != before[chunk_id].text}
        vectors = self._embed_edits(kb.generation, fresh)
        with self.context.db.write(kb.id) as sql:
            present = _present(sql, kb, docs)
            for chunk_id, chunk in edits.items():
                chunk_rows.set_metadata(sql, chunk_id, chunk.metadata)
                if chunk_id in vectors:
                    chunk_rows.edit(sql, chunk_id, chunk.text, language(chunk.text), vectors[chunk_id])
            if gone := [chunk_id for chunk_id in docs if chunk_id not in edits]:
                chunk_rows.remove(sql, gone)
            _keep_edits(sql, present.values())
            kbs.bump(sql, kb.id, [(chunk_id, chunk_id) for chunk_id in docs])
        self.settle()

    def edit_doc(
        self, chunk_id: int, text: str | None, metadata: Mapping[str, Any] | None, enabled: bool | None
    ) -> Hit:
        """Change a chunk's text or metadata, or whether searches find it; what is None stays as it is.

        Raises:
            NotFound: it is not in this knowledge base.
            EmbeddingError: a new text cannot be embedded.
        """
        found = self.get_doc_by_ids([chunk_id])
        if not found:
            raise NotFound(f"没有这些片段 / no such chunks: {chunk_id}")
        if text is not None or metadata is not None:
            chosen = dict(found[0].metadata if metadata is None else metadata)
            self.update_doc_by_ids({chunk_id: Chunk(found[0].text if text is None else text, metadata=chosen)})
        if enabled is not None and enabled != found[0].enabled:
            self.enable_docs([chunk_id], enabled=enabled)
        return self.get_doc_by_ids([chunk_id])[0]

    def _embed_edits(self, generation: Generation, edits: Mapping[int, Chunk]) -> dict[int, bytes]:
        if not edits:
            return {}
        model = self.context.embeddings.get(generation.embed_model)
        vectors = embed_checked(model, generation, [chunk.text for chunk in edits.values()])
        if not np.isfinite(vectors).all():
            raise EmbeddingError("新内容无法向量化 / the new text cannot be embedded")
        return {chunk_id: pack(vector) for chunk_id, vector in zip(edits, vectors, strict=True)}

    # ---- search

    def search_docs(
        self,
        query: str,
        top_k: int | None = None,
        score_threshold: float | None = None,
        search_type: str | None = None,
        where: Condition | None = None,
        mode: str | None = None,
    ) -> list[Hit]:
        """The chunks that answer a query best, at most `top_k`, best first; none when it is about something else.
        `where` filters by metadata before anything is ranked.

        `score_threshold` is the largest score that is kept (0 = identical … 4 = no limit). Above the
        configured threshold the caller takes everything, small talk included.

        Raises:
            NotFound: no such knowledge base.
            InvalidRequest: a mode that follows a graph, where there is none.
            DimensionMismatch: the embedding model no longer fits the stored vectors.
        """
        if mode not in (None, "naive", "basic"):
            raise InvalidRequest(
                f"知识库 {self.kb_name} 没有图谱，mode 只能是 naive / "
                f"this knowledge base has no graph, so mode can only be naive; make one with vector_store_type graph"
            )
        settings = self.context.settings
        kind: SearchType = search_type or settings.search_type  # type: ignore[assignment]  # checked at the edge
        limit = NO_LIMIT if kind == "keyword" else settings.score_threshold
        threshold = limit if score_threshold is None else score_threshold
        wanted = Wanted(top_k or settings.top_k, threshold, kind, gate=threshold <= settings.score_threshold)
        asked_with = self._found or self.kb()
        query = query[:_LONGEST_QUESTION]
        question = Question.of(query, self._query_vector(asked_with.generation, query, required=kind != "keyword"))
        for _ in range(_TRIES):
            with self.context.db.read() as sql:
                kb = kbs.get(sql, asked_with.id)
                if kb is None:
                    raise NotFound(f"未找到知识库 {self.kb_name}")
                if _differ(kb.generation, asked_with.generation):
                    return KBService.search_docs(self._again(kb), query, top_k, score_threshold, search_type, where)
                try:
                    hits = self.indexes.search(sql, kb, question, wanted, where)
                    return [replace(hit, kb_name=self.kb_name) for hit in hits]
                except StaleIndex:
                    continue
        raise Busy("索引正在更新，请重试 / the index is changing too fast, try again")

    def find(self, query: str, options: SearchOptions) -> Found:
        """What `search_docs` finds, and what a graph says beside it."""
        return Found(self.search_docs(
            query, options.top_k, options.score_threshold, options.search_type, options.where, options.mode
        ))  # fmt: skip

    def closeness(self, query: str, texts: Sequence[str]) -> list[float]:
        """How near each of these texts is to a question, as the cosine of their vectors; nothing is stored."""
        generation = self.generation()
        model = self.context.embeddings.get(generation.embed_model)
        return Closeness(lambda: model, self.indexes.transform(generation))(query, texts)

    def _again(self, kb: KnowledgeBase) -> KBService:
        """The service of a knowledge base that got another model or store meanwhile."""
        from server.knowledge_base.factory import KBServiceFactory  # which knows all services, and so this one

        return KBServiceFactory.get_service_of(kb)

    def _query_vector(self, generation: Generation, query: str, *, required: bool) -> FloatArray | None:
        if generation.dimension is None:
            return None
        try:
            raw = self.context.embeddings.get(generation.embed_model).embed_query(query)
        except EmbeddingError:
            if required:
                raise
            return None  # a search by keyword works without the model; its hits have no score then
        check_dimension(generation, raw.shape[0])
        return raw

    # ---- the indexes

    def catch_up(self) -> None:
        """Bring the indexes to what SQL says, and save what is worth it; after the last of many files."""
        self.indexes.catch_up(self.generation())

    def settle(self) -> None:
        """After deletions: let the indexes and the disk forget now what searches no longer find."""
        self.indexes.follow(self.generation())
        self.context.db.scrub()

    def save_vector_store(self) -> None:
        """Write the vector index to disk now, if it lives in memory."""
        generation = self.generation()
        self.indexes.advance(generation)
        self.do_save(Space.of(generation), force=True)


def _matches(hit: Hit, wanted: Mapping[str, Any]) -> bool:
    """Whether a chunk has these values, in its own metadata or in its place in the source."""
    shown = {**hit.metadata, "source": hit.file_name, "id": hit.id, "page": hit.page}
    return all(shown.get(key) == value for key, value in wanted.items())


def _present(sql: Connection, kb: KnowledgeBase, ids: Iterable[int]) -> dict[int, StoredChunk]:
    """The chunks with these ids, all of them."""
    wanted = list(ids)
    present = chunk_rows.by_ids(sql, kb.generation.id, wanted, disabled=True)
    if missing := [str(chunk_id) for chunk_id in wanted if chunk_id not in present]:
        raise NotFound(f"没有这些片段 / no such chunks: {', '.join(missing)}")
    return present


def _differ(one: Generation, other: Generation) -> bool:
    """Whether a question has to be embedded anew, or asked in another store."""
    return (one.embed_model, one.vs_type) != (other.embed_model, other.vs_type)


def _keep_edits(sql: Connection, edited: Iterable[StoredChunk]) -> None:
    """Chunks that people edited survive a rebuild as chunks that a client supplied do; a file that has lost all of
    them is no longer searched."""
    for document_id in {chunk.document_id for chunk in edited}:
        info = files.document(sql, document_id)
        if info is not None:
            files.forget_kept(sql, info.file_id)
        if info is not None and info.chunk_count:
            files.set_custom(sql, info.file_id, custom=True)
        elif info is not None:
            files.drop_documents(sql, [document_id])
            files.retire(sql, info.file_id)
