"""Answers without a language model: the sentences that fit the question best, quoted with their source.

The constants were chosen on 2,260 questions over English and Chinese passages. The best sentence alone holds
the answer of four questions in five, up to three sentences of nine in ten; every quarter more or less of
a constant changes that by less than a hundredth.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import log
from pathlib import PurePosixPath

from server.chat.answerability import is_doubtful
from server.chat.support import Closeness
from server.domain import Hit
from server.retrieval.analysis import language, query_terms, terms

"""How near each of the sentences is to the question in meaning: cosines, so a higher number is nearer."""

NOTICE = {
    "zh": "（未使用语言模型：以下是从知识库中摘录的原文。）",
    "en": "(No language model wrote this: these are quotations from the knowledge base.)",
}
DOUBTFUL = {
    "zh": "知识库中似乎没有这个问题的答案。以下是最接近的原文摘录（未使用语言模型）：",
    "en": "The sources do not seem to hold the answer to this question. These are the closest passages, quoted "
    "(no language model wrote this):",
}
"""What stands in the place of NOTICE when the passages hardly answer the question."""
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
_NEAREST = 0.8  # it is in another language than the question, and the nearest in meaning
_HEADING = -1.0
_CODE = -1.0
_ECHO = -1.5  # it only repeats the question
_NOTHING_NEW = -0.5  # it says no more than the question
_NEW_WORDS = 3
_LEAST_SPREAD = 0.05  # cosines closer together than this say little
_MOST_COMPARED = 24  # sentences in another language whose meaning is compared
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
_FENCE = re.compile(r"\s*(?:```|~~~)[^`\n]*$")
_UNDER_HEADER = re.compile(r"\s*\|[\s:|-]*-[\s:|-]*$")
_CODE_LINE = re.compile(
    r"\s*`*(?:\$\s+\S|(?:curl|wget|sudo|pip3?|npm|npx|git|docker|kubectl|apt(?:-get)?)\s+\S|(?:export\s+)?[A-Z_]{2,}=\S|"
    r"(?:import|from)\s+[\w.]+(?:\s+import\s.*)?$|(?:def|class)\s+\w+.*:$|[\w.]+\(.*\);?$|[{}\]])|"
    r".*(?:\{\s*\"[\w-]+\"\s*:|[{}]\s*$)"
)
_ASKING = re.compile(r"[?？]|什么|哪|谁|多少|如何|怎|\b(?:what|which|who\w*|how|when|where|why)\b", re.IGNORECASE)
_GAP = re.compile(r"[；;，,、]\s*|\s+")
_LEANING = re.compile(
    r"(?:It|He|She|They|This|That|These|Those|Its|His|Her|Their|Such|Both|However)\b|"
    r"[他她它]|其[^他实余中]|[该此这那]|后来|随后|同时|因此|并且?"
)
_PIECE = re.compile(r"\s*[!-\u02ff]+\s*|[^!-\u02ff]{1,6}")

_COUNTED = "[个人名位只种次座条岁天元米篇部支所家场届倍成分]"
_KINDS = (
    r"\bhow (?:many|much|long|old|far|tall|large|big|often|high|deep|fast)\b|"
    rf"\bwhat (?:percent|number|amount|age)|多[少大高长久远重]|几{_COUNTED}|第几",
    r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|hundred|thousand|[mb]illion|"
    rf"half|once|twice)\b|(?!十分[^之])[一二两三四五六七八九十百千万亿半数]{_COUNTED}",
    r"\bwhen\b|\b(?:what|which) (?:year|date|day|month|century)|什么时[候间]|"
    r"[何几哪]一?[年天月日]|何时|年份|日期",
    r"\b1\d{3}\b|\b20\d\d\b|\b(?:January|February|March|April|May|June|July|August|September|October|"
    r"November|December)\b|\bcentur|\d+\s*[年月日]|世纪|年间|时期|[一二三四五六七八九十]月",
    r"\bwhere\b|\b(?:what|which) (?:city|country|state|place|region)|哪[里儿]|何[处地]|什么地方|"
    r"哪[个一]?[省市国县地城洲]",
    r"\b(?:in|at|near|from|to|of|on)\s+(?:the\s+)?[A-Z]|位于|地处|[省市县区州镇村岛山]",
    r"\bwho(?:m|se)?\b|谁|何人|哪位|什么人|哪[一]?个人",
    r"(?<=[a-z,] )[A-Z][a-z]+ [A-Z][a-z]+|·|[总王皇]|先生|教授",
    r"\bwhy\b|\breasons?\b|为什么|为何|原因|怎么会",
    r"\b(?:because|due to|since|in order to|as a result)\b|因为|由于|因此|所以|为了|原因|导致|故",
)
"""In turn what a question asks for, and what a sentence has that may be it."""


@dataclass(frozen=True, slots=True)
class Quote:
    """A verbatim piece of the hit with this number, counted from 1.

    `begun` and `unfinished` tell that it leaves out a sentence's beginning or end; `header` is its table's first row.
    """

    number: int
    text: str
    begun: bool = False
    unfinished: bool = False
    header: str = ""

    def __str__(self) -> str:
        text = f"{'…' if self.begun else ''}{self.text}{'…' if self.unfinished else ''} [{self.number}]"
        return f"{self.header}\n{text}" if self.header else text


@dataclass(frozen=True, slots=True)
class _Piece:
    """A sentence, or a part of a long one, at its place in the text of a hit.

    `subject` holds the search terms of what stands above it, `words` those of its table's header too.
    `block` tells what lies between the same fences.
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
    code: bool
    header: str
    block: int


def no_model(question: str) -> str:
    """What is said, in the question's language, where only a language model could answer."""
    return NO_MODEL["zh" if language(question) == "zh" else "en"]


def answer(question: str, hits: Sequence[Hit], *, closeness: Closeness | None = None) -> Iterator[str]:
    """The answer in pieces, as a model would stream it."""
    code = "zh" if language(question) == "zh" else "en"
    pieces = _pieces(hits)
    found = _quotes(question, hits, pieces, closeness)
    if not found:
        yield NOTHING[code]
        return
    notice = DOUBTFUL if is_doubtful(question, pieces, hits[0].similarity) else NOTICE
    for paragraph in (notice[code], *map(str, found[:-1])):
        yield from _PIECE.findall(paragraph)
        yield "\n\n"
    yield from _PIECE.findall(str(found[-1]))


def quotes(question: str, hits: Sequence[Hit], *, closeness: Closeness | None = None) -> list[Quote]:
    """What answers the question best, hit by hit beginning with the best; empty when the hits hold no words.

    `closeness` finds what fits in hits of another language than the question's, where words do not overlap.
    """
    return _quotes(question, hits, _pieces(hits), closeness)


def doubts(question: str, hits: Sequence[Hit]) -> bool:
    """Whether the answer says that the hits do not seem to hold it, or that there is nothing at all."""
    pieces = _pieces(hits)
    return not pieces or is_doubtful(question, pieces, hits[0].similarity)


def _quotes(question: str, hits: Sequence[Hit], pieces: Sequence[_Piece], closeness: Closeness | None) -> list[Quote]:
    if not pieces:
        return []
    scores = _scores(question, pieces)
    for at, near in _nearness(question, hits, pieces, closeness).items() if closeness else ():
        scores[at] += near
    chosen = _best(pieces, scores)
    numbers = list(dict.fromkeys(pieces[at].number for at in chosen))
    wanted = {near for at in chosen for near in _understandable(pieces, at)}
    order = sorted(wanted, key=lambda at: (numbers.index(pieces[at].number), at))
    runs = [(run[0], run[-1]) for run in _runs(pieces, order)]
    return [Quote(a.number, hits[a.number - 1].text[a.start : z.end], a.begun, z.unfinished, a.header) for a, z in runs]


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
    kinds = zip(_KINDS[::2], _KINDS[1::2], strict=True)
    given = [pattern for asking, pattern in kinds if re.search(asking, question, re.IGNORECASE)]
    echoes = [_is_echo(question, piece) for piece in pieces]
    scores = []
    for at, piece in enumerate(pieces):
        above = piece.subject - piece.words
        score = words.share(piece.words) + _SUBJECT * words.share(above) + _CHARACTERS * characters.share(piece.text)
        if at and pieces[at - 1].number == piece.number and not (pieces[at - 1].code or piece.header):
            part = 1.0 if echoes[at - 1] else _PREVIOUS  # what follows the question itself is its answer
            score += part * words.share(pieces[at - 1].words - piece.words - above)
        if any(match[0] not in question for pattern in given for match in re.finditer(pattern, piece.text)):
            score += _KIND  # what it names is not in the question already
        if len(piece.words.difference(asked)) < _NEW_WORDS:
            score += _NOTHING_NEW
        score += _HEADING * piece.heading + _CODE * piece.code + _ECHO * echoes[at]
        scores.append(score + _RANK / piece.number)
    return scores


def _is_echo(question: str, piece: _Piece) -> bool:
    """Whether a piece repeats (nearly) the whole question and, unless it is code, says nothing after it."""
    asked, text = _plain(question), _plain(piece.text)
    size = -(-len(asked) * 9 // 10)
    if size < 4 or not _ASKING.search(piece.text):
        return False
    found = (text.rfind(asked[start : start + size]) for start in range(len(asked) - size + 1))
    return any(at >= 0 and (piece.code or len(text) - at <= len(asked)) for at in found)


def _plain(text: str) -> str:
    """The letters and digits alone."""
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", text).casefold())


def _nearness(question: str, hits: Sequence[Hit], pieces: Sequence[_Piece], closeness: Closeness) -> dict[int, float]:
    """What the pieces in another language than the question's earn for their meaning, by their places."""
    known = {language(question), "other"}
    foreign = {number for number, hit in enumerate(hits, start=1) if language(hit.text) not in known}
    places = [at for at, it in enumerate(pieces) if it.number in foreign and not (it.code or it.heading)]
    del places[_MOST_COMPARED if len(known) > 1 else 0 :]
    if not places:
        return {}
    near = closeness(question, [f"{pieces[at].header}\n{pieces[at].text}".strip() for at in places])
    spread = max(max(near) - min(near), _LEAST_SPREAD)
    return {at: _NEAREST * (1.0 - (max(near) - one) / spread) for at, one in zip(places, near, strict=True)}


def _best(pieces: Sequence[_Piece], scores: Sequence[float]) -> list[int]:
    """Places of the chosen pieces, best first, of a table one row; sentences that hits share count once."""
    order = sorted(range(len(pieces)), key=lambda at: -scores[at])
    least = scores[order[0]] - (1.0 - _ENOUGH) * abs(scores[order[0]])
    chosen: dict[str, int] = {}
    for at in takewhile(lambda at: scores[at] >= least, order):
        if len(chosen) < MOST:
            chosen.setdefault(pieces[at].header or pieces[at].text, at)
    return list(chosen.values())


def _understandable(pieces: Sequence[_Piece], at: int) -> range:
    """The piece with what it leans on: the sentence before a pronoun, the list after a colon."""
    first = last = at
    piece = pieces[at]
    if _LEANING.match(piece.text) and at and _together(pieces[at - 1], piece) and not pieces[at - 1].heading:
        first -= 1
    if piece.text.endswith((":", "：")):
        while last + 1 < len(pieces) and _near(pieces[first], pieces[last + 1]) and not pieces[last + 1].header:
            last += 1
    return range(first, last + 1)


def _together(left: _Piece, right: _Piece) -> bool:
    return _near(left, right) and left.block == right.block and not (left.header or right.header)


def _near(left: _Piece, right: _Piece) -> bool:
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


def _pieces(hits: Sequence[Hit]) -> list[_Piece]:
    return [piece for number, hit in enumerate(hits, start=1) for piece in _pieces_of(number, hit)]


def _pieces_of(number: int, hit: Hit) -> Iterator[_Piece]:
    """The pieces of a hit that hold words, in reading order."""
    subject = frozenset(terms(" ".join([PurePosixPath(hit.file_name).stem, *hit.headings])))
    for start, end, code, header, block in _lines(hit.text):
        whole, above = code or bool(header), frozenset(terms(header))
        heading = not whole and _is_heading(hit.text[start:end]) and end < len(hit.text)
        for left, right in [(start, end)] if whole else _sentences(hit.text, start, end):
            for lo, hi, begun, unfinished in _parts(hit.text, left, right):
                text = hit.text[lo:hi]
                if words := frozenset(terms(text)):
                    place = number, lo, hi, text, words | above, subject, heading, begun, unfinished
                    yield _Piece(*place, code, header, block)
                    subject = subject | words if heading else subject


def _lines(text: str) -> Iterator[tuple[int, int, bool, str, int]]:
    """(start, end, is code, header of its table, block) of all but fences around code and headers of tables."""
    spans = list(_paragraphs(text))
    marks = [text[start:end].strip("`~ ") for start, end in spans if _FENCE.match(text[start:end])]
    fenced = next((at for at, mark in enumerate(marks) if mark), 0) % 2 == 1  # it begins inside a fence
    header, block = "", 0
    for (start, end), (lo, hi) in zip(spans, [*spans[1:], (0, 0)], strict=False):
        line = text[start:end]
        under = bool(_UNDER_HEADER.match(line))
        if _FENCE.match(line):
            fenced, header, block = not fenced, "", block + 1
        elif fenced or not line.lstrip().startswith("|"):
            header = ""
            yield start, end, fenced or bool(_CODE_LINE.match(line)), "", block
        elif under or _UNDER_HEADER.match(text[lo:hi]):
            header, block = header if under else line.strip(), block + 1
        else:
            yield start, end, False, header, block


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
    if _ENDED.search(line) or _STRUCTURE.match(following) or _FENCE.match(line) or line.lstrip()[:1] in ("#", "|"):
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
    numbers_item = text[start : stop.start()][:8].strip(" \t-*(（").isdecimal()
    if stop[0][0] == "." and (numbers_item or _ABBREVIATION.search(before)):
        return False
    if not following or following[0].isspace():
        return not following.strip()[:1].islower()
    return re.fullmatch(f"[{_HAN}]{{2}}", before[-1:] + following[0]) is not None


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
