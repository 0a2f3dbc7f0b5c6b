"""Keeps the indexes of a knowledge base up with SQL, and searches them.

Every change raises the knowledge base's version and logs ranges of chunk ids. Before a search an index reads what
changed since the version that it has seen; an index that is damaged or too far behind is built anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise

import numpy as np
from sqlalchemy import Connection

from server.db import chunks as chunk_rows
from server.db import kbs
from server.db.vectors import FloatArray, unpack
from server.domain import ChangedRange, Condition, Generation, Hit, KnowledgeBase, StoredChunk
from server.errors import NotFound, StoreDown, StoreError
from server.knowledge_base.context import KBContext, Space
from server.knowledge_base.hooks import StoreHooks
from server.models.transform import SNIPPETS, EmbeddingTransform, snippets
from server.retrieval.analysis import language
from server.retrieval.hybrid import Question, StaleIndex, Wanted, retrieve
from server.retrieval.keyword import KeywordIndex, merged_ranges

log = logging.getLogger(__name__)

_FIRST_FIT = 16
"""Vectors from which on a knowledge base's own passages say something about its style."""
_GROWTH = 4
"""The transform is fitted anew when the knowledge base has grown by this factor."""


class Indexes:
    """The vector store and the keyword index of one knowledge base."""

    def __init__(self, context: KBContext, hooks: StoreHooks) -> None:
        self._context = context
        self._hooks = hooks

    def search(
        self, sql: Connection, kb: KnowledgeBase, question: Question, wanted: Wanted, where: Condition | None = None
    ) -> list[Hit]:
        """The hits of a knowledge base whose row was read in this transaction; `where` filters by metadata, before
        the candidates are chosen.

        Raises:
            StaleIndex: SQL changed in between; search again.
        """
        try:
            return self._search(sql, kb, question, wanted, where)
        except (ValueError, OSError, StoreError):
            self._require_live(kb.generation)
            raise

    def _search(
        self, sql: Connection, kb: KnowledgeBase, question: Question, wanted: Wanted, where: Condition | None
    ) -> list[Hit]:
        generation, space = kb.generation, Space.of(kb.generation)
        with self.keyword(generation) as index, self._hooks.do_init(space):
            if index.version < kb.version:
                self._bring_up(generation, lambda: self.advance_keyword(generation, index))
            if wanted.search_type != "keyword" and self._hooks.do_version(space) < kb.version:
                self._bring_up(generation, lambda: self.advance(generation))
            allowed = chunk_rows.matching(sql, generation.id, where) if where is not None else None
            sources = _Sources(sql, self._hooks, generation, index, allowed)
            return retrieve(question, sources, self.transform(generation), wanted)

    def _bring_up(self, generation: Generation, advance: Callable[[], object]) -> None:
        """Let an index read what changed; of a generation that was replaced meanwhile it would come out empty."""
        self._require_live(generation)
        advance()
        self._require_live(generation)

    def _require_live(self, generation: Generation) -> None:
        """Searches start again when another generation took over: this one's indexes are deleted then."""
        with self._context.db.read() as sql:
            if _current(sql, generation).generation.id != generation.id:
                raise StaleIndex

    def follow(self, generation: Generation, *, save: bool = False) -> None:
        """Bring both indexes to the knowledge base's version, and `save` what is worth it. A store that is out of reach
        takes up what it missed when it is back: SQL has it all."""
        with self.keyword(generation) as index:
            self.advance_keyword(generation, index)
        try:
            self.advance(generation)
            if save:
                self._hooks.do_save(Space.of(generation))
        except StoreDown as error:
            log.warning("knowledge base %s: %s", generation.kb_id, error.message)

    def catch_up(self, generation: Generation) -> None:
        """Follow, fit the transform when it is time, and save what is worth it."""
        self.refit(generation)
        self.follow(generation, save=True)

    def advance(self, generation: Generation, into: Generation | None = None) -> int:
        """Let the vector store read what changed; returns the version that it has now seen. What is read can go `into`
        the place of another generation, which is to take over its chunks."""
        space = Space.of(into or generation)
        with self._context.locks.of(space), self._hooks.do_init(space), self._context.db.read() as sql:
            kb = _current(sql, generation)
            seen = self._hooks.do_version(space)
            if seen < kb.version:
                self._load_changes(sql, generation, space, kbs.changes_since(sql, kb, seen) if seen else None)
                self._hooks.do_commit(space, kb.version)
            return kb.version

    def _load_changes(
        self, sql: Connection, generation: Generation, space: Space, changed: list[ChangedRange] | None
    ) -> None:
        transform = self.transform(generation)
        if changed is None:
            self._hooks.do_clear_vs(space)
            for page in chunk_rows.all_vectors(sql, generation.id):
                self._add(space, transform, page)
        for lo, hi in merged_ranges(changed or ()):
            kept: list[int] = []
            for page in chunk_rows.vectors_between(sql, generation.id, lo, hi):
                self._add(space, transform, page)
                kept.extend(row[0] for row in page)
            if gaps := _gaps(lo, hi, kept):
                self._hooks.do_delete_doc(space, gaps)

    def _add(self, space: Space, transform: EmbeddingTransform, page: Sequence[tuple[int, str, bytes]]) -> None:
        ids, languages, blobs = zip(*page, strict=True)
        self._hooks.do_add_doc(space, ids, transform.apply_passages(unpack(blobs), languages))

    def keyword(self, generation: Generation) -> AbstractContextManager[KeywordIndex]:
        """The keyword index of a generation, as a context."""
        path = self._context.directory(generation.kb_id, generation.id) / "keyword"
        return self._context.keyword_pool.acquire(generation.id, lambda: KeywordIndex(path))

    def advance_keyword(self, generation: Generation, index: KeywordIndex) -> None:
        """Let the keyword index read what changed."""
        with self._context.db.read() as sql:
            kb = _current(sql, generation)
            index.advance(
                kb.version,
                lambda seen: kbs.changes_since(sql, kb, seen),
                lambda: chunk_rows.all_texts(sql, generation.id),
                lambda lo, hi: chunk_rows.texts_between(sql, generation.id, lo, hi),
            )

    def transform(self, generation: Generation) -> EmbeddingTransform:
        """How this generation's raw vectors are compared."""
        base = self._context.default_transform(generation.embed_model)
        if base.is_identity or not generation.transform_no:
            return base
        return self._context.transforms.get((generation.id, generation.transform_no), lambda: self._fitted(generation))

    def _fitted(self, generation: Generation) -> EmbeddingTransform:
        with self._context.db.read() as sql:
            data = kbs.get_transform(sql, generation.id)
        return EmbeddingTransform.from_bytes(data) if data else self._context.default_transform(generation.embed_model)

    def refit(self, generation: Generation) -> bool:
        """Fit the transform to the knowledge base's own passages when it has grown enough. Stored vectors stay
        as they are: only questions are compared differently."""
        base = self._context.default_transform(generation.embed_model)
        if base.is_identity:
            return False
        with self._context.db.read() as sql:
            count = chunk_rows.count_vectors(sql, generation.id)
            if count < max(_FIRST_FIT, _GROWTH * generation.transform_size):
                return False
            sample = chunk_rows.sample_texts(sql, generation.id, SNIPPETS)
        model = self._context.embeddings.get(generation.embed_model)
        cut = snippets(sample)
        fitted = base.fit(np.stack([model.embed_query(text) for text in cut]), [language(text) for text in cut])
        with self._context.db.write(generation.kb_id) as sql:
            kbs.set_transform(sql, generation, fitted.to_bytes(), count)
        return True


def _current(sql: Connection, generation: Generation) -> KnowledgeBase:
    kb = kbs.get(sql, generation.kb_id)
    if kb is None:
        raise NotFound("知识库已被删除 / the knowledge base is gone")
    return kb


class _Sources:
    """The indexes of one generation, as retrieval takes them."""

    def __init__(
        self,
        sql: Connection,
        hooks: StoreHooks,
        generation: Generation,
        index: KeywordIndex,
        allowed: Sequence[int] | None,
    ) -> None:
        self._allowed = allowed
        self._sql = sql
        self._hooks = hooks
        self._generation = generation
        self._index = index

    def dense(self, vector: FloatArray, top_k: int) -> list[int]:
        """Ids of the nearest passages."""
        if self._allowed is not None and not self._allowed:
            return []
        return self._hooks.do_search(Space.of(self._generation), vector, top_k, self._allowed)

    def keyword(self, words: Sequence[str], top_k: int) -> list[tuple[int, float]]:
        """(id, BM25 score) of the best passages."""
        if self._allowed is not None and not self._allowed:
            return []
        return self._index.search(words, top_k, self._allowed)

    def frequencies(self, words: Sequence[str]) -> tuple[int, Mapping[str, int]]:
        """Number of passages, and in how many each term occurs."""
        return self._index.frequencies(words)

    def holding(self, words: Sequence[str], ids: Sequence[int]) -> Mapping[int, Collection[str]]:
        """Which of the question's terms each of these passages holds."""
        return self._index.holding(words, ids)

    def load(self, ids: Sequence[int]) -> Mapping[int, StoredChunk]:
        """Passages with their raw vectors."""
        return chunk_rows.by_ids(self._sql, self._generation.id, ids)


def _gaps(lo: int, hi: int, present: Sequence[int]) -> list[tuple[int, int]]:
    """The parts of a range of ids, bounds included, that hold none of the (sorted) present ones."""
    edges = [lo - 1, *present, hi + 1]
    return [(left + 1, right - 1) for left, right in pairwise(edges) if right - left > 1]
