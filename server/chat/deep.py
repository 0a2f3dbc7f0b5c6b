"""Searches that ask a language model on the way: GraphRAG's global search (map, rate) and DRIFT (primer, follow-ups).

What they find are passages and points with the passages that bear them out; the answer is written from these as any
other, with citations that are checked. Where the model fails or takes too long, the search without it stands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from server.chat.parts import Step
from server.domain import Fact, Finding, Found, Report, SearchOptions
from server.errors import ZhikuError
from server.graph.replies import cleaned, read_object
from server.graph.report_search import REPORT
from server.knowledge_base.backends.graph import GraphKBService
from server.knowledge_base.gates import Gates
from server.knowledge_base.report_search import ReportSearch, joined
from server.models.chat import ChatModel, Message
from server.prompts import Prompts
from server.retrieval.analysis import language
from server.tokens import estimate_tokens

log = logging.getLogger(__name__)

POINTS, DRIFT, RATING = "graph_points", "graph_drift", "graph_rating"
DEEP_MODES = ("graphrag_global", "drift")
"""Modes that ask a model on the way."""
Tell = Callable[[Step], None]

_REPORTS, _BATCH = 40, 3000
"""Reports that are mapped at most, and tokens of them in one call."""
_PRIMER, _DEPTH, _FOLLOW_UPS, _PASSAGES = 6, 2, 4, 6
_PATIENCE = 90.0
"""Seconds for one call; without an answer the search goes on without it."""
_LONGEST = 700
_HELPS = 1
"""Of 5, what a report must be rated to be looked at; as GraphRAG has it."""
_INTEGERS = {"type": "array", "items": {"type": "integer"}}
_POINT = {"text": {"type": "string"}, "score": {"type": "number"}, "sources": _INTEGERS}
_POINTS_SCHEMA: dict[str, Any] = {
    "type": "object", "additionalProperties": False, "required": ["points"],
    "properties": {"points": {"type": "array", "items": {
        "type": "object", "additionalProperties": False, "required": list(_POINT), "properties": _POINT,
    }}},
}  # fmt: skip
_ANSWER = {
    "answer": {"type": "string"}, "score": {"type": "number"}, "sources": _INTEGERS,
    "follow_ups": {"type": "array", "items": {"type": "string"}},
}  # fmt: skip
_ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object", "additionalProperties": False, "required": list(_ANSWER), "properties": _ANSWER,
}  # fmt: skip


_RATING = {"number": {"type": "integer"}, "score": {"type": "number"}}
_RATINGS_SCHEMA: dict[str, Any] = {
    "type": "object", "additionalProperties": False, "required": ["ratings"],
    "properties": {"ratings": {"type": "array", "items": {
        "type": "object", "additionalProperties": False, "required": list(_RATING), "properties": _RATING,
    }}},
}  # fmt: skip


class Statement(NamedTuple):
    """What a model is shown under a number, and the chunks that bear it out."""

    text: str
    chunk_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """What a model made of statements; `score` is from 0 to 1."""

    text: str
    score: float
    chunk_ids: tuple[int, ...]


class DeepSearch:
    """Searches of one knowledge base with one model."""

    def __init__(self, service: GraphKBService, model: ChatModel, prompts: Prompts, gates: Gates, tell: Tell) -> None:
        self._service = service
        self._model = model
        self._prompts = prompts
        self._gates = gates
        self._tell = tell
        self._reports = ReportSearch(service)

    async def find(self, question: str, options: SearchOptions) -> Found:
        """The passages and points of a mode."""
        if options.mode == "drift":
            return await self._drift(question, options)
        return await self._global(question, options)

    async def _found(self, work: Callable[[], Found]) -> Found:
        return await self._gates.run(self._service.kb_name, work)

    async def _like(self, question: str, options: SearchOptions, count: int) -> list[Report]:
        """The reports that are most like a question."""
        reports = await self._gates.run(self._service.kb_name, lambda: self._reports.reports(question, options)[:count])
        return [report for report, _ in reports]

    # ---- global

    async def _global(self, question: str, options: SearchOptions) -> Found:
        """Points of all batches of reports, the most helpful first, with the passages that they rest on."""
        chosen = (
            self._chosen(question, options) if options.dynamic_selection else self._like(question, options, _REPORTS)
        )
        batches = _batches(await chosen)
        points: list[Point] = []
        for done, asked in enumerate(asyncio.as_completed([self._points(question, one) for one in batches]), start=1):
            points += await asked
            self._tell(Step("reports", done, len(batches)))
        points.sort(key=lambda one: (-one.score, one.text))
        if not points:
            return await self._found(lambda: self._reports.by_reports(question, options))
        findings = [(_NOBODY, Finding("", one.text, one.chunk_ids), one.score) for one in points]
        return await self._found(lambda: self._reports.cited(question, findings, options))

    async def _chosen(self, question: str, options: SearchOptions) -> list[Report]:
        """The reports that the model rates as helpful, from the widest down: one gives way to its helpful parts, and
        where none of a level helps its parts are looked at all the same (dynamic community selection, as GraphRAG has
        it). Of each level those that are most like the question are rated."""
        found = await self._gates.run(self._service.kb_name, lambda: self._reports.all_reports(question, options))
        ranked, kept = [report for report, _ in found], dict[str, Report]()
        open_ones = [report for report in ranked if not report.parent]
        for level in range(options.community_level + 1):
            if not (rated := open_ones[:_REPORTS]):
                break
            helpful = await self._helpful(question, rated)
            self._tell(Step("selection", level + 1, options.community_level + 1))
            kept |= {report.community: report for report in helpful}
            for report in helpful:
                kept.pop(report.parent, None)
            above = {report.community for report in helpful or rated}
            open_ones = [report for report in ranked if report.parent in above]
        return list(kept.values())[:_REPORTS] or await self._like(question, options, _REPORTS)

    async def _helpful(self, question: str, reports: Sequence[Report]) -> list[Report]:
        shown = [Statement(f"{one.title}: {one.summary}"[:_LONGEST], (at,)) for at, one in enumerate(reports)]
        batches = _packed([one] for one in shown)
        replies = await asyncio.gather(*(self._asked(RATING, question, one, _RATINGS_SCHEMA) for one in batches))
        places = (
            batch[number - 1].chunk_ids[0]
            for batch, reply in zip(batches, replies, strict=True)
            for number in _rated_well(reply, len(batch))
        )
        return [reports[at] for at in sorted(places)]

    async def _points(self, question: str, statements: Sequence[Statement]) -> list[Point]:
        reply = await self._asked(POINTS, question, statements, _POINTS_SCHEMA)
        given = reply.get("points")
        points = [_point(item, "text", statements) for item in (given if isinstance(given, list) else [])]
        return [one for one in points if one is not None]

    async def _asked(
        self, kind: str, question: str, statements: Sequence[Statement], schema: dict[str, Any]
    ) -> dict[str, Any]:
        """The object that the model answers with; an empty one where it fails."""
        shown = "\n\n".join(f"[{number}] {one.text}" for number, one in enumerate(statements, start=1))
        prompt = self._prompts.render(kind, "default", language(question), question=question, statements=shown)
        try:
            async with asyncio.timeout(_PATIENCE):
                reply = await self._model.reply([Message("user", prompt)], schema=schema)
            return read_object(reply.text)
        except (ZhikuError, TimeoutError) as error:
            log.warning("a step of a search goes on without the language model: %s", error or "no answer in time")
            return {}

    # ---- DRIFT

    async def _drift(self, question: str, options: SearchOptions) -> Found:
        """What reports say first, then local searches for what is asked next, a few rounds deep."""
        reports = await self._like(question, options, _PRIMER)
        first, follow_ups = await self._answered(question, _statements(reports))
        points, found = list(first), [(await self._local(question, options), float(_FOLLOW_UPS))]
        asked = {question}
        for depth in range(1, _DEPTH + 1):
            open_ones = [one for one in dict.fromkeys(follow_ups) if one not in asked][:_FOLLOW_UPS]
            if not open_ones:
                break
            asked.update(open_ones)
            self._tell(Step("follow-ups", depth, _DEPTH, tuple(open_ones)))
            rounds = await asyncio.gather(*(self._followed(one, options) for one in open_ones))
            follow_ups = [more for _, _, further in rounds for more in further]
            points += [point for _, said, _ in rounds for point in said]
            found += [(one, 1.0) for one, _, _ in rounds]
        whole = joined(found, options.top_k or self._service.context.settings.top_k)
        facts = [Fact(REPORT, one.text, frozenset(map(str, one.chunk_ids))) for one in sorted(points, key=_by_score)]
        told = self._reports.within(facts, whole.hits)
        return replace(whole, facts=(*told, *whole.facts))

    async def _local(self, question: str, options: SearchOptions) -> Found:
        local = replace(options, mode="graphrag_local", top_k=_PASSAGES)
        return await self._found(lambda: self._reports.local(question, local))

    async def _followed(self, question: str, options: SearchOptions) -> tuple[Found, list[Point], list[str]]:
        found = await self._local(question, options)
        statements = [Statement(hit.text[:_LONGEST], (int(hit.id),)) for hit in found.hits]
        points, follow_ups = await self._answered(question, statements)
        return found, points, follow_ups

    async def _answered(self, question: str, statements: Sequence[Statement]) -> tuple[list[Point], list[str]]:
        if not statements:
            return [], []
        reply = await self._asked(DRIFT, question, statements, _ANSWER_SCHEMA)
        point, given = _point(reply, "answer", statements), reply.get("follow_ups")
        follow_ups = [
            cleaned(one)[:_LONGEST] for one in (given if isinstance(given, list) else []) if isinstance(one, str)
        ]
        return [point] if point else [], [one for one in follow_ups if one][:_FOLLOW_UPS]


_NOBODY = Report("", 0, "", (), (), "", "", 0.0)


def _by_score(point: Point) -> tuple[float, str]:
    return -point.score, point.text


def _statements(reports: Sequence[Report]) -> list[Statement]:
    return [
        Statement(f"{report.title} — {one.summary}: {one.explanation}"[:_LONGEST], one.chunk_ids)
        for report in reports
        for one in report.findings
    ]


def _batches(reports: Sequence[Report]) -> list[list[Statement]]:
    return _packed(_statements([report]) for report in reports)


def _packed(groups: Iterable[Sequence[Statement]]) -> list[list[Statement]]:
    """Statements in lists of a bounded number of tokens; those of one group stay together."""
    batches: list[list[Statement]] = []
    room = 0
    for statements in groups:
        size = sum(estimate_tokens(one.text) for one in statements)
        if not batches or size > room:
            batches.append([])
            room = _BATCH
        batches[-1] += statements
        room -= size
    return [batch for batch in batches if batch]


def _rated_well(reply: Mapping[str, Any], count: int) -> set[int]:
    """The numbers that a model gave any score."""
    given = reply.get("ratings")
    return {
        number
        for item in (given if isinstance(given, list) else [])
        if isinstance(item, dict) and isinstance(number := item.get("number"), int) and 0 < number <= count
        if isinstance(score := item.get("score"), int | float) and score >= _HELPS
    }


def _point(item: Any, name: str, statements: Sequence[Statement]) -> Point | None:
    """What a model said, if it helps and says where it is from."""
    if not isinstance(item, dict) or not isinstance(item.get(name), str) or not item[name].strip():
        return None
    score, numbers = item.get("score"), item.get("sources")
    value = float(score) if isinstance(score, int | float) and 0 <= score <= 100 else 0.0
    chunk_ids = [
        chunk_id
        for number in (numbers if isinstance(numbers, list) else [])
        if isinstance(number, int) and 0 < number <= len(statements)
        for chunk_id in statements[number - 1].chunk_ids
    ]
    if not value or not chunk_ids:
        return None
    return Point(cleaned(item[name])[: 2 * _LONGEST], value / 100, tuple(dict.fromkeys(chunk_ids)))
