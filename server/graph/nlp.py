"""Entities and relations of a chunk, found without a language model: names by their capitals in Latin script, by the
tags of the dictionary in Chinese, topics by the words that surround them, relations by what stands close together.

Everything is decided within the chunk, and in linear time: what one chunk says never depends on another.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate, takewhile
from typing import Any, NamedTuple

from server.domain import Extraction, Mention, Relation
from server.graph.lexicon import (
    CALENDAR,
    CHINESE_KINDS,
    CHINESE_PLAIN,
    COMPOUND_SURNAMES,
    COUNTRIES,
    DEMONYMS,
    FUNCTION_WORDS,
    GIVEN_NAMES,
    HONORIFICS,
    KINDS,
    NAME_HEADS,
    NAME_TAILS,
    NOT_VERBS,
    OPENERS,
    PLAIN_NOUNS,
    ROLES,
    SURNAMES,
    VERBS,
    words_of,
)
from server.retrieval.sentences import sentences

MENTIONS_PER_1000 = {"en": 24, "zh": 40}
"""Different mentions per 1000 characters, names before concepts; a short chunk may have FEWEST_ALLOWED."""
CONCEPTS_PER_1000 = {"en": 10, "zh": 20}
FEWEST_ALLOWED = 12
LONGEST_NAME = 100
"""Characters; a longer run of capitals is a heading or data."""
RELATIONS_PER_MENTION = 4
_NEIGHBOURS = 5  # names that a name is related to, on its right
_CONCEPT_REACH = 2  # mentions
_LONGEST_LABEL = 48  # characters between two names that may hold the verb
_LABELLED_GAP = 3
_LABEL_WORDS = 3

# A few ranges instead of all letters that Unicode has: these stand in many patterns, and compiling them takes its time.
_UP = "A-ZÀ-ÖØ-ÞĀĂĄĆČĎĐĒĘĚĞĢĪĮİĶĻŁŃŅŇŌŐŒŘŚŞŠŢŤŪŮŰŲŹŻŽΑ-ΩА-ЯЁІЇЄ"
_LOW = "a-zß-öø-ÿāăąćčďđēęěğģīįıķļłńņňōőœřśşšţťūůűųźżžα-ωа-яёіїє"
_ANY = _UP + _LOW + "0-9"
_HAN = "\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_CAPITAL = (
    rf"(?:(?:St|Mt|Dr|Mr|Mrs|Ms|Prof|Jr|Sr|Bros|vs)\.(?=[ ][{_UP}])|(?:[{_UP}]\.)+(?:-?[{_UP}]\.)*(?![{_ANY}])"
    rf"|(?:[a-z](?=[{_UP}][{_LOW}])|[dlDL]['’](?=[{_UP}]))?[{_UP}](?:[{_ANY}]|['’](?!s(?![{_ANY}]))(?=[{_ANY}])|[-&/.](?=[{_ANY}])|\+{{1,2}})*)"
)
_LINK = (
    r"(?:of(?: the)?|for the|for|du|de(?: la| los| las)?|del|della|di|da|dos|des|von(?: der)?|van(?: der| den)?|le|la|"
    r"el|al|bin|ibn|ben|y|und|et|&|vs\.|the|on the|in the|to the|with the|and the|at the|from the)"
)
_NUMBER = r"(?:\d[\d.,]*\d|\d)(?:[A-Za-z]|st|nd|rd|th)?"
_NAME = re.compile(
    rf"(?<![{_ANY}])(?=[{_UP}0-9]|[a-z]['’]?[{_UP}])(?:(?P<front>\d{{1,4}}(?:st|nd|rd|th)?)[ ])?"
    rf"(?P<name>{_CAPITAL}(?:[ ](?:(?:{_LINK}|and|in|on|at|to|with|by|from)[ ])?{_CAPITAL}"
    rf"|[ ]{_NUMBER}(?![{_ANY}%]|[ ](?!was|is|has)[a-z]+s\b))*)"
)
_TIGHT = re.compile(rf"[ ]({_LINK}|and|in|on|at|to|with|by|from)[ ](?=[{_UP}]|[a-z]{{1,2}}[{_UP}])")
_DEFINED = re.compile(
    rf"[\"“]?([{_UP}0-9][^.,;:!?()\n\"“”]{{1,60}}(?:[:.!?][ ][^.,;:!?()\n\"“”]{{1,40}})?)[\"”]?[ ]"
    rf"(?:\([^()\n]{{0,80}}\)[ ])?"
    r"(?:is|was|were|has|won|follows|stars|tells)[ ][a-z]"
)
_QUOTED = re.compile(r"[\"“]([^\"“”\n]{2,80})[\"”]")
_BOOK = re.compile(r"《([^《》\n]{1,60})》|[「『]([^「」『』\n。，！？]{2,20})[」』]")
_HAN_QUOTED = re.compile(rf"“([{_HAN}A-Za-z0-9·]{{2,12}})”")
_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\.?)"
)
_DATE = re.compile(
    rf"\b(?:\d{{1,2}}(?:st|nd|rd|th)?[ ](?:of[ ])?{_MONTH}(?:,?[ ]\d{{4}})?|"
    rf"{_MONTH}[ ]\d{{1,2}}(?:st|nd|rd|th)?,[ ]\d{{4}}|"
    rf"{_MONTH},?[ ]\d{{4}})\b|(?:(?:公元前?)?\d{{1,4}}年)(?:\d{{1,2}}月(?:\d{{1,2}}日)?)?"
)
_LOWER_WORD = re.compile(rf"(?<![{_ANY}])[{_LOW}]+")
_TOPIC_RUN = re.compile(rf"(?<![{_ANY}'’.])[{_LOW}][{_LOW}-]*(?:[ ][{_LOW}][{_LOW}-]*)*(?![{_ANY}])")
_WORK_BEFORE = re.compile(r"\b(?:novel|film|movie|album|song|single|play|opera|book|magazine|series|game)[ ]$")
_WORDS = re.compile(rf"[{_ANY}]+(?:['’-][{_ANY}]+)*")
_HAN_RUN = re.compile(rf"[{_HAN}]")
_DOT = re.compile("[·•・]")
_LATIN_RUN = re.compile(rf"[{_UP}]")


class _Found(NamedTuple):
    """A place of the text where something is mentioned; `key` is what its mentions share."""

    start: int
    end: int
    type: str = ""
    concept: bool = False
    key: str = ""


class _Token(NamedTuple):
    start: int
    end: int
    word: str
    tag: str


class _Tagged(NamedTuple):
    """The words of a text in order, what they are, and where each starts."""

    words: Sequence[str]
    tags: Sequence[str]
    starts: Sequence[int]


def extract(text: str, lang: str) -> Extraction:
    """The entities that a chunk names, in order of appearance, and the pairs of them that its sentences connect.

    `lang` is the chunk's main language, "zh" or "en"; names in the other script are found all the same.
    """
    tagged = _tagged(text if _HAN_RUN.search(text) else "")
    spans = sentences(text)
    places = _without_overlaps(_all(text, lang, tagged, spans))
    found = _kept([_Found(*place[:4], text[place[0] : place[1]].casefold()) for place in places], len(text), lang)
    return Extraction(_mentions(text, found), _relations(text, found, spans, tagged))


def _all(text: str, lang: str, tagged: _Tagged, spans: Sequence[tuple[int, int]]) -> Iterator[_Found]:
    yield from _dates(text)
    if tagged.words:
        yield from _chinese_titles(text)
        yield from _dotted_names(text, tagged)
        yield from _chinese(tagged)
    if _LATIN_RUN.search(text):
        yield from _quoted_titles(text)
        yield from _defined(text, spans)
        yield from _latin_names(text)
    if lang == "en":
        yield from _topics(text)


def _without_overlaps(candidates: Iterable[_Found]) -> list[_Found]:
    """The candidates in reading order; of two that overlap the name, then the longer one, then the first stays."""
    result: list[_Found] = []
    for found in sorted(candidates, key=lambda one: (one.start, one.concept, -one.end)):
        last = result[-1] if result else None
        if last is None or found.start >= last.end:
            result.append(found)
        elif (not found.concept, found.end - found.start) > (not last.concept, last.end - last.start):
            result[-1] = found
    return result


def _kept(found: list[_Found], length: int, lang: str) -> list[_Found]:
    """The places of the mentions that fit the bounds: names before concepts, frequent ones first."""
    script = "zh" if lang == "zh" else "en"
    most = max(FEWEST_ALLOWED, length * MENTIONS_PER_1000[script] // 1000)
    counts: dict[str, int] = {}
    for one in found:
        counts[one.key] = counts.get(one.key, 0) + 1
    named = {one.key: None for one in found if not one.concept}
    names = sorted(named, key=lambda key: -counts[key])[:most]
    concepts = {one.key: None for one in found if one.concept and one.key not in named}
    room = min(most - len(names), max(FEWEST_ALLOWED // 2, length * CONCEPTS_PER_1000[script] // 1000))
    # a phrase says more than a word, in either script
    chosen = {*names, *sorted(concepts, key=lambda key: (-counts[key], -min(len(key), 20)))[: max(room, 0)]}
    return [one for one in found if one.key in chosen]


def _mentions(text: str, found: Iterable[_Found]) -> tuple[Mention, ...]:
    """One mention per name, with the first type that is known."""
    kinds: dict[str, tuple[str, str]] = {}
    for one in found:
        name, kind = kinds.get(one.key) or (text[one.start : one.end], "")
        kinds[one.key] = name, kind or one.type
    return tuple(Mention(name, kind) for name, kind in kinds.values())


# Names in Latin script


class _Setting(NamedTuple):
    """What the chunk tells about single words: those that stand in lower case, and in capitals inside a sentence."""

    lower: frozenset[str]
    inside: frozenset[str]


def _latin_names(text: str) -> Iterator[_Found]:
    matches = [(match, _opens(text, match.start())) for match in _NAME.finditer(text)]
    inside = (word for match, opens in matches if not opens for word in match["name"].split(" "))
    setting = _Setting(frozenset(_LOWER_WORD.findall(text)), frozenset(inside))
    for match, opens in matches:
        for start, end in _cut(text, match):
            span = _trimmed(text, start, end, opens and start <= match.start("name"), setting)
            if span and span[1] - span[0] <= LONGEST_NAME:
                yield _Found(*span, _kind(text, *span))


def _cut(text: str, match: re.Match[str]) -> list[tuple[int, int]]:
    """A run of capitals, parted where the word between them rarely belongs to a name."""
    start, end = match.span("name")
    if match["front"] and _belongs(match["front"], match["name"]):
        start = match.start("front")
    if " " not in match["name"]:
        return [(start, end)]
    places, at = [], start
    work = _WORK_BEFORE.search(text, max(0, start - 12), start)  # "the novel Bread and the Baker's Daughter"
    for link in _TIGHT.finditer(text, start, end):
        if not (work and link[1] not in ("by", "at", "from")) and not _joins(
            link[1], text[at : link.start()], text[link.end() : end]
        ):
            places.append((at, link.start()))
            at = link.end()
    return [*places, (at, end)]


def _belongs(number: str, name: str) -> bool:
    """Whether a number before a name is a part of it ("20th Century Fox", "1936 Summer Olympics")."""
    return not number.isdigit() or len(number) == 4 and bool(KINDS["event"].intersection(name.split()))


def _joins(link: str, left: str, right: str) -> bool:
    """Whether a small word between capitals belongs to the name."""
    words = left.split(" ")
    if link == "and":  # "Ministry of Food and Health", not "Paris and Rome"
        return words[0] in _FOUNDED and (
            right.split(" ")[-1] in KINDS["organization"] or "of" in words or "for" in words
        )
    if link in ("for", "for the"):
        return words[-1] in _FOUNDED | {"Award", "Prize", "Medal"} and (link == "for" or words[-1] in _FOUNDED)
    if link.startswith(_LOOSE):
        return False
    return words[-1] not in CALENDAR


_LOOSE = ("in", "on", "at", "to", "with", "by", "from", "and", "the")
_FOUNDED = words_of(
    "National International Royal Federal American European Department Academy Ministry Institute College "
    "University Center "
    "Centre Committee Council Commission Agency Association Society Foundation Office Bureau Faculty School Campaign "
    "Organization Organisation Museum Museums Convention"
)


def _trimmed(text: str, start: int, end: int, opens: bool, setting: _Setting) -> tuple[int, int] | None:
    """The run without words that only open the sentence, and without roles; None when no name is left."""
    words = text[start:end].split(" ")
    after = text[end : end + 24]
    article = False
    while words and _droppable(words, opens, article, setting, after):
        article = article or words[0] in ("The", "A", "An")
        start += len(words.pop(0)) + 1
    if not words or not _is_name(words, opens, setting, after):
        return None
    return start, end - (words[-1].endswith(".") and len(words) > 1 and words[-1] not in _DOTTED_ENDS)


_DOTTED_ENDS = frozenset(("Jr.", "Sr.", "Bros.", "U.S.", "D.C.", "U.K."))


def _droppable(words: Sequence[str], opens: bool, article: bool, setting: _Setting, after: str) -> bool:
    """Whether the first of the words is no part of the name."""
    word, rest = words[0], words[1:]
    plain = word.lower().rstrip(".")
    if (
        word.rstrip(".") in ROLES
        and rest
        and rest[0] not in ("of", "for")
        or word.islower()
        and plain in FUNCTION_WORDS
    ):
        return True
    if not opens:
        return plain in _PRONOUNS or plain in FUNCTION_WORDS and not rest and not word.isupper()
    if article and rest:  # "The Last Supper" has lost its article, no more
        return False
    if word == "A" and len(rest) > 1 and _verb(after.strip(" ").partition(" ")[0]):  # "A Winter's Tale was"
        return False
    return plain in OPENERS or bool(rest) and _opens_only(word, rest, setting)


_PRONOUNS = words_of("i i'm i'll i've i'd i’m i’ll i’ve i’d")


def _opens_only(word: str, rest: Sequence[str], setting: _Setting) -> bool:
    """Whether a sentence's first word owes its capital to its place, before a name."""
    if not rest[0][0].isupper() or word.isupper():
        return False
    return word.lower() in setting.lower or len(rest) > 1 and word.endswith("ing") and word.lower() not in NOT_VERBS


def _is_name(words: Sequence[str], opens: bool, setting: _Setting, after: str) -> bool:
    """Whether the words that are left name something."""
    word = words[0]
    if len(words) > 1:
        return not all(one in CALENDAR or one[0].isdigit() for one in words)
    if len(word.strip(".")) < 2 or word.rstrip(".") in _NO_NAMES:
        return False
    lower = word.lower()
    if not opens or word.isupper() or not word[1:].islower():
        return (lower not in OPENERS or word.isupper() and not opens) and not (opens and lower in setting.lower)
    if lower in setting.lower or lower in OPENERS:
        return False
    return word in setting.inside or _known(word) or _acts(word, after)


_NO_NAMES = CALENDAR | DEMONYMS | ROLES | HONORIFICS


def _known(word: str) -> bool:
    return word in GIVEN_NAMES or word in COUNTRIES


def _acts(word: str, after: str) -> bool:
    """Whether what follows a sentence's first word makes it a name: a possessive, a verb, an apposition."""
    if after.startswith(("'s ", "’s ", " (")):
        return True
    following = _WORDS.match(after, 1) if after[:1] == " " else None
    if not following:
        return False
    if word.endswith(("ly", "ing", "ed")):
        return following[0] in _AUXILIARIES
    return _verb(following[0]) or following[0] in ("and", "also")


def _opens(text: str, start: int) -> bool:
    """Whether a sentence, a line or a speech begins here."""
    at = start - 1
    while at >= 0 and text[at] in " \t([*_#>-":
        at -= 1
    return at < 0 or text[at] in "\"“‘'\n.!?:;…。！？：；"


def _kind(text: str, start: int, end: int) -> str:
    words = text[start:end].split(" ")
    head = words[words.index("of") - 1] if "of" in words[1:] else words[-1]
    for kind, known in KINDS.items():
        if head in known or words[-1] in known:
            return kind
    if words[0] in ("Lake", "Mount", "Cape", "Mt.", "Fort", "Port") or words[-1] in COUNTRIES:
        return "location"
    if _is_person(words, text[max(0, start - 12) : start], text[end : end + 12]):
        return "person"
    return "product" if len(words) > 1 and words[-1][0].isdigit() else ""


def _is_person(words: Sequence[str], before: str, after: str) -> bool:
    previous = before.rstrip().rpartition(" ")[2].rstrip(".")
    if previous in ROLES or words[0] in HONORIFICS or words[0] in GIVEN_NAMES and words[-1] not in DEMONYMS:
        return True
    initials = len(words) > 1 and any(len(word) == 2 and word[1] == "." for word in words[:-1])
    return initials or after.startswith((" said", ", who ", " (born"))


def _quoted_titles(text: str) -> Iterator[_Found]:
    for match in _QUOTED.finditer(text):
        words = match[1].split(" ")
        if match[1][-1] not in ",.;" and len(words) <= 10 and _title_case(words):
            yield _Found(*match.span(1), "title")


def _title_case(words: Sequence[str]) -> bool:
    """Whether words are written as a title: capitals except for short words, not only one that opens a speech."""
    if not all(words) or not (_raised(words[0]) and _raised(words[-1])):
        return False
    return all(_raised(word) or len(word) < 4 or word in FUNCTION_WORDS for word in words)


def _raised(word: str) -> bool:
    return word[0].isupper() or word[0].isdigit()


def _defined(text: str, spans: Iterable[tuple[int, int]]) -> Iterator[_Found]:
    """What a sentence is about when it says what that is or what was done with it ("Gone with the Wind is a novel")."""
    for start, end in spans:
        match = _DEFINED.match(text, start, min(end, start + 240)) if _raised(text[start : start + 1]) else None
        if not match:
            continue
        words = match[1].split(" ")
        if len(words) > 2 and words[0] not in _NOT_SUBJECTS and _title_case(words) and not _plain_run(words):
            yield _Found(*match.span(1), _kind(text, *match.span(1)))


def _plain_run(words: Sequence[str]) -> bool:
    """Whether the names in capitals are found anyway, from the right word on."""
    return all(map(_raised, words)) and (words[0] == "The" or words[0].lower() not in OPENERS)


_NOT_SUBJECTS = words_of(
    "In On At By After Before During Since As For From With While When If Although But And Both Under To "
    "Because Like Former Current Today Yesterday"
)


def _dates(text: str) -> Iterator[_Found]:
    return (_Found(*match.span(), "time") for match in _DATE.finditer(text))


# Topics in English


def _topics(text: str) -> Iterator[_Found]:
    """Noun phrases in lower case: what stands between function words and verbs, without adverbs."""
    for match in _TOPIC_RUN.finditer(text):
        at, noun_expected = match.start(), False
        phrase: list[tuple[int, str]] = []
        for word in match[0].split(" "):
            if _breaks(word) > (noun_expected or bool(phrase)):
                if phrase:
                    yield from _topic(phrase, noun_expected)
                    phrase = []
                noun_expected = word in _BEFORE_NOUNS
            else:
                phrase.append((at, word))
            at += len(word) + 1
        yield from _topic(phrase, noun_expected)


_BEFORE_NOUNS = words_of("a an the of by for in with from as its his her their our my this these")


@lru_cache(maxsize=50_000)
def _breaks(word: str) -> int:
    """How surely a word ends a noun phrase: 2 always, 1 at its beginning (participles may be adjectives), 0 never."""
    if word in FUNCTION_WORDS or word in VERBS or len(word) < 3 or word.endswith("ly"):
        return 2
    return int(_verb_form(word))


def _topic(phrase: list[tuple[int, str]], noun_expected: bool) -> Iterator[_Found]:
    """The last words of a phrase when they are likely a topic: several, or one where a noun is due."""
    while phrase and (phrase[-1][1] in PLAIN_NOUNS or _verb_form(phrase[-1][1])):
        phrase.pop()
    words = phrase[-_LONGEST_TOPIC:]
    while words and words[0][1] in PLAIN_NOUNS:
        words.pop(0)
    if len(words) > 1 or words and noun_expected and len(words[0][1]) > 3:
        yield _Found(words[0][0], words[-1][0] + len(words[-1][1]), "concept", concept=True)


_LONGEST_TOPIC = 4  # words


def _verb_form(word: str) -> bool:
    return word.endswith(("ed", "ing")) and word not in NOT_VERBS


def _verb(word: str) -> bool:
    return word in VERBS or _verb_form(word)


# Chinese

_TAGGED_AT_ONCE = 4000  # characters


def _tagged(text: str) -> _Tagged:
    # The tagger's time grows faster than a run without marks; real sentences are far shorter than a piece.
    pieces = (text[at : at + _TAGGED_AT_ONCE] for at in range(0, len(text), _TAGGED_AT_ONCE))
    pairs = [pair for piece in pieces for pair in _tagger().tag(piece)]
    words, tags = zip(*pairs, strict=True) if pairs else ((), ())
    return _Tagged(words, tags, list(accumulate(map(len, words), initial=0)))


@cache
def _tagger() -> Any:
    import rjieba

    return rjieba.Jieba()


def _chinese_titles(text: str) -> Iterator[_Found]:
    for match in _BOOK.finditer(text):
        yield _Found(*match.span(match.lastindex or 0), "title" if match.lastindex == 1 else "")
    for match in _HAN_QUOTED.finditer(text):
        yield _Found(*match.span(1))


_NOUNS = words_of("n ng nr nrt nrfg ns nt nz vn an j b s")
_PEOPLE = words_of("nr nrfg nrt")
_NAMES = _PEOPLE | {"ns", "nt", "nz"}
_GIVEN = words_of("zg nr g x ng tg ag vg nz n")
_LONGEST_RUN = 6  # tokens of one name
_DOTS = "·•・"
_POLITE = ("先生", "女士", "夫人", "小姐")


def _dotted_names(text: str, tagged: _Tagged) -> Iterator[_Found]:
    """Foreign names that are written with dots ("列夫·托尔斯泰")."""
    words, tags, starts = tagged
    done = 0
    for match in _DOT.finditer(text):
        dot = bisect_right(starts, match.start()) - 1
        if dot <= done or words[dot] not in _DOTS or not _is_han(words[dot - 1]):
            continue
        first = done = dot - 1
        while done + 2 < len(words) and words[done + 1] in _DOTS and words[done + 2].isalnum():
            done += 2
        while done > first and done + 1 < len(words) and tags[done + 1] in _PEOPLE:  # a long part has several tokens
            done += 1
        if done > first:
            yield _Found(starts[first], starts[done + 1], "person")


def _chinese(tagged: _Tagged) -> Iterator[_Found]:
    words, tags, starts = tagged
    people = frozenset(word for word, tag in zip(words, tags, strict=True) if tag in _PEOPLE)
    run: list[_Token] = []
    for at, tag in enumerate(tags):
        noun = tag in _NOUNS
        if not noun and not run:
            continue
        token = _Token(starts[at], starts[at + 1], words[at], tag)
        if run and _is_given(token, run[-1]):
            run[-1] = _Token(run[-1].start, token.end, run[-1].word + token.word, "nrt")
        elif token.word not in CHINESE_PLAIN and (noun or _continues(token, run[-1])):
            run.append(token)
        else:
            yield from _noun_run(run, people)
            run = []
    yield from _noun_run(run, people)


def _continues(token: _Token, last: _Token) -> bool:
    """Whether what is no noun belongs to a run: an adjective, or the end of a name (河 and 省 have other tags)."""
    return token.tag in ("a", "g") and len(token.word) > 1 or last.tag in _NAMES and token.word in _ENDS


def _is_given(token: _Token, last: _Token) -> bool:
    """Whether a single character is the given name that follows a surname."""
    if len(last.word) > 1 or len(token.word) > 1 or last.tag != "nr" or last.word not in SURNAMES:
        return False
    return token.tag in _GIVEN and token.word not in NAME_TAILS and _is_han(token.word)


_ENDS = {end: kind for kind, ends in CHINESE_KINDS.items() for end in ends}


def _is_han(word: str) -> bool:
    return bool(_HAN_RUN.match(word))


def _noun_run(run: list[_Token], people: frozenset[str]) -> Iterator[_Found]:
    """Names and concepts of nouns that stand together."""
    named = False
    rest: list[_Token] = []
    for token in run:
        rest.append(token)
        named = named or token.tag in _NAMES
        kind = _whole_kind(rest[-_LONGEST_RUN:]) if named else None
        if kind is not None:
            # 青海省 is complete, 大学 wants what stands before it
            size = 1 if token.tag in ("ns", "nt") and len(token.word) > 2 else _LONGEST_RUN
            yield from _singles(rest[:-size], people)
            yield _Found(rest[-size:][0].start, token.end, kind)
            rest, named = [], False
    yield from _singles(rest, people)


def _whole_kind(run: Sequence[_Token]) -> str | None:
    """The kind of a name that ends with the run's last word, "" when unknown, None when it ends nothing."""
    last = run[-1].word
    if len(run) == 1:
        return _chinese_kind(last) or None if run[0].tag not in _PEOPLE else None
    if last in _POLITE and len(run) == 2 and len(run[0].word) < 3:
        return "person"
    kind = _chinese_kind(last)
    return kind or ("" if len(last) == 1 and run[-1].tag == "n" and run[0].tag in ("ns", "nz") else None)


def _singles(run: list[_Token], people: frozenset[str]) -> Iterator[_Found]:
    concept: list[_Token] = []
    for token in run:
        found = _chinese_name(token, people) if token.tag in _NAMES else None
        if found is None:
            concept.append(token)
            continue
        if concept:
            yield from _concept(concept)
            concept = []
        yield found
    if concept:
        yield from _concept(concept)


def _concept(run: list[_Token]) -> Iterator[_Found]:
    while run and len(run[0].word) == 1 and run[0].tag not in ("n", "b"):
        run.pop(0)
    words = run[-4:]
    if words and words[-1].end - words[0].start > 1 and words[0].word[0] not in "一二两三四五六七八九十诸众各":
        yield _Found(words[0].start, words[-1].end, "concept", concept=True)


def _chinese_name(token: _Token, people: frozenset[str]) -> _Found | None:
    if len(token.word) < 2:
        return None
    if token.tag in _PEOPLE:
        return _person(token, people)
    kind = _chinese_kind(token.word) or {"ns": "location", "nt": "organization"}.get(token.tag, "")
    return _Found(token.start, token.end, "person" if _has_compound_surname(token.word) else kind)


def _person(token: _Token, people: frozenset[str]) -> _Found | None:
    """The person that a token names; the tagger's guesses at unknown names may hold a neighbour's character."""
    start, word, tag = token.start, token.word, token.tag
    if word[-1] == "曰" or not _in_dictionary(word):
        bare = _bare(word, people)
        start, word = start + word.index(bare), bare
    surname = word[0] in SURNAMES
    if tag == "nrt" and len(word) < 3 and not surname or not surname and not _in_dictionary(word):
        return None
    if len(word) > (4 if _has_compound_surname(word) else 3) and tag != "nrt" or len(word) < 2:
        return None
    return _Found(start, start + len(word), "person" if surname or tag != "nr" else "")


def _bare(word: str, people: frozenset[str]) -> str:
    """A guessed name without what the guess took from its neighbours; the chunk may know the name itself."""
    if len(word) > 2:
        known = next((part for part in (word[:-1], word[1:], word[:-2]) if len(part) > 1 and part in people), None)
        if known:
            return known
    while len(word) > 1 and word[-1] in NAME_TAILS:
        word = word[:-1]
    while len(word) > 2 and word[0] in NAME_HEADS:
        word = word[1:]
    return word


def _has_compound_surname(word: str) -> bool:
    return len(word) > 2 and word.startswith(COMPOUND_SURNAMES)


def _in_dictionary(word: str) -> bool:
    return bool(_tagger().has_word(word))


@cache
def _chinese_kind(word: str) -> str:
    """What the end of a name says about its kind; the longest known end decides."""
    ends = [word[-length:] for length in (4, 3, 2, 1) if length <= len(word)]
    return next((_ENDS[end] for end in ends if end in _ENDS and (len(end) > 1 or len(word) != 2)), "")


# Relations


def _relations(
    text: str, found: Sequence[_Found], spans: Sequence[tuple[int, int]], tagged: _Tagged
) -> tuple[Relation, ...]:
    """Pairs within one sentence, the closest of the chunk first; what a pair shares more often weighs more."""
    names = {one.key: text[one.start : one.end] for one in reversed(found)}
    weights: dict[tuple[str, str], float] = {}
    labels: dict[tuple[str, str], str] = {}
    for one, other, gap in (near for group in _by_sentence(found, spans) for near in _pairs(group)):
        pair = one.key, other.key
        if pair[0] == pair[1]:
            continue
        weights[pair] = weights.get(pair, 0.0) + 1 / gap
        if gap < _LABELLED_GAP and not labels.get(pair):
            labels[pair] = _label(text, one.end, other.start, tagged)
    strongest = sorted(weights, key=lambda pair: -weights[pair])[: RELATIONS_PER_MENTION * len(names)]
    return tuple(
        Relation(
            names[source], names[target], labels.get((source, target), ""), weight=round(weights[source, target], 3)
        )
        for source, target in strongest
    )


def _by_sentence(found: Sequence[_Found], spans: Sequence[tuple[int, int]]) -> Iterator[list[_Found]]:
    ends = [end for _, end in spans]
    group: list[_Found] = []
    current = -1
    for one in found:
        sentence = bisect_right(ends, one.start)
        if sentence != current:
            yield group
            group, current = [], sentence
        group.append(one)
    yield group


def _pairs(group: Sequence[_Found]) -> Iterator[tuple[_Found, _Found, int]]:
    """Mentions of a sentence that are close, with how many steps apart: names among names, concepts with neighbours."""
    names = [one for one in group if not one.concept]
    for at, one in enumerate(names):
        yield from ((one, other, gap) for gap, other in enumerate(names[at + 1 : at + 1 + _NEIGHBOURS], start=1))
    for at, one in enumerate(group):
        for gap, other in enumerate(group[at + 1 : at + 1 + _CONCEPT_REACH], start=1):
            if one.concept or other.concept:
                yield one, other, gap + 1


def _label(text: str, start: int, end: int, tagged: _Tagged) -> str:
    """The words between two mentions that say how they are connected, when they are few and there are some."""
    if not 1 < end - start <= _LONGEST_LABEL:
        return ""
    between = text[start:end]
    if _HAN_RUN.search(between):
        return _chinese_label(tagged, bisect_left(tagged.starts, start), bisect_left(tagged.starts, end))
    if not between[0].isspace() or any(mark in between for mark in ',;:()"“”—\n'):
        return ""
    return _english_label(_WORDS.findall(between))


def _chinese_label(tagged: _Tagged, first: int, last: int) -> str:
    words = tagged.words[first:last]
    if any(word in "，；：、（）。" for word in words):
        return ""
    verbs = [word for word, tag in zip(words, tagged.tags[first:last], strict=True) if tag in ("v", "vn")]
    return next((verb for verb in reversed(verbs) if verb not in "是有在为到让使"), "")


def _english_label(words: Sequence[str]) -> str:
    """A verb with what follows it up to the next article ("was directed by the" is "directed by")."""
    for at, word in enumerate(words):
        if _verb(word) and word not in _AUXILIARIES:
            following = takewhile(lambda one: one not in _ARTICLES, words[at : at + _LABEL_WORDS])
            return " ".join(following)
    return ""


_AUXILIARIES = words_of("is are was were be been am being has have had having do does did done")
_ARTICLES = words_of("a an the its his her their and or")
