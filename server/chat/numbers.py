"""Numbers in Chinese and English text, however they are written: "1,500,000", "1.5 million", "一百五十万", "150万"."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal

_SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "百": 10**2, "千": 10**3, "万": 10**4, "亿": 10**8, "百万": 10**6, "千万": 10**7,
}  # fmt: skip
_DIGITS = re.compile(
    r"(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)*)"
    r"(?:[ -]?(hundred|thousand|million|billion|trillion)|\s?([百千]?万|亿|百|千))?",
    re.IGNORECASE,
)
_CHINESE = re.compile("[零〇一二两三四五六七八九十百千万亿]{1,24}")
_LONGEST = 24  # digits; whatever is longer is no quantity
_UNITS = {"十": 10, "百": 100, "千": 1000}
_FIGURES = {figure: value for value, figure in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_SMALL = "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
_TEENS = "thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_NAMED = {
    **{word: at for at, word in enumerate(f"{_SMALL}|{_TEENS}".split("|"))},
    **{word: 10 * at for at, word in enumerate(_TENS.split("|"), start=2)},
    **{word: at for at, word in enumerate(_MONTHS.split("|"), start=1)},
    **{"once": 1, "twice": 2, "first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "dozen": 12},
}
_WORD = re.compile(rf"\b(?:{'|'.join(_NAMED)})\b", re.IGNORECASE)


def numbers(text: str) -> set[str]:
    """The numbers that are written in digits, in plain form without separators and scales."""
    return set(_written(unicodedata.normalize("NFKC", text)))


def spoken_numbers(text: str) -> set[str]:
    """The numbers that are written in words, and those of months."""
    plain = unicodedata.normalize("NFKC", text)
    words = {str(_NAMED[match[0].lower()]) for match in _WORD.finditer(plain)}
    return words | {str(value) for match in _CHINESE.finditer(plain) for value in _chinese(match[0])}


def without_numbers(text: str) -> str:
    """The text without the numbers, and their scales, that `numbers` finds."""
    return _DIGITS.sub(" ", unicodedata.normalize("NFKC", text))


def _written(text: str) -> Iterator[str]:
    for match in _DIGITS.finditer(text):
        digits, scale = match[1].replace(",", ""), _SCALES.get((match[2] or match[3] or "").lower(), 1)
        if scale > 1 and digits.count(".") < 2 and len(digits) < _LONGEST:
            yield f"{Decimal(digits) * scale:f}".rstrip("0").rstrip(".") if "." in digits else str(int(digits) * scale)
        else:
            yield digits.lstrip("0") or "0"


def _chinese(text: str) -> Iterator[int]:
    """What a run of Chinese figures may mean: the value, or the digits one by one ("一九五五")."""
    if all(character in _FIGURES for character in text):
        yield int("".join(str(_FIGURES[character]) for character in text))
        return
    total = section = figure = 0
    for character in text:
        if character in _FIGURES:
            figure = _FIGURES[character]
        elif character in _UNITS:
            section, figure = section + (figure or 1) * _UNITS[character], 0
        else:
            total, section, figure = (total + section + figure or 1) * _SCALES[character], 0, 0
    yield total + section + figure
