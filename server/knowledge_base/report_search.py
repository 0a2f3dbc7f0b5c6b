"""Searches by reports of communities, after GraphRAG's local, global and DRIFT search; no language model is asked.

With a language model the chat goes further (`server.chat.deep`); what is here is what it begins with, and what there is
without one: ranked findings whose chunks can be cited.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from server.domain import Fact, Finding, Found, Hit, Report, SearchOptions
from server.graph.facts import within
from server.graph.report_search import at_level, fact_of, findings_in_turn, of_entities, ranked, usable

if TYPE_CHECKING:
    from server.knowledge_base.backends.graph import GraphKBService

ReportMode = Literal["graphrag_local", "graphrag_global", "drift"]
REPORT_MODES: tuple[ReportMode, ...] = get_args(ReportMode)

_REPORTS = 20
"""Reports of a global search that may say something."""
_BESIDE = 3
"""Reports that a local search looks at beside its entities."""
_FOLLOWED, _TAKEN = 4, 10
_SOFT = 10.0
"""Softens how much a first place counts when rankings are joined (reciprocal rank fusion, Cormack et al. 2009)."""
_OWN = 2.0
"""The question's own ranking beside those of the questions that follow from it."""


class ReportSearch:
    """Searches of one knowledge base."""

    def __init__(self, service: GraphKBService) -> None:
        self._service = service

    def find(self, query: str, options: SearchOptions) -> Found:
        """The hits of a mode, with findings and facts that they bear out."""
        if options.mode == "graphrag_global":
            return self.by_reports(query, options)
        return self.local(query, options) if options.mode == "graphrag_local" else self.drift(query, options)

    def reports(self, query: str, options: SearchOptions) -> list[tuple[Report, float]]:
        """The reports of one level that a question is about, the most like it first."""
        found = self.all_reports(query, options)
        level = {one.community for one in at_level([one for one, _ in found], options.community_level)}
        return [(one, value) for one, value in found if one.community in level]

    def all_reports(self, query: str, options: SearchOptions) -> list[tuple[Report, float]]:
        """The same of all levels."""
        allowed = self._service.allowed(options.where)
        cosines = self._service.report_cosines(query, options.keywords)
        with self._service.index() as index:
            there = usable(index.reports, allowed)
        return ranked(there, cosines)

    def by_reports(self, query: str, options: SearchOptions) -> Found:
        """Findings of the reports that are most like the question, and the chunks that they cite."""
        return self.cited(query, list(findings_in_turn(self.reports(query, options)[:_REPORTS])), options)

    def cited(self, query: str, findings: Sequence[tuple[Report, Finding, float]], options: SearchOptions) -> Found:
        """The chunks that findings cite, the best finding's first, and the findings that these bear out."""
        values: dict[int, float] = {}
        for _, finding, value in findings:
            for chunk_id in finding.chunk_ids:
                values[chunk_id] = max(value, values.get(chunk_id, value))
        order = sorted(values, key=lambda chunk_id: -values[chunk_id])  # stable: findings in turn
        hits = self._service.hits_of(query, [(chunk_id, values[chunk_id]) for chunk_id in order])
        kept = hits[: options.top_k or self._service.context.settings.top_k]
        return Found(kept, facts=tuple(self.within([fact_of(report, one) for report, one, _ in findings], kept)))

    def within(self, facts: Iterable[Fact], kept: Sequence[Hit]) -> list[Fact]:
        """Of what reports say, what these hits bear out, as far as there is room for it."""
        shown = {hit.id for hit in kept}
        borne_out = (fact for fact in facts if fact.chunk_ids & shown)
        return within(borne_out, self._service.context.settings.graph_report_tokens)

    def local(self, query: str, options: SearchOptions) -> Found:
        """Entities like the question, what ties them, their chunks; and the reports of their communities."""
        found, hits = self._service.follow(query, replace(options, mode="local"))
        allowed = self._service.allowed(options.where)
        with self._service.index() as index:
            reports = of_entities(usable(index.reports, allowed), [key for key, _ in found.entities], _BESIDE)
        told = list(findings_in_turn([(report, 1.0) for report in reports]))
        kept = self._kept(hits, options, [finding for _, finding, _ in told[:_BESIDE]], query)
        facts = self._service.facts(found, kept, options.where)
        return Found(kept, facts=(*facts, *self.within([fact_of(report, one) for report, one, _ in told], kept)))

    def _kept(self, hits: Sequence[Hit], options: SearchOptions, findings: Sequence[Finding], query: str) -> list[Hit]:
        """The best hits, of which the last ones give way to the chunks of the first findings: one in three at most."""
        top_k = options.top_k or self._service.context.settings.top_k
        first = list(hits[: top_k - top_k // 3])
        known = {hit.id for hit in first}
        beside = [one.chunk_ids[0] for one in findings if one.chunk_ids and str(one.chunk_ids[0]) not in known]
        added = self._service.hits_of(query, [(chunk_id, 0.0) for chunk_id in dict.fromkeys(beside)])[: top_k // 3]
        rest = [hit for hit in hits[len(first) :] if hit.id not in {one.id for one in added}]
        return [*first, *added, *rest][:top_k]

    def drift(self, query: str, options: SearchOptions) -> Found:
        """What the question finds, and what the titles of the reports that it is about find beside it."""
        reports = self.reports(query, options)[:_FOLLOWED]
        first = self.local(query, replace(options, top_k=_TAKEN))
        found = [(first, _OWN)]
        for report, _ in reports:
            asked = f"{query} {report.title}"
            found.append((self.local(asked, replace(options, top_k=_TAKEN, keywords=SearchOptions().keywords)), 1.0))
        return joined(found, options.top_k or self._service.context.settings.top_k)


def joined(found: Sequence[tuple[Found, float]], top_k: int) -> Found:
    """Several searches as one, by the places of hits in each and the weight of the search."""
    values: defaultdict[str, float] = defaultdict(float)
    hits: dict[str, Hit] = {}
    for one, weight in found:
        for place, hit in enumerate(one.hits, start=1):
            values[hit.id] += weight / (_SOFT + place)
            hits.setdefault(hit.id, hit)
    best = sorted(hits.values(), key=lambda hit: (-values[hit.id], hit.id))[:top_k]
    placed = [
        replace(hit, ranks={**hit.ranks, "graph": place}, relevance=round(values[hit.id], 6))
        for place, hit in enumerate(best, start=1)
    ]
    shown = {hit.id for hit in placed}
    facts = dict.fromkeys(fact for one, _ in found for fact in one.facts if fact.chunk_ids & shown)
    return Found(placed, facts=tuple(facts))
