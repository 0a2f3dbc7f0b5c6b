"""Citations that can be trusted: which marks an answer has, the claims they stand behind, whether a source bears them.

    MarkFilter(count).feed(piece) … .finish()     an answer's stream without marks that point nowhere
    drop_stray_marks(text, count)                 the same for a whole text
    marks(text)                                   [Mark(numbers, start, end)]
    claims(text, count)                           [Claim(numbers, text, start, end)]
    verify(claim, source, context=…, closeness=…) Verdict(verified, support, start, end) of one claim
    check(text, sources, contexts=…, closeness=…) [Checked(number, claim, verdict)] of a whole answer

`start` and `end` of a verdict count characters of the source's text, those of marks and claims in the answer.

Nothing here asks a language model. `closeness` is `KBService.closeness`: cosines of a text and others. It is only
called for claims in another language than their source. Without it such claims are not verified: leave it out where
the model's cosines are not calibrated (`EmbeddingTransform.calibrated`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from server.chat.marks import Mark, MarkFilter, drop_stray_marks, marks
from server.chat.support import Closeness, Verdict, verify
from server.retrieval.analysis import query_terms
from server.retrieval.sentences import sentences

__all__ = [
    "Checked", "Claim", "Closeness", "Mark", "MarkFilter", "Verdict", "check", "claims", "drop_stray_marks", "marks",
    "verify",
]  # fmt: skip

_LEAD_IN = re.compile(
    r"[\s,，:：(（*#>-]*(?:\d{1,2}[.)、]\s*)?"
    r"(?:根据|依据|按照?|参见|参考|如|据|由|从|在|来源|资料|文档|出处|来自|"
    r"according to|as (?:stated|described|shown|noted) (?:in|by)|see|per|from|in|sources?|passage|document|"
    r"citation)?[\s,，:：*]*",
    re.IGNORECASE,
)
_DECORATION = re.compile(r"^(?:\s|[-*+>#•]+\s|\d{1,2}[.)、]\s+|\*+|[,，、;；:：。.!！?？）)])+|[\s*]+$")
_JOINT = re.compile(r"[ ,，、]*(?:and|or|以?及|和|与|或)?[ ,，、]*")
_PART = re.compile(r"[,，;；]\s*(?:and\s+|而|并|且)?|\s+and\s+|并且|而且|以及")


@dataclass(frozen=True, slots=True)
class Claim:
    """What the marks with these numbers stand behind: text without marks, and its place in the answer."""

    numbers: tuple[int, ...]
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Checked:
    """One claim held against the source that its mark names (counted from 1)."""

    number: int
    claim: Claim
    verdict: Verdict


def claims(text: str, count: int) -> list[Claim]:
    """The claims of an answer in reading order, one for every place that has marks from 1 to `count`.

    A claim is the sentence before the marks, or its part since the marks before; where there is nothing but a
    lead-in ("According to [1], …") it is what follows, up to the next mark or the end of the sentence.
    """
    found = marks(text)
    bare = _without(text, found)
    spans = sentences(bare)
    groups = _groups(text, found)
    claimed: list[Claim] = []
    for before, group, after in zip([None, *groups], groups, [*groups[1:], None], strict=False):
        numbers = tuple(number for number in group.numbers if 1 <= number <= count)
        start, end = _claimed(bare, spans, group, before.end if before else 0, after.start if after else len(text))
        if claimed and before and start == before.end and not query_terms(bare[start:end]):
            start, end = claimed[-1].start, claimed[-1].end  # "… [1] and also [2]"
        if said := _plain(bare[start:end]):
            claimed.append(Claim(numbers, said, start, end))
    return [claim for claim in claimed if claim.numbers]


def _without(text: str, found: Sequence[Mark]) -> str:
    """The text with blanks in place of its marks, so that places stay the same."""
    edges = [(0, 0), *((mark.start, mark.end) for mark in found), (len(text), len(text))]
    return "".join(" " * (end - start) + text[end:following] for (start, end), (following, _) in pairwise(edges))


def _plain(text: str) -> str:
    """Without the signs of lists, headings and bold type, and without the gaps that marks left."""
    return re.sub(r"[ \t]{2,}", " ", _DECORATION.sub("", text.replace("**", "")))


def _groups(text: str, found: Sequence[Mark]) -> list[Mark]:
    """Marks with nothing, or just an "and", between them as one."""
    groups: list[Mark] = []
    for mark in found:
        if groups and _JOINT.fullmatch(text, groups[-1].end, mark.start):
            last = groups.pop()
            mark = Mark(tuple(dict.fromkeys(last.numbers + mark.numbers)), last.start, mark.end)
        groups.append(mark)
    return groups


def _claimed(bare: str, spans: Sequence[tuple[int, int]], group: Mark, before: int, after: int) -> tuple[int, int]:
    """Place of the claim of the marks in `group`, that lie between other marks that end and start there."""
    start, end = next((span for span in reversed(spans) if span[0] < group.start), (group.start, group.start))
    lo = max(start, before) if before < end else start
    hi = min(end, group.start)
    same_line = "\n" not in bare[hi : group.start]
    if same_line and not _LEAD_IN.fullmatch(bare[lo:hi]):
        return lo, hi
    following = next((span for span in spans if span[1] > group.end), (group.end, group.end))
    if "\n" in bare[group.end : max(following[0], group.end)]:
        return group.start, group.start
    return group.end, min(following[1], after)


def check(
    text: str, sources: Sequence[str], *, contexts: Sequence[str] = (), closeness: Closeness | None = None
) -> list[Checked]:
    """Every claim of an answer held against each source that it names, in reading order.

    Where several sources are named at once, each is verified that bears a part of the claim, if together they bear
    all of its parts. `contexts` are the sources' titles and headings, in the order of the sources.
    """
    headings = dict(enumerate(contexts, start=1))

    def held(number: int, said: str) -> Verdict:
        return verify(said, sources[number - 1], context=headings.get(number, ""), closeness=closeness)

    return [one for claim in claims(text, len(sources)) for one in _checked(claim, held)]


def _checked(claim: Claim, held: Callable[[int, str], Verdict]) -> list[Checked]:
    verdicts = {number: held(number, claim.text) for number in claim.numbers}
    if len(verdicts) > 1 and not any(verdict.verified for verdict in verdicts.values()):
        verdicts = _together(claim, held) or verdicts
    return [Checked(number, claim, verdict) for number, verdict in verdicts.items()]


def _together(claim: Claim, held: Callable[[int, str], Verdict]) -> dict[int, Verdict]:
    """The best part of a claim for each of its sources, if every part has a source that bears it."""
    parts = [part for part in _PART.split(claim.text) if query_terms(part)]
    verdicts = {number: [held(number, part) for part in parts] for number in claim.numbers}
    borne = [any(verdict.verified for verdict in part) for part in zip(*verdicts.values(), strict=True)]
    if len(parts) < 2 or not all(borne):
        return {}
    return {number: max(of_parts, key=lambda verdict: verdict.support) for number, of_parts in verdicts.items()}
