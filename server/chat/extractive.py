"""Answers without a language model: the sentences that fit the question best, quoted with their source.

The constants were chosen on 2,260 questions over English and Chinese passages. The best sentence alone holds
the answer of four questions in five, up to three sentences of nine in ten; every quarter more or less of
a constant changes that by less than a hundredth.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import log
from pathlib import PurePosixPath

from server.domain import Hit
from server.retrieval.analysis import language, query_terms, terms

NOTICE = {
    "zh": "（未使用语言模型：以下是从知识库中摘录的原文。）",
    "en": "(No language model wrote this: these are quotations from the knowledge base.)",
}
NOTHING = {
    "zh": "知识库中没有找到与问题相关的内容。（未使用语言模型。）",
    "en": "The knowledge base holds nothing that fits this question. (No language model wrote this.)",
}
NO_MODEL = {
    "zh": "没有配置语言模型，无法自由对话。请在 configs/model.yaml 的 llm_models 中添加模型，"
    "或使用 /chat/knowledge_base_chat 从知识库中摘录答案。",
    "en": "No language model is configured, so there is nobody to chat with. Add one to llm_models in "
    "configs/model.yaml, or ask /chat/knowledge_base_chat, which quotes answers from the knowledge base.",
}

LONGEST = 300
"""Characters of one quotation."""
MOST = 3
"""Sentences that are chosen; what they need to be understood comes on top."""

# What a sentence earns besides 1 for holding all the words of the question, rare words counting more.
_SUBJECT = 0.5  # the words stand in the headings above it, or in the name of its file
_PREVIOUS = 0.35  # the words stand in the sentence before it
_CHARACTERS = 0.2  # it shares the question's Chinese characters, though perhaps in other words
_KIND = 0.2  # it names a number, a date, a place … where the question asks for one
_RANK = 0.35  # it is in the first hit; half as much in the second, a third in the third
_HEADING = -1.0
_NOTHING_NEW = -0.5  # it says no more than the question
_NEW_WORDS = 3
_ENOUGH = 0.6  # a further sentence needs this share of the best one's score

_HAN = "\u3400-\u4dbf\u4e00-\u9fff"
_CLOSING = "”’」』】》）)\\]\"'"
_STOP = re.compile(rf"(?:[。！？]+|[.!?]+)[{_CLOSING}]*(?:\[\d{{1,3}}\])*")
_ENDED = re.compile(rf"[。！？!?:：;；.|][{_CLOSING}]*\s*$")
_QUOTED = re.compile(r"“[^“”]{1,160}”|「[^「」]{1,160}」|『[^『』]{1,160}』|（[^（）]{1,160}）|\([^()]{1,160}\)")
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|Rev|Gen|Col|Capt|Lt|Sgt|Gov|Sen|Rep|Hon|St|Mt|Ft|Jr|Sr|Inc|Ltd|Co|Corp|Bros|"
    r"No|Nos|v|Vol|Fig|Figs|Eq|Sec|Ch|Art|Ref|pp|p|vs|cf|ca|approx|est|al|etc|viz|"
    r"Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)|\b[A-Z]|(?:\b[A-Za-z]\.)+[A-Za-z])$"
)
_LONGEST_ABBREVIATION = 12
_STRUCTURE = re.compile(
    r"\s*(?:#{1,6}\s|[-*+•·‣]\s|\d{1,3}[.)、．]|[（(]?[一二三四五六七八九十\d]{1,3}[)）、]|\||>|```|~~~|$)"
)
_GAP = re.compile(r"[；;，,、]\s*|\s+")
_LEANING = re.compile(
    r"(?:It|He|She|They|This|That|These|Those|Its|His|Her|Their|Such|Both|However)\b|"
    r"[他她它]|其[^他实余中]|[该此这那]|后来|随后|同时|因此|并且?"
)
_PIECE = re.compile(r"\s*[!-\u02ff]+\s*|[^!-\u02ff]{1,6}")

_COUNTED = "[个人名位只种次座条岁天元米篇部支所家场届倍成分]"
_KINDS = tuple(
    (re.compile(asked, re.IGNORECASE), re.compile(given))
    for asked, given in (
        (
            r"\bhow (?:many|much|long|old|far|tall|large|big|often|high|deep|fast)\b|"
            rf"\bwhat (?:percent|number|amount|age)|多[少大高长久远重]|几{_COUNTED}|第几",
            r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|hundred|thousand|[mb]illion|"
            rf"half|once|twice)\b|(?!十分[^之])[一二两三四五六七八九十百千万亿半数]{_COUNTED}",
        ),
        (
            r"\bwhen\b|\b(?:what|which) (?:year|date|day|month|century)|什么时[候间]|"
            r"[何几哪]一?[年天月日]|何时|年份|日期",
            r"\b1\d{3}\b|\b20\d\d\b|\b(?:January|February|March|April|May|June|July|August|September|October|"
            r"November|December)\b|\bcentur|\d+\s*[年月日]|世纪|年间|时期|[一二三四五六七八九十]月",
        ),
        (
            r"\bwhere\b|\b(?:what|which) (?:city|country|state|place|region)|哪[里儿]|何[处地]|什么地方|"
            r"哪[个一]?[省市国县地城洲]",
            r"\b(?:in|at|near|from|to|of|on)\s+(?:the\s+)?[A-Z]|位于|地处|[省市县区州镇村岛山]",
        ),
        (
            r"\bwho(?:m|se)?\b|谁|何人|哪位|什么人|哪[一]?个人",
            r"(?<=[a-z,] )[A-Z][a-z]+ [A-Z][a-z]+|·|[总王皇]|先生|教授",
        ),
        (
            r"\bwhy\b|\breasons?\b|为什么|为何|原因|怎么会",
            r"\b(?:because|due to|since|in order to|as a result)\b|因为|由于|因此|所以|为了|原因|导致|故",
        ),
    )
)
"""What a question asks for, and what a sentence has that may be it."""


@dataclass(frozen=True, slots=True)
class Quote:
    """A verbatim piece of the hit with this number, counted from 1.

    `begun` and `unfinished` tell that it leaves out the beginning or the end of a sentence.
    """

    number: int
    text: str
    begun: bool = False
    unfinished: bool = False

    def __str__(self) -> str:
        return f"{'…' if self.begun else ''}{self.text}{'…' if self.unfinished else ''} [{self.number}]"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A sentence, or a part of a long one, at its place in the text of a hit.

    `subject` holds the search terms of what stands above it.
    """

    number: int
    start: int
    end: int
    text: str
    words: frozenset[str]
    subject: frozenset[str]
    heading: bool
    begun: bool
    unfinished: bool


def answer(question: str, hits: Sequence[Hit]) -> Iterator[str]:
    """The answer in pieces, as a model would stream it."""
    code = "zh" if language(question) == "zh" else "en"
    found = quotes(question, hits)
    if not found:
        yield NOTHING[code]
        return
    for paragraph in (NOTICE[code], *map(str, found[:-1])):
        yield from _PIECE.findall(paragraph)
        yield "\n\n"
    yield from _PIECE.findall(str(found[-1]))


def quotes(question: str, hits: Sequence[Hit]) -> list[Quote]:
    """What answers the question best, hit by hit beginning with the best; empty when the hits hold no words."""
    pieces = [piece for number, hit in enumerate(hits, start=1) for piece in _pieces_of(number, hit)]
    if not pieces:
        return []
    chosen = _best(pieces, _scores(question, pieces))
    numbers = list(dict.fromkeys(pieces[at].number for at in chosen))
    wanted = {near for at in chosen for near in _understandable(pieces, at)}
    order = sorted(wanted, key=lambda at: (numbers.index(pieces[at].number), at))
    return [_quote(hits, run) for run in _runs(pieces, order)]


# ---- choosing


class _Weights:
    """How much each term says about where it occurs: rare ones more, unknown ones nothing."""

    def __init__(self, wanted: Iterable[str], places: Sequence[Collection[str]]) -> None:
        counts = Counter(term for place in places for term in set(place))
        self._weights = {
            term: log(1.0 + (len(places) - counts[term] + 0.5) / (counts[term] + 0.5))
            for term in dict.fromkeys(wanted)
            if term in counts
        }
        self._total = sum(self._weights.values()) or 1.0

    def share(self, found: Collection[str]) -> float:
        """The share, 0 to 1, of all weights that these terms have."""
        return sum(weight for term, weight in self._weights.items() if term in found) / self._total


def _scores(question: str, pieces: Sequence[_Piece]) -> list[float]:
    asked = query_terms(question)
    words = _Weights(asked, [piece.words | piece.subject for piece in pieces])
    characters = _Weights(re.findall(f"[{_HAN}]", "".join(asked)), [piece.text for piece in pieces])
    given = [pattern for trigger, pattern in _KINDS if trigger.search(question)]
    scores = []
    for previous, piece in zip([None, *pieces], pieces, strict=False):
        above = piece.subject - piece.words
        score = words.share(piece.words) + _SUBJECT * words.share(above) + _CHARACTERS * characters.share(piece.text)
        if previous is not None and previous.number == piece.number:
            score += _PREVIOUS * words.share(previous.words - piece.words - above)
        if _names_new(given, piece.text, question):
            score += _KIND
        if len(piece.words.difference(asked)) < _NEW_WORDS:
            score += _NOTHING_NEW
        scores.append(score + _RANK / piece.number + (_HEADING if piece.heading else 0.0))
    return scores


def _names_new(patterns: Iterable[re.Pattern[str]], text: str, question: str) -> bool:
    """Whether a text has something of the kind that the question asks for and does not name itself."""
    return any(match[0] not in question for pattern in patterns for match in pattern.finditer(text))


def _best(pieces: Sequence[_Piece], scores: Sequence[float]) -> list[int]:
    """Places of the chosen pieces, best first; neighbouring hits may share sentences, which count once."""
    order = sorted(range(len(pieces)), key=lambda at: -scores[at])
    least = scores[order[0]] - (1.0 - _ENOUGH) * abs(scores[order[0]])
    chosen: dict[str, int] = {}
    for at in takewhile(lambda at: scores[at] >= least, order):
        if len(chosen) == MOST:
            break
        chosen.setdefault(pieces[at].text, at)
    return list(chosen.values())


def _understandable(pieces: Sequence[_Piece], at: int) -> range:
    """The piece with what it leans on: the sentence before a pronoun, the list after a colon."""
    first = last = at
    piece = pieces[at]
    if _LEANING.match(piece.text) and at and _together(pieces[at - 1], piece) and not pieces[at - 1].heading:
        first -= 1
    if piece.text.endswith((":", "：")):
        while last + 1 < len(pieces) and _together(pieces[first], pieces[last + 1]):
            last += 1
    return range(first, last + 1)


def _together(left: _Piece, right: _Piece) -> bool:
    return left.number == right.number and right.end - left.start <= LONGEST


def _runs(pieces: Sequence[_Piece], order: Iterable[int]) -> list[list[_Piece]]:
    """The pieces in this order; neighbours that are short enough become one run."""
    runs: list[list[_Piece]] = []
    last = -1
    for at in order:
        if runs and at == last + 1 and _together(runs[-1][0], pieces[at]):
            runs[-1].append(pieces[at])
        else:
            runs.append([pieces[at]])
        last = at
    return runs


def _quote(hits: Sequence[Hit], run: Sequence[_Piece]) -> Quote:
    first, last = run[0], run[-1]
    text = hits[first.number - 1].text[first.start : last.end]
    return Quote(first.number, text, first.begun, last.unfinished)


# ---- sentences


def _pieces_of(number: int, hit: Hit) -> Iterator[_Piece]:
    """The pieces of a hit that hold words, in reading order."""
    subject = frozenset(terms(" ".join([PurePosixPath(hit.file_name).stem, *hit.headings])))
    for start, end in _paragraphs(hit.text):
        heading = _is_heading(hit.text[start:end]) and end < len(hit.text)
        for left, right in _sentences(hit.text, start, end):
            for lo, hi, begun, unfinished in _parts(hit.text, left, right):
                text = hit.text[lo:hi]
                if words := frozenset(terms(text)):
                    yield _Piece(number, lo, hi, text, words, subject, heading, begun, unfinished)
                    subject = subject | words if heading else subject


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """Lines, joined where a sentence was wrapped."""
    lines = [match.span() for match in re.finditer(r"[^\n]+", text)]
    start = lines[0][0] if lines else 0
    for (lo, hi), (following, end) in zip(lines, [*lines[1:], (0, 0)], strict=False):
        if following != hi + 1 or not _is_wrapped(text[lo:hi], text[following:end]):
            yield start, hi
            start = following


def _is_wrapped(line: str, following: str) -> bool:
    """Whether the sentence goes on in the following line."""
    if _ENDED.search(line) or _STRUCTURE.match(following) or line.lstrip()[:1] in ("#", "|"):
        return False
    if language(line) == "zh":  # a title may be long too, but hardly has a comma
        return len(line) >= 20 and bool(re.search("[，。、；]", line))
    return following.lstrip()[:1].islower() or len(line) >= 50


def _is_heading(line: str) -> bool:
    short = len(line) <= 60 and not re.search(r"[:：；;。！？.!?|]", line)
    return line.lstrip().startswith("#") or (short and not _STRUCTURE.match(line))


def _sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Places of the sentences of a paragraph; what stands in quotation marks or brackets stays together."""
    shields = _QUOTED.finditer(text, start, end)
    shield = next(shields, None)
    for match in _STOP.finditer(text, start, end):
        while shield is not None and shield.end() <= match.start():
            shield = next(shields, None)
        inside = shield is not None and shield.start() < match.end() < shield.end()
        if not inside and _is_end(text, start, match, text[match.end() : min(end, match.end() + 3)]):
            yield start, match.end()
            start = match.end()
    yield start, end


def _is_end(text: str, start: int, stop: re.Match[str], following: str) -> bool:
    """Whether a sentence that began at `start` ends with these full stops."""
    if following.startswith(tuple("，,、；;：:）)")):
        return False
    if stop[0][0] in "。！？":
        return True
    before = text[max(start, stop.start() - _LONGEST_ABBREVIATION) : stop.start()]
    if stop[0][0] == "." and (_ABBREVIATION.search(before) or _is_item_number(text[start : stop.start()][:8])):
        return False
    if not following or following[0].isspace():
        return not following.strip()[:1].islower()
    return re.fullmatch(f"[{_HAN}]{{2}}", before[-1:] + following[0]) is not None


def _is_item_number(text: str) -> bool:
    return text.strip(" \t-*(（").isdecimal()


def _parts(text: str, start: int, end: int) -> Iterator[tuple[int, int, bool, bool]]:
    """(start, end, begun, unfinished) of a sentence without the space around it, cut where it is too long."""
    start, end = start + _space(text[start:end]), end - _space(text[start:end][::-1])
    begun = False
    while end - start > LONGEST:
        gaps = [gap.end() for gap in _GAP.finditer(text, start + LONGEST // 2, start + LONGEST)]
        cut = gaps[-1] if gaps else start + LONGEST
        yield start, cut - _space(text[start:cut][::-1]), begun, True
        start, begun = cut + _space(text[cut : min(end, cut + LONGEST)]), True
    if start < end:
        yield start, end, begun, False


def _space(text: str) -> int:
    """Number of white space characters that a text begins with."""
    return len(text) - len(text.lstrip())
