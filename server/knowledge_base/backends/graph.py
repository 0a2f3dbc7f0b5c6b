"""A knowledge base with a graph over its chunks; its vectors lie in any other store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

from typing_extensions import override

from server.db import chunks as chunk_rows
from server.db import graph_reports, graphs, kbs
from server.db import jobs as job_rows
from server.db.graphs import BuildState
from server.db.vectors import FloatArray
from server.domain import Condition, Fact, Found, Generation, GraphOptions, Hit, Keywords, SearchOptions
from server.graph.facts import claim_facts, entity_facts, relation_facts, within
from server.graph.graph import Graph
from server.graph.index import GraphIndex
from server.graph.search import GRAPH_MODES, NEAREST, GraphFound, GraphMode, GraphSearch, entities_named
from server.graph.vectors import GraphVectors, Near
from server.knowledge_base.context import Space
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.graph_builds import GRAPH, graph_options, queue_build, state_of
from server.knowledge_base.graph_edits import GraphEditor
from server.knowledge_base.graph_made import forget_edits, forget_reports, forget_summaries, forget_vectors, opened
from server.knowledge_base.report_search import REPORT_MODES, ReportSearch
from server.knowledge_base.service import NO_LIMIT, KBService
from server.retrieval.analysis import language
from server.retrieval.hybrid import Question, scored

_TEXT_HITS = 50
"""Passages that the text search gives a graph search to begin with."""


class GraphKBService(KBService):
    """Text search as everywhere, and searches that follow the graph (`mode` local, global, hybrid …)."""

    def vs_type(self) -> str:
        """The backend's name."""
        return "graph"

    @cached_property
    def _store(self) -> KBService:
        return KBServiceFactory.get_service(self.kb_name, self.context.settings.graph_vector_store, self.embed_model)

    # ---- the graph

    @contextmanager
    def graph(self) -> Iterator[Graph]:
        """The graph as SQL has it now; hold it for a short while only.

        Raises:
            NotFound: no such knowledge base.
        """
        with opened(self.context, self.kb()) as index:
            yield index.graph

    def index(self) -> AbstractContextManager[GraphIndex]:
        """The graph with the summaries of its entities."""
        return opened(self.context, self.kb())

    @property
    def editor(self) -> GraphEditor:
        """What changes the graph by hand."""
        return GraphEditor(self.context, self.kb())

    @override
    def search_docs(
        self,
        query: str,
        top_k: int | None = None,
        score_threshold: float | None = None,
        search_type: str | None = None,
        where: Condition | None = None,
        mode: str | None = None,
    ) -> list[Hit]:
        """As everywhere; with a `mode` of GRAPH_MODES, chunks in the order in which the graph leads to them. No hit is
        dropped for its score then unless a threshold is given: what is two steps away need not be like the question."""
        if mode not in (*GRAPH_MODES, *REPORT_MODES):
            return super().search_docs(query, top_k, score_threshold, search_type, where)
        return self.find(query, SearchOptions(top_k, score_threshold, search_type, where, mode=mode)).hits

    @override
    def find(self, query: str, options: SearchOptions) -> Found:
        """As everywhere; with a mode of GRAPH_MODES also what the graph says of the entities and relations that it
        follows, with one of REPORT_MODES what reports say, where the hits bear it out."""
        if options.mode in REPORT_MODES:
            return ReportSearch(self).find(query, options)
        if options.mode not in GRAPH_MODES:
            return super().find(query, options)
        found, hits = self.follow(query, options)
        limit = NO_LIMIT if options.score_threshold is None else options.score_threshold
        kept = [hit for hit in hits if hit.score is None or hit.score <= limit]
        kept = kept[: options.top_k or self.context.settings.top_k]
        return Found(kept, facts=tuple(self.facts(found, kept, options.where)))

    def facts(self, found: GraphFound, kept: Sequence[Hit], where: Condition | None) -> list[Fact]:
        """What is said of the entities and relations that a search found and its hits bear out, as far as there is room
        for it."""
        allowed, shown, settings = self.allowed(where), {int(hit.id) for hit in kept}, self.context.settings
        with self.index() as index:
            entities = entity_facts(index.graph, index.summaries, found, shown, allowed)
            relations = relation_facts(index.graph, found, shown, allowed)
            claims = claim_facts(index.graph, found, shown, allowed)
            return [
                *within(entities, settings.graph_entity_tokens), *within(relations, settings.graph_relation_tokens),
                *within(claims, settings.graph_claim_tokens),
            ]  # fmt: skip

    def report_cosines(self, query: str, keywords: Keywords) -> dict[str, float]:
        """How like a question each report is, by community; empty without an embedding model."""
        generation = self.generation()
        vectors = self._question_vectors(generation, query, keywords)
        with self.index() as index:
            return self._vectors(index, generation).report_cosines(vectors[1]) if vectors else {}

    def hits_of(self, query: str, chunks: Sequence[tuple[int, float]]) -> list[Hit]:
        """Chunks by id with their values, in their order, as hits of a question."""
        return self._hits(self.generation(), query, chunks[:_TEXT_HITS], ())

    def follow(self, query: str, options: SearchOptions) -> tuple[GraphFound, list[Hit]]:
        """What a graph mode finds, and its best chunks; nothing when the question is about something else: no passage
        is near it, and it names no entity."""
        kb, where, mode = self.kb(), options.where, cast(GraphMode, options.mode)
        allowed, score_threshold = self.allowed(where), options.score_threshold
        text = super().search_docs(query, _TEXT_HITS, score_threshold, None, where)
        if not text:
            with opened(self.context, kb) as index:
                if not (options.keywords.low or entities_named(index.graph, query, allowed)):
                    return GraphFound([], [], []), []
            text = super().search_docs(query, _TEXT_HITS, NO_LIMIT, None, where)
        seeds = [(int(hit.id), hit.relevance or 0.0) for hit in text]
        vectors = self._question_vectors(kb.generation, query, options.keywords)
        with opened(self.context, kb) as index:
            near = (
                self._vectors(index, kb.generation).near(index.graph, vectors, NEAREST, allowed) if vectors else Near()
            )
            named = options.keywords.low
            found = GraphSearch(index.graph, query, seeds, allowed, named=named, near=near).run(mode)
        # a threshold may drop some
        count = _TEXT_HITS if score_threshold is not None else options.top_k or self.context.settings.top_k
        return found, self._hits(kb.generation, query, found.chunks[:count], text)

    def _vectors(self, index: GraphIndex, generation: Generation) -> GraphVectors:
        return index.vectors.arranged(self.context.default_transform(generation.embed_model))

    def _question_vectors(
        self, generation: Generation, query: str, keywords: Keywords
    ) -> tuple[FloatArray, FloatArray] | None:
        """Unit vectors, shape (d,), of what is asked about entities and about themes; None without a model."""
        transform = self.indexes.transform(generation)
        vectors = []
        for words in (keywords.low, keywords.high):
            text = ", ".join(words) or query
            raw = self._query_vector(generation, text, required=False)
            if raw is None:
                return None
            vectors.append(transform.apply_query(raw, language(text)))
        return vectors[0], vectors[1]

    def allowed(self, where: Condition | None) -> set[int] | None:
        """The chunks that meet a condition; None for all."""
        if where is None:
            return None
        generation = self.generation()
        with self.context.db.read() as sql:
            return set(chunk_rows.matching(sql, generation.id, where))

    def _hits(
        self, generation: Generation, query: str, chunks: Sequence[tuple[int, float]], text: Sequence[Hit]
    ) -> list[Hit]:
        known = {hit.id: hit for hit in text}
        best = [chunk_id for chunk_id, _ in chunks]
        if strange := [chunk_id for chunk_id in best if str(chunk_id) not in known]:
            with self.context.db.read() as sql:
                rows = chunk_rows.by_ids(sql, generation.id, strange)
            question = Question.of(query, self._query_vector(generation, query, required=False))
            fresh = scored(question, list(rows.values()), self.indexes.transform(generation))
            known |= {hit.id: replace(hit, kb_name=self.kb_name) for hit in fresh}
        values = dict(chunks)
        ranked = [known[str(chunk_id)] for chunk_id in best if str(chunk_id) in known]
        return [
            replace(hit, ranks={**hit.ranks, "graph": place}, relevance=round(values[int(hit.id)], 6))
            for place, hit in enumerate(ranked, start=1)
        ]

    def build_state(self) -> tuple[BuildState, dict[str, BuildState], bool, str]:
        """(how far it is in all, the same by file, whether it is being built, why the last build ended too early)."""
        kb = self.kb()
        with self.context.db.read() as sql:
            last = job_rows.last(sql, kb.id, GRAPH)
            reason = last.reason if last and last.state == "failed" else ""
            by_file = graphs.states(sql, kb.generation.id)
            return state_of(sql, kb), by_file, bool(job_rows.active(sql, kb.id, GRAPH)), reason

    def retry_build(self) -> int:
        """Read failed chunks again, write reports again that had to do without their model, and go on where a build had
        ended; returns the number of chunks that failed."""
        kb = self.kb()
        with self.index() as index:
            degraded = [one.report.community for one in index.reports if one.report.degraded]
        with self.context.db.write() as sql:
            count = graphs.forget_failures(sql, kb.generation.id)
            graph_reports.drop(sql, kb.generation.id, degraded)
            queue_build(sql, self.context, kb, again=True)
        return count

    def options(self) -> GraphOptions:
        """How its chunks are read."""
        return graph_options(self.context, self.kb())

    def set_options(self, given: Mapping[str, Any], recipe: str | None = None) -> GraphOptions:
        """Read chunks that come from now on in another way, in which what is not given stays; with a `recipe` also
        those that were read in any other. What was left to do goes on."""
        kb = self.kb()
        options = dict(kb.graph_options) | dict(given)
        with self.context.db.write() as sql:
            if recipe is not None:
                graphs.forget(sql, kb.generation.id, recipe)
                options["readings"] = options.get("readings", 0) + 1
            kbs.set_graph_options(sql, kb.id, options)
            graphs.bump(sql, kb.generation.id)
            changed = replace(kb, graph_options=options)
            queue_build(sql, self.context, changed, again=True)  # reports may have another writer now
        return graph_options(self.context, changed)

    def sizes(self, *, again: bool = False) -> tuple[int, int, int]:
        """(chunks that are to be read, or all, their characters, the Chinese ones among them)."""
        generation = self.generation()
        with self.context.db.read() as sql:
            return graphs.sizes(sql, generation.id, again=again)

    @override
    def settle(self) -> None:
        """After deletions and edits: also read for the graph what is new."""
        kb = self.kb()
        with self.context.db.write() as sql:
            forget_edits(sql, kb)
        forget_summaries(self.context, kb)
        forget_reports(self.context, kb)
        forget_vectors(self.context, kb)
        with self.context.db.write() as sql:
            queue_build(sql, self.context, kb, again=True)
        super().settle()  # also scrubs the disk of what was forgotten

    # ---- the vectors

    def do_init(self, space: Space) -> AbstractContextManager[Any]:
        """As the store that holds the vectors."""
        return self._store.do_init(space)

    def do_version(self, space: Space) -> int:
        """As the store that holds the vectors."""
        return self._store.do_version(space)

    def do_commit(self, space: Space, version: int) -> None:
        """As the store that holds the vectors."""
        self._store.do_commit(space, version)

    def do_add_doc(self, space: Space, ids: Sequence[int], vectors: FloatArray) -> None:
        """As the store that holds the vectors."""
        self._store.do_add_doc(space, ids, vectors)

    def do_delete_doc(self, space: Space, ranges: Sequence[tuple[int, int]]) -> None:
        """As the store that holds the vectors."""
        self._store.do_delete_doc(space, ranges)

    def do_search(
        self, space: Space, vector: FloatArray, top_k: int, allowed: Sequence[int] | None = None
    ) -> list[int]:
        """As the store that holds the vectors."""
        return self._store.do_search(space, vector, top_k, allowed)

    def do_ids(self, space: Space) -> Iterable[int]:
        """As the store that holds the vectors."""
        return self._store.do_ids(space)

    def do_clear_vs(self, space: Space) -> None:
        """As the store that holds the vectors."""
        self._store.do_clear_vs(space)

    def do_drop_kb(self, space: Space) -> None:
        """As the store that holds the vectors, and the graph in memory goes."""
        self._store.do_drop_kb(space)
        self.context.graph_pool.pop(space.generation_id)

    def do_save(self, space: Space, *, force: bool = False) -> None:
        """As the store that holds the vectors."""
        self._store.do_save(space, force=force)
