"""Answers without a language model: the sentences that fit the question best, quoted with their source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log

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
"""Characters that one quotation has at most."""
MOST = 3
"""Sentences that an answer has at most."""

_CONTEXT = 0.35
_RANK = 0.3
_HINT = 0.15
_TOP = 0.5
_CHARS = 0.2
_EXT = True
_FRESH = True
_PREV=0
_NOTHING_NEW = 0.5
_ENOUGH = 0.6

_CLOSERS = "”’」』】》）)\\]\"'"
_STOP = re.compile(rf"(?:[。！？]+|[.!?]+)[{_CLOSERS}]*(?:\[\d{{1,3}}\])*")
_QUOTED = re.compile(r"“[^“”]{1,160}”|「[^「」]{1,160}」|『[^『』]{1,160}』|（[^（）]{1,160}）|\([^()]{1,160}\)")
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|Rev|Gen|Col|Capt|Lt|Sgt|Gov|Sen|Rep|Hon|St|Mt|Ft|Jr|Sr|Inc|Ltd|Co|Corp|Bros|"
    r"No|Nos|v|Vol|Fig|Figs|Eq|Sec|Ch|Art|Ref|pp|p|vs|cf|ca|approx|est|al|etc|e\.g|i\.e|a\.m|p\.m|viz|"
    r"Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)|\b[A-Z]|(?:\b[A-Za-z]\.)+[A-Za-z]|^\s*[-*]?\s*\d{1,3})$"
)
_STRUCTURE = re.compile(r"\s*(?:#{1,6}\s|[-*+•·‣]\s|\d{1,3}[.)、．]|[（(]?[一二三四五六七八九十\d]{1,3}[)）、]|\||>|```|~~~|$)")
_BREAK = re.compile(r"[；;，,、]\s*|\s+")
_PRONOUN = re.compile(
    r"(?:It|He|She|They|This|That|These|Those|Its|His|Her|Their|Such|Both|However)\b|"
    r"[他她它](?:们)?|其|该|此|这|那|后来|随后|同时|因此|并",
)

_NUMBER = r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|hundred|thousand|million|billion|half|once|twice)\b|[一二两三四五六七八九十百千万亿半数][个人名位只种次座条年岁天元米篇部支所家场届倍成分]"
_DATE = r"\b1\d{3}\b|\b20\d\d\b|\b(?:January|February|March|April|May|June|July|August|September|October|November|December)\b|\bcentur|\d+\s*[年月日]|世纪|年间|时期|[一二三四五六七八九十]月"
_PLACE = r"\b(?:in|at|near|from|to|of|on)\s+(?:the\s+)?[A-Z]|位于|[省市县区州镇村岛山]|地处"
_NAME = r"(?<=[a-z,] )[A-Z][a-z]+ [A-Z][a-z]+|·|先生|教授|博士|导演|作者|[总王皇]"
_REASON = r"\bbecause\b|\bdue to\b|\bsince\b|\bin order to\b|\bas a result\b|因为|由于|因此|所以|为了|原因|故|导致"
_HINTS = tuple(
    (re.compile(asked, re.IGNORECASE), re.compile(given))
    for asked, given in (
        (
            r"\bhow (?:many|much|long|old|far|tall|large|big|often|high|deep|fast)\b|\bwhat (?:percent|number|amount|age)|"
            r"多少|多大|多高|多长|多久|多远|多重|几[个人名位只种次座条岁天元米篇部支所家场届]|第几",
            _NUMBER,
        ),
        (r"\bwhen\b|\bwhat (?:year|date|day|month|century)|\bwhich year|何时|什么时[候间]|何年|哪[一]?年|几年|哪[一]?天|年份|日期|几月", _DATE),
        (r"\bwhere\b|\b(?:what|which) (?:city|country|state|place|region)|哪里|哪儿|何处|何地|什么地方|哪[个一]?(?:省|市|国|县|地|城|洲)", _PLACE),
        (r"\bwho(?:m|se)?\b|谁|何人|哪位|什么人|哪[一]?个人", _NAME),
        (r"\bwhy\b|\breasons?\b|为什么|为何|原因|怎么会", _REASON),
    )
)


@dataclass(frozen=True, slots=True)
class Quote:
    """A piece of the hit with this number (from 1), verbatim; `before` and `after` tell where it breaks a sentence."""

    number: int
    text: str
    before: bool = False
    after: bool = False

    def __str__(self) -> str:
        return f"{'…' if self.before else ''}{self.text}{'…' if self.after else ''} [{self.number}]"


@dataclass(frozen=True, slots=True)
class _Sentence:
    """Where a sentence lies in the text of hit number `number`, and its search terms."""

    number: int
    start: int
    end: int
    before: bool
    after: bool
    heading: bool
    words: tuple[str, ...]


def answer(question: str, hits: Sequence[Hit]) -> Iterator[str]:
    """The answer in pieces, as a model would stream it."""
    code = "zh" if language(question) == "zh" else "en"
    found = quotes(question, hits)
    if not found:
        yield NOTHING[code]
        return
    for quote in found:
        yield from re.findall(r"\s*[!-~]+\s*|.{1,4}", str(quote), re.DOTALL)
        yield "\n\n"
    yield NOTICE[code]


def quotes(question: str, hits: Sequence[Hit]) -> list[Quote]:
    """The sentences that answer best."""
    sentences = [s for number, hit in enumerate(hits, start=1) for s in _sentences(number, hit.text)]
    if not sentences:
        return []
    scores = _scores(question, hits, sentences)
    chosen = _choose(hits, sentences, scores)
    return [_quote(hits, sentences, at) for at in chosen]


# ---- choosing


def _scores(question, hits, sentences):
    asked = query_terms(question)
    heads, extended = {}, []
    for s in sentences:
        head = heads.setdefault(s.number, set(terms(" ".join([*hits[s.number - 1].headings, hits[s.number-1].file_name]))))
        if s.heading:
            head.update(s.words)
        extended.append(set(s.words) | head if _EXT else set(s.words))
    counts = Counter(t for s in extended for t in s)
    n = len(sentences)
    weights = {t: log(1.0 + (n - counts[t] + 0.5) / (counts[t] + 0.5)) for t in asked if t in counts}
    total = sum(weights.values()) or 1.0
    given = [pattern for trigger, pattern in _HINTS if trigger.search(question)]
    chars = set(re.findall(r"[\u3400-\u9fff]", question)) - set("的了是在和与有没什么怎样如何哪些个里谁为多少几请问")
    scores = []
    previous: set[str] = set()
    number = 0
    cw={}
    texts=[hits[s.number - 1].text[s.start : s.end] for s in sentences]
    for c in chars:
        k=sum(c in t for t in texts)
        if k: cw[c]=log(1.0 + (n - k + 0.5) / (k + 0.5))
    ct=sum(cw.values()) or 1.0
    for s,text in zip(sentences,texts):
        head = heads[s.number]
        if s.number != number:
            number = s.number
            previous = set()
        own = set(s.words)
        overlap = sum(w for t, w in weights.items() if t in own) / total
        top = sum(w for t, w in weights.items() if t not in own and t in head) / total
        around = sum(w for t, w in weights.items() if t not in own and t not in head and t in previous) / total
        hint = any(pattern.search(text) for pattern in given) if given else False
        if hint and _FRESH:
            hint = any(m[0] not in question for pattern in given for m in pattern.finditer(text))
        new = own - set(asked)
        score = overlap + _TOP * top + _CONTEXT * around + _RANK / number + _HINT * hint
        score += _CHARS * sum(w for c,w in cw.items() if c in text)/ct
        if len(new) < 3:
            score -= _NOTHING_NEW
        if s.heading:
            score -= 1.0
        scores.append(score)
        previous = own
    return scores


def _near(pairs, words):
    if not pairs:
        return 0.0
    places: dict[str, list[int]] = {}
    for at, w in enumerate(words):
        places.setdefault(w, []).append(at)
    good = sum(
        1
        for left, right in pairs
        if left in places and right in places and any(abs(a - b) <= 3 for a in places[left] for b in places[right])
    )
    return good / len(pairs)


def _weights(asked, sentences):
    counts = Counter(t for s in sentences for t in set(s.words))
    n = len(sentences)
    return {t: log(1.0 + (n - counts[t] + 0.5) / (counts[t] + 0.5)) for t in asked if t in counts}


def _choose(hits, sentences, scores):
    order = sorted(range(len(sentences)), key=lambda at: -scores[at])
    best = scores[order[0]]
    chosen, seen = [], set()
    for at in order:
        if len(chosen) >= MOST or scores[at] < _ENOUGH * best:
            break
        s = sentences[at]
        text = hits[s.number - 1].text[s.start : s.end]
        if text in seen:
            continue
        seen.add(text)
        chosen.append(at)
    return chosen


def _quote(hits, sentences, at):
    s = sentences[at]
    text = hits[s.number - 1].text
    start, end, before, after = s.start, s.end, s.before, s.after
    prior = sentences[at - 1] if at else None
    if (
        prior is not None and prior.number == s.number and not prior.heading
        and _PRONOUN.match(text, start) and end - prior.start <= LONGEST and not before
    ):
        start, before = prior.start, prior.before
    if text[start:end].rstrip().endswith((":", "：")):
        for later in sentences[at + 1 :]:
            if later.number != s.number or later.end - start > LONGEST:
                break
            end, after = later.end, later.after
    return Quote(s.number, text[start:end], before, after)


# ---- sentences


def _sentences(number: int, text: str) -> Iterator[_Sentence]:
    for start, end in _paragraphs(text):
        ends_line = True
        for left, right in _split(text, start, end):
            for lo, hi, before, after in _pieces(text, left, right):
                words = tuple(terms(text[lo:hi]))
                if words:
                    yield _Sentence(number, lo, hi, before, after, _is_heading(text, lo, hi, end), words)


def _is_heading(text, lo, hi, end):
    if text[lo] == "#":
        return True
    if hi - lo > 60 or not text[hi:].strip():
        return False
    line = text[lo:hi]
    if _STRUCTURE.match(line) or re.search(r"[:：；;。！？.!?|]", line):
        return False
    begin = text.rfind("\n", 0, lo) + 1
    return not text[begin:lo].strip() and text[hi : hi + 1] in ("\n", "\r", "")


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    lines = [match.span() for match in re.finditer(r"[^\n]+", text)]
    start = None
    for at, (lo, hi) in enumerate(lines):
        if start is None:
            start = lo
        following = lines[at + 1] if at + 1 < len(lines) else None
        if following is None or following[0] > hi + 1 or not _wrapped(text[lo:hi], text[slice(*following)]):
            yield start, hi
            start = None


def _wrapped(line: str, following: str) -> bool:
    line = line.rstrip()
    if _STRUCTURE.match(following) or line.lstrip().startswith(("#", "|")) or not line:
        return False
    if re.search(rf"[。！？!?:：;；.|][{_CLOSERS}]*$", line):
        return False
    return following.lstrip()[:1].islower() or len(line) >= (20 if language(line) == "zh" else 50)


def _split(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    shielded = [m.span() for m in _QUOTED.finditer(text, start, end)]
    at = 0
    for match in _STOP.finditer(text, start, end):
        place = match.end()
        while at < len(shielded) and shielded[at][1] <= match.start() :
            at += 1
        inside = at < len(shielded) and shielded[at][0] < place < shielded[at][1]
        if not inside and _ends(text, start, match, end):
            yield start, place
            start = place
    if start < end:
        yield start, end


def _ends(text: str, start: int, match: re.Match[str], end: int) -> bool:
    place, mark = match.end(), match[0][0]
    following = text[place : min(end, place + 3)]
    if following[:1] in tuple("，,、；;：:）)") and following:
        return False
    if mark in "。！？":
        return True
    if mark == "." and _ABBREVIATION.search(text, start, match.start()):
        return False
    if not following or following[0].isspace():
        return not following.strip()[:1].islower()
    return "\u3400" <= following[0] <= "\u9fff" and "\u3400" <= text[match.start() - 1] <= "\u9fff"


def _pieces(text: str, start: int, end: int) -> Iterator[tuple[int, int, bool, bool]]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    before = False
    while end - start > LONGEST:
        cuts = [m.end() for m in _BREAK.finditer(text, start + LONGEST // 2, start + LONGEST)]
        place = cuts[-1] if cuts else start + LONGEST
        hi = place
        while text[hi - 1].isspace():
            hi -= 1
        yield start, hi, before, True
        start, before = place, True
    if start < end:
        yield start, end, before, False
