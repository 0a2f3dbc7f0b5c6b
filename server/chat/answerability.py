"""Whether sentences that were found answer a question, judged without a language model.

Passages about the subject are found for nearly every question; some do not hold the answer. What tells: the
question says the opposite of the best sentence, or is negated where that is not; a name of the question stands
nowhere, a number not in that sentence; the sentence names nothing of the kind that is asked for; the words of the
question are scattered over neighbouring sentences; the passage is not near in meaning. No sign is sure by itself,
so they are weighed against a threshold.

Measured on SQuAD 2.0, whose unanswerable questions are made to look answerable. Weights and threshold were chosen on
one half of the articles; of the other half (127 unanswerable questions, 607 answerable ones):

    _ENOUGH                2.0   1.6   1.3   1.1   1.0
    rightly doubted        .18   .24   .32   .40   .41
    wrongly doubted        .018  .038  .068  .094  .109
    wrongly, Chinese       .007  .007  .010  .010  .010   (CMRC 2018, 400 questions)

More signs (the longest missing word, all words of the passage, how many words are missing) fitted the first half
better and the other one worse. Closeness of single sentences was left out: it costs far more than all of this.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from server.chat.numbers import numbers, spoken_numbers, without_numbers
from server.chat.opposites import says_opposite
from server.retrieval.analysis import language, query_terms, terms

# What each sign weighs: a logistic regression on the first half, rounded.
_OPPOSITE = 3.2
_NEGATION = 1.8
_NAME = 1.1  # a name of the question stands nowhere
_NUMBER = 0.9  # a number of the question does not stand in the best sentence
_KIND = 1.2  # the best sentence has nothing of the kind that is asked for
_SCATTERED = 2.3  # for the share of words that only its neighbours have
_FAR = 11.7  # for each unit of similarity that the best hit has less than usual
_ENOUGH = 1.1

_USUAL = 0.7  # similarity of the best hit
_FARTHEST, _NEAREST = 0.62, 0.78  # models differ in how they spread similarities: alone they must never be enough
_MOST_SCATTERED = 0.4
_NEIGHBOURS = 2  # sentences on each side
_LONGEST = 8  # letters of a word that count
_STEM = 5  # letters in which forms of a word agree
_OTHER_FORM = 0.8  # what a word counts in another form
_OTHER_CHINESE = 0.6  # what a Chinese word counts whose characters are there
_LATER = 0.02  # what a sentence loses for each hit before its own

_HAN = re.compile("[\u3400-\u9fff]")
_NAMED = re.compile(r"(?<![^\W_])(?:[A-Z][A-Za-z\d]+|[A-Z]\b(?!['’.]))", re.ASCII)
_TITLED = re.compile("《([^《》]+)》")
_FIRST_WORD = re.compile(r"\W*[\w'’]+")
_NEGATED_QUESTION = re.compile(
    r"\b(?:not(?! only)|never|cannot|\w+n['’]t)\b|"
    r"(?<!是)不是|(?<!能)不能|(?<!会)不会|(?<!可)不可|(?<!有)没有(?!.{0,12}(?:时|的话|情况))|并非|从未",
    re.IGNORECASE,
)
_NEGATED = re.compile(
    r"\b(?:no|not|never|none|neither|nor|without|cannot|unable|except|\w+n['’]t)\b|[不没未无非]", re.IGNORECASE
)
_ASKING = (
    "name names named type kind sort form many much long old far called call referred refer known considered year "
    "years time times date day month century part one percent percentage number amount term word thing way place "
    "person people group example following happen happened besides other "
    "哪年 年份 时候 时间 地方 名字 名称 叫做 称为 多大 多长 第几 几个 哪位 哪里 什么样 是什么 原因"
)
"""Words that ask; an answer need not repeat them."""
# Some of these depend too much on what they are said of to refute a claim, but as one sign of several they tell.
_OPPOSITES = (
    "increasing decreasing|rising falling|raise lower|more fewer|biggest smallest|high low|large small|big small|"
    "long short|longest shortest|northern southern|eastern western|accepted rejected|allowed prohibited|"
    "supported opposed|successful unsuccessful|began ended|start end|started ended|start stop|opened closed|"
    "rich poor|richest poorest|richer poorer|old new|oldest newest|older younger|oldest youngest|earliest latest|"
    "early late|ancient modern|public private|strong weak|strongest weakest|slow fast|slowest fastest|"
    "slow accelerate|hot cold|above below|inside outside|positive negative|legal illegal|male female|men women|"
    "man woman|majority minority|same different|similar different|include exclude|included excluded|always never|"
    "all none|easy difficult|simple complex|best worst|better worse|good bad|upper lower|internal external|"
    "import export|buy sell|bought sold|create destroy|created destroyed|arrive leave|arrived left|enter leave|"
    "victory defeat|attack defend|attacked defended|agree disagree|agreed disagreed|light dark|heavy light|"
    "day night|past future|domestic foreign|natural artificial|religious secular|peace war|common rare|urban rural|"
    "wet dry|full empty|inner outer|front back|top bottom|love hate|friend enemy|deep shallow|wide narrow|"
    "thick thin|remain leave|continue stop|unite divide|add remove|added removed|build destroy|built destroyed|"
    "odd even"
)
_PREFIXES = ("un", "non", "in", "im", "dis", "il", "ir")
_SHORTEST = 4  # letters of a word that may lose or gain a prefix

_NAME_INSIDE = r"(?<=[\w,;] )[A-Z][\w'’-]+"
_NEEDED = (
    (
        r"how (?:many|much|long|old|far|tall|large|big|often|high|deep|fast)\b|what (?:percent|number|amount|age)",
        r"\d|\b(?i:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty|dozens?|hundreds?|"
        r"thousands?|[mb]illions?|half|third|quarter|once|twice|several|single|both|few)\b",
    ),
    (
        r"when\b|(?:what|which) (?:year|date|day|month|century|decade)",
        r"\d{3}|\d+(?:st|nd|rd|th)?\b|\b(?:January|February|March|April|May|June|July|August|September|October|"
        r"November|December|[A-Z]\w+day)\b|\b(?i:centur\w+|decades?|years?|ago|during|since|after|before|until|"
        r"summer|spring|winter|autumn|era|period|age|night|morning)\b",
    ),
    (
        r"where\b|(?:what|which) (?:city|country|state|place|region)\b",
        rf"{_NAME_INSIDE}|\b(?:in|at|near|from|on|along|around|outside|inside)\s+(?:the|a|an)\b",
    ),
)
"""What an English question asks for with its first words, and what may be it; "who" may be any noun, "why" anything."""
_FIRST_WORDS = r"(?:\W*\w+\W+){0,3}"


class Sentence(Protocol):
    """A sentence of a hit, with its search terms and those of what stands above it."""

    @property
    def number(self) -> int:
        """The hit's, counted from 1."""

    @property
    def text(self) -> str:
        """The sentence as it was written."""

    @property
    def words(self) -> frozenset[str]:
        """Its search terms."""

    @property
    def subject(self) -> frozenset[str]:
        """Those of the headings above it, and of its file's name."""


@dataclass(frozen=True, slots=True)
class _Best:
    """The sentence that holds most of a question, and the shares of it there and with its neighbours."""

    sentence: Sentence
    inside: float
    around: float


def is_doubtful(question: str, sentences: Sequence[Sentence], similarity: float | None) -> bool:
    """Whether the sentences, in reading order hit by hit, hardly answer a question; `similarity` is the best hit's.

    What is in another language is never doubted: its words cannot be compared.
    """
    return doubt(question, sentences, similarity) >= _ENOUGH


def doubt(question: str, sentences: Sequence[Sentence], similarity: float | None) -> float:
    """How much speaks against an answer in the sentences: the sum of the signs."""
    weights = _weights(question)
    if not weights or not sentences:
        return 0.0
    best = _best(weights, sentences)
    spoken = language(question)
    if language(best.sentence.text) not in (spoken, "other"):
        return 0.0
    signs = [*_disagreements(question, best.sentence), *_gaps(question, best.sentence, sentences)]
    if not signs and spoken == "zh":  # in Chinese novels and manuals the soft signs alone were mostly wrong
        return 0.0
    far = 0.0 if similarity is None else _USUAL - min(max(similarity, _FARTHEST), _NEAREST)
    scattered = min(best.around - best.inside, _MOST_SCATTERED)
    return sum(signs) + _FAR * far + _SCATTERED * scattered


def _disagreements(question: str, best: Sentence) -> Iterator[float]:
    """Weights of what the best sentence says otherwise."""
    if _is_opposite(set(terms(question)), best.words) or says_opposite(question, best.text):
        yield _OPPOSITE
    if _NEGATED_QUESTION.search(_without_first_word(question)) and not _NEGATED.search(best.text):
        yield _NEGATION


def _gaps(question: str, best: Sentence, sentences: Sequence[Sentence]) -> Iterator[float]:
    """Weights of what the question has and the sentences have not."""
    if _lacks_name(question, sentences):
        yield _NAME
    if numbers(question) - numbers(best.text) - spoken_numbers(best.text) - best.subject:
        yield _NUMBER
    if _lacks_kind(question, best):
        yield _KIND


def _lacks_kind(question: str, best: Sentence) -> bool:
    """Whether a number, a date or a place is asked for, and the sentence has none that was not known before."""
    known = best.subject.union(terms(question))
    return any(
        re.match(rf"{_FIRST_WORDS}(?:{asking})", question, re.IGNORECASE)
        and all(known.issuperset(terms(match[0])) for match in re.finditer(needed, best.text))
        for asking, needed in _NEEDED
    )


def _weights(question: str) -> dict[str, float]:
    """What each term of a question counts: its length, twice for a name and for Chinese."""
    named = {term for name in _names(question) for term in terms(name)}
    return {
        term: min(len(term), _LONGEST) * (2.0 if term in named or _HAN.match(term) else 1.0)
        for term in query_terms(without_numbers(question))
        if term not in _asking()
    }


def _best(weights: Mapping[str, float], sentences: Sequence[Sentence]) -> _Best:
    """The best sentence; what stands above a sentence counts as in it."""
    total = sum(weights.values())
    held = [_held(weights, it.words | it.subject, it.text) / total for it in sentences]
    at = max(range(len(sentences)), key=lambda at: held[at] - _LATER * sentences[at].number)
    near = sentences[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS + 1]
    window = [it for it in near if it.number == sentences[at].number]
    words = sentences[at].subject.union(*(it.words for it in window))
    return _Best(sentences[at], held[at], _held(weights, words, "".join(it.text for it in window)) / total)


def _held(weights: Mapping[str, float], words: Collection[str], text: str) -> float:
    """The weight of the terms that words have, in part when they have another form."""
    held = 0.0
    for term, weight in weights.items():
        if term in words:
            held += weight
        elif _HAN.match(term):
            held += _OTHER_CHINESE * weight * sum(character in text for character in term) / len(term)
        elif _has_form(term, words):
            held += _OTHER_FORM * weight
    return held


def _has_form(term: str, words: Collection[str]) -> bool:
    """Whether the words have another form of a long term."""
    return len(term) > _STEM and any(word.startswith(term[:_STEM]) for word in words)


def _lacks_name(question: str, sentences: Sequence[Sentence]) -> bool:
    """Whether a name of the question, or the title of a work, stands in no sentence and above none."""
    words = frozenset[str]().union(*(it.words | it.subject for it in sentences))
    named = {term for name in _names(question) for term in query_terms(name)}
    if any(term not in words and not _has_form(term, words) for term in named):
        return True
    titles = [title for title in _TITLED.findall(question) if _HAN.match(title)]
    return any(not words.intersection(terms(title)) for title in titles)


def _names(question: str) -> list[str]:
    """Latin names, as far as capitals tell; the first English word has its capital for another reason."""
    found: list[str] = _NAMED.findall(question if language(question) == "zh" else _without_first_word(question))
    return found


def _without_first_word(question: str) -> str:
    """ "Doesn't it …?" and "Who …?" neither deny nor name anything with their first word."""
    return question if language(question) == "zh" else _FIRST_WORD.sub("", question, count=1)


def _is_opposite(said: Collection[str], held: Collection[str]) -> bool:
    """Whether a word that only one side has is the opposite of one that only the other has."""
    theirs = set(held).difference(said)
    return any(theirs.intersection(_opposites_of(term)) for term in set(said).difference(held))


def _opposites_of(term: str) -> set[str]:
    if len(term) <= _SHORTEST or not term.isascii():
        return _opposites().get(term, set())
    bare = {term.removeprefix(prefix) for prefix in _PREFIXES}
    shorter = {word for word in bare if word != term and len(word) >= _SHORTEST}
    return _opposites().get(term, set()) | {prefix + term for prefix in _PREFIXES} | shorter


@cache
def _opposites() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for pair in _OPPOSITES.split("|"):
        one, other = terms(pair)
        found.setdefault(one, set()).add(other)
        found.setdefault(other, set()).add(one)
    return found


@cache
def _asking() -> frozenset[str]:
    return frozenset(terms(_ASKING))
