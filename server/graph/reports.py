"""Reports of communities: put together from sentences of the chunks, or written by a language model.

Both cite chunks for each finding, and both are made from the parts' reports where a community has parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

from server.domain import Finding, Report
from server.errors import LLMIncomplete
from server.graph.identity import is_said, letters_of
from server.graph.material import Material
from server.graph.replies import cleaned, read_object
from server.ingest.splitters.boundaries import first_sentence

SELECTION = "selection-1"
"""The recipe of reports without a model."""
_FINDINGS = 5
_PARTS = 10
_TITLE = 3
_LONGEST_SENTENCE, _LONGEST_SOURCE = 300, 700
_LONGEST = {"title": 200, "summary": 1500, "explanation": 2000, "rating_explanation": 500}
_TEXT = {"type": "string"}
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["title", "summary", "rating", "rating_explanation", "findings"],
    "properties": {
        "title": _TEXT,
        "summary": _TEXT,
        "rating": {"type": "number"},
        "rating_explanation": _TEXT,
        "findings": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["summary", "explanation", "sources"],
                "properties": {
                    "summary": _TEXT,
                    "explanation": _TEXT,
                    "sources": {"type": "array", "items": {"type": "integer"}},
                },
            },
        },
    },
}
"""What a reply to the report prompt looks like, as JSON schema."""


def rating_of(mentions: int) -> float:
    """From 0 to 10, the most from a thousand mentions on; it depends on nothing outside the community."""
    return round(min(10.0, log2(1 + mentions)), 1)


def selected(material: Material, texts: Mapping[int, str], lang: str, *, degraded: bool = False) -> Report:
    """A report without a model: the sentences that say most of the strongest relations, or the parts' findings."""
    findings = _from_parts(material) if material.reports else list(_from_sentences(material, texts))
    listed = ("、" if lang == "zh" else ", ").join(material.names[:_TITLE])
    summary = " ".join(dict.fromkeys(one.explanation for one in findings[:2])) or listed
    rating = rating_of(material.mentions)
    return _report(material, listed, summary, rating, findings=findings, degraded=degraded)


def _report(
    material: Material,
    title: str,
    summary: str,
    rating: float,
    explanation: str = "",
    *,
    findings: Sequence[Finding],
    degraded: bool = False,
) -> Report:
    of = material.community
    return Report(
        of.id, of.level, of.parent, of.children, of.keys, title, summary, rating, explanation, tuple(findings), degraded
    )


def _from_parts(material: Material) -> list[Finding]:
    """The first findings of the weightiest parts."""
    firsts = [one.findings[0] for one in material.reports if one.findings]
    return list({one.explanation: one for one in firsts}.values())[:_FINDINGS]


def _from_sentences(material: Material, texts: Mapping[int, str]) -> Iterator[Finding]:
    """A sentence for each of the strongest relations, then for entities of which nothing was told yet."""
    sentences = [
        (chunk_id, sentence, letters_of(sentence))
        for chunk_id in material.sources
        for sentence in _sentences(texts.get(chunk_id, ""))
    ]
    told: set[str] = set()
    wanted = [*material.pairs, *((name,) for name in material.names)]
    for names in wanted:
        if len(told) == _FINDINGS:
            return
        for chunk_id, sentence, letters in sentences:
            if sentence not in told and all(is_said(name, letters) for name in names):
                told.add(sentence)
                yield Finding(" – ".join(names), sentence, (chunk_id,))
                break


def _sentences(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = first_sentence(text, start, len(text)) or len(text)
        if sentence := " ".join(text[start:end].split())[:_LONGEST_SENTENCE]:
            yield sentence
        start = end


@dataclass(frozen=True, slots=True)
class Numbered:
    """Material as a model reads it; `chunk_ids` are those that each number stands for, from 1."""

    text: str
    chunk_ids: tuple[tuple[int, ...], ...]


def numbered(material: Material, texts: Mapping[int, str]) -> Numbered:
    """The material with numbered sources: the chunks, or the findings of the parts."""
    lines = ["\n".join(f"- {line}" for line in material.lines)]
    chunk_ids: list[tuple[int, ...]] = []
    for part in material.reports[:_PARTS]:
        lines.append(f"# {part.title}\n{part.summary}")
        for finding in part.findings[:_FINDINGS]:
            chunk_ids.append(finding.chunk_ids)
            lines.append(f"[{len(chunk_ids)}] {finding.summary}: {finding.explanation}")
    for chunk_id in material.sources:
        chunk_ids.append((chunk_id,))
        lines.append(f"[{len(chunk_ids)}] {texts.get(chunk_id, '')[:_LONGEST_SOURCE]}")
    return Numbered("\n\n".join(lines), tuple(chunk_ids))


def written(reply: str, material: Material, sources: Numbered) -> Report:
    """The report that a model wrote. Findings that cite none of the sources are left out.

    Raises:
        LLMIncomplete: it is no report, or has no finding with a source.
    """
    found = read_object(reply)
    given = found.get("findings")
    findings = [one for item in (given if isinstance(given, list) else []) if (one := _finding(item, sources))]
    title, summary = _said(found, "title"), _said(found, "summary")
    if not (title and summary and findings):
        raise LLMIncomplete("模型的回答不是报告 / the model's reply is no report with findings and their sources")
    return _report(
        material, title, summary, _rating(found.get("rating")), _said(found, "rating_explanation"), findings=findings
    )


def _finding(item: Any, sources: Numbered) -> Finding | None:
    if not isinstance(item, dict):
        return None
    numbers = item.get("sources")
    chunk_ids = [
        chunk_id
        for number in (numbers if isinstance(numbers, list) else [])
        if isinstance(number, int) and 0 < number <= len(sources.chunk_ids)
        for chunk_id in sources.chunk_ids[number - 1]
    ]
    summary, explanation = _said(item, "summary"), _said(item, "explanation")
    if not chunk_ids or not (summary or explanation):
        return None
    return Finding(summary or explanation[:80], explanation or summary, tuple(dict.fromkeys(chunk_ids)))


def _rating(given: Any) -> float:
    """From 0 to 10, whatever the model sent; NaN is no rating."""
    try:
        value = float(given)
    except (TypeError, ValueError):
        return 0.0
    return round(min(10.0, max(0.0, value)), 1) if value == value else 0.0  # NaN is not itself


def _said(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    return cleaned(value)[: _LONGEST.get(name, 1000)] if isinstance(value, str) else ""
