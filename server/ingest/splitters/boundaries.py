"""Where a text may be cut: paragraph, line, sentence, clause, word, character."""

from __future__ import annotations

import re
import unicodedata

_CLOSERS = frozenset("。！？；，、：”’）》」』】〕…!?;,.:)]}%")
# Abbreviations are looked for behind the mark, where the expression rarely comes.
_SENTENCE = re.compile(
    r"""[。！？…]+["'”’）》」』】)]*"""
    r"""|[.!?]+(?<!\bMr\.)(?<!\bMs\.)(?<!\bDr\.)(?<!\bMrs\.)(?<!\bNo\.)(?<!\be\.g\.)(?<!\bi\.e\.)["'”’)\]]*(?=\s)"""
)
_SENTENCE_OR_LINE = re.compile(f"{_SENTENCE.pattern}|\\n")
_LEVELS = (
    re.compile(r"\n[^\S\n]*\n"),
    # A line that ends in a letter or a comma and goes on with a letter was only wrapped there.
    re.compile(r"(?<![a-z,])\n|\n(?![A-Za-z(\"'“‘])"),
    _SENTENCE,
    re.compile(r"；|;(?=\s)"),
    re.compile(r"，|、|：|[,:](?=\s)"),
)
# Most of the time of a text without marks would go into looking for each of them.
_ANY_MARK = re.compile(r"[\n。！？…；，、：.!?;,:]")
_LINE = re.compile(r"\n")
_SPACES = " \n\t\u3000\xa0"
_NEAR = 40
_JOINERS = frozenset("\u200d\ufe0e\ufe0f\u20e3")


def last_cut(text: str, low: int, high: int) -> int | None:
    """The best place to cut in (low, high]: the last one of the strongest kind that occurs there."""
    if _ANY_MARK.search(text, low, high) is None:
        return None
    for pattern in _LEVELS:
        cut = _last(pattern, text, low, high)
        if cut is not None:
            return cut
    return None


def first_sentence(text: str, low: int, high: int) -> int | None:
    """The end of the first sentence, line or paragraph in (low, high]."""
    for match in _SENTENCE_OR_LINE.finditer(text, low, min(len(text), high + 1)):
        if low < match.end() <= high and text[low : match.end()].strip() and is_clean(text, match.end()):
            return match.end()
    return None


def last_line(text: str, low: int, high: int) -> int | None:
    """The end of the last line in (low, high]."""
    return _last(_LINE, text, low, high)


def last_word(text: str, low: int, high: int) -> int | None:
    """The start of the last white space in (low, high]."""
    found = max(text.rfind(space, low + 1, high + 1) for space in _SPACES)
    while found > low and not is_clean(text, found):
        found = max(text.rfind(space, low + 1, found) for space in _SPACES)
    return found if found > low else None


def last_character(text: str, low: int, high: int) -> int:
    """The last place in (low, high] that leaves words whole, else characters as people see them, else `high`."""
    if _is_one_word(text[max(low, high - _NEAR) : high + 1]):
        return high
    near = range(high, max(low, high - _NEAR), -1)
    word = next((cut for cut in near if _begins_word(text, cut)), None)
    return next((cut for cut in near if is_clean(text, cut)), high) if word is None else word


def first_start(text: str, low: int, high: int) -> int:
    """Where an overlap in [low, high] begins: at a sentence, else at a word, else at a character."""
    ends = (match.end() for match in _SENTENCE.finditer(text, max(0, low - 2), high))
    sentence = next((end for end in ends if low <= end < high and is_clean(text, end)), None)
    if sentence is not None:
        return sentence
    if _is_one_word(text[max(0, low - 1) : high]):
        return low
    for start in range(low, high):
        if _begins_word(text, start):
            return start
    return next((start for start in range(low, high) if is_clean(text, start)), high)


def is_clean(text: str, cut: int) -> bool:
    """Whether a cut leaves characters whole and no closing mark at the start of what follows."""
    if cut >= len(text):
        return True
    after = next((char for char in text[cut : cut + 8] if not char.isspace()), " ")
    return after not in _CLOSERS and not _is_joined(text[cut - 1], text[cut])


def _last(pattern: re.Pattern[str], text: str, low: int, high: int) -> int | None:
    found = None
    # One more character is shown, for the patterns that look at what follows.
    for match in pattern.finditer(text, low, min(len(text), high + 1)):
        if low < match.end() <= high and is_clean(text, match.end()):
            found = match.end()
    return found


def _is_joined(before: str, after: str) -> bool:
    """Whether two neighbours are parts of one character as people see it."""
    if before < "\u0300" and after < "\u0300":
        return before == "\r" and after == "\n"
    if after in _JOINERS or before == "\u200d" or "\U0001f3fb" <= after <= "\U0001f3ff":
        return True
    if "\U0001f1e6" <= before <= "\U0001f1ff" and "\U0001f1e6" <= after <= "\U0001f1ff":
        return True
    return unicodedata.category(after) in ("Mn", "Me", "Mc")


def _begins_word(text: str, start: int) -> bool:
    if not 0 < start < len(text):
        return True
    before, here = text[start - 1], text[start]
    if here.isspace() or not is_clean(text, start):
        return False
    return not (before.isalnum() and before < "\u2e80" and here.isalnum() and here < "\u2e80")


def _is_one_word(text: str) -> bool:
    return text.isascii() and text.isalnum()
