"""Which reports of communities a question is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from server.db.graph_reports import StoredReport
from server.domain import Fact, Finding, Report

REPORT = "report"
_WEIGHT = 0.02
"""What a point of a report's rating adds to its likeness to the question, a cosine."""


def usable(reports: Iterable[StoredReport], allowed: Collection[int] | None) -> list[Report]:
    """The reports all of whose chunks may be used: a report tells what all of them say."""
    if allowed is None:
        return [one.report for one in reports]
    wanted = set(allowed)
    return [one.report for one in reports if one.made_of and one.made_of <= wanted]


def at_level(reports: Sequence[Report], level: int) -> list[Report]:
    """One cut through the tree: the communities of a level, and those above it that have no parts. No report is there
    beside its parent's, and none is missing."""
    return [one for one in reports if one.level == level or (one.level < level and not one.children)]


def ranked(reports: Sequence[Report], cosines: Mapping[str, float]) -> list[tuple[Report, float]]:
    """Reports with how much they count for a question, the most first; those without a vector come last."""
    values = [(one, cosines.get(one.community, -1.0) + _WEIGHT * one.rating) for one in reports]
    return sorted(values, key=lambda item: (-item[1], item[0].community))


def of_entities(reports: Sequence[Report], keys: Sequence[str], count: int) -> list[Report]:
    """The narrowest reports of these entities: those of most of them first, then the weightier ones."""
    narrow = {key: one for one in reports if not one.children for key in one.keys}
    found = Counter(narrow[key].community for key in keys if key in narrow)
    by_id = {one.community: one for one in narrow.values()}
    best = sorted(found, key=lambda name: (-found[name], -by_id[name].rating, name))
    return [by_id[name] for name in best[:count]]


def findings_in_turn(reports: Sequence[tuple[Report, float]]) -> Iterator[tuple[Report, Finding, float]]:
    """The first finding of each report, then the second of each …, with values that fall."""
    longest = max((len(report.findings) for report, _ in reports), default=0)
    for at in range(longest):
        for report, value in reports:
            if at < len(report.findings):
                yield report, report.findings[at], value / (1 + at)


def fact_of(report: Report, finding: Finding) -> Fact:
    """A finding as a model is told it."""
    known = finding.summary in finding.explanation  # also when there is none
    said = finding.explanation if known else f"{finding.summary}: {finding.explanation}"
    title = f"{report.title} — " if report.title else ""
    return Fact(REPORT, f"{title}{said}", frozenset(map(str, finding.chunk_ids)))
