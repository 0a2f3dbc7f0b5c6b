"""Numbers and dates of a spreadsheet as its reader sees them."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from functools import lru_cache

Value = str | float | bool | datetime | date | time | timedelta | None

_QUOTED = re.compile(r'"([^"]*)"|\\(.)|[_*].')
_BRACKETS = re.compile(r"\[\$([^\]-]*)[^\]]*\]|\[[^\]]*\]")
_PLACES = re.compile(r"[0#?](?:[0#?,.]*[0#?])?")
_DATE_LETTERS = re.compile(r"[ymdhs年月日时]", re.IGNORECASE)
_EPOCH = datetime(1899, 12, 30)


def shown(value: Value, number_format: str = "General") -> str:
    """The text in a cell: dates as ISO, percentages with their sign, numbers with the decimals of the format.

    Thousands are not grouped: people search for 1599, whatever a column's format is.
    """
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case int() | float():
            return _number(value, number_format)
        case datetime():
            return _moment(value, number_format)
        case timedelta():
            return _duration(value)
        case date() | time():
            return value.isoformat()
        case _:
            return " ".join(str(value).split())


def is_date_format(number_format: str) -> bool:
    """Whether numbers in this format are days since 1900."""
    bare = _BRACKETS.sub("", _QUOTED.sub("", number_format.partition(";")[0]))
    return "General" not in number_format and bool(_DATE_LETTERS.search(bare))


def moment(serial: float) -> datetime:
    """The date and time of a spreadsheet's day number (1900 system)."""
    return _EPOCH + timedelta(days=serial)


def _moment(value: datetime, number_format: str) -> str:
    value = (value + timedelta(microseconds=500_000)).replace(microsecond=0)
    bare = _BRACKETS.sub("", _QUOTED.sub("", number_format)).lower()
    clock, calendar = bool(re.search(r"[hs时]", bare)), bool(re.search(r"[yde年日]", bare))
    if value.date() <= _EPOCH.date() + timedelta(days=1) or (clock and not calendar):
        return value.time().isoformat()
    dated_only = value.time() == time() or (calendar and not clock)
    return value.date().isoformat() if dated_only else value.isoformat(" ")


def _duration(value: timedelta) -> str:
    minutes, seconds = divmod(round(value.total_seconds()), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _number(value: float, number_format: str) -> str:
    section = _section(number_format or "General", value)
    if "general" in section.lower() or "@" in section:
        return _plain(value)
    pattern, before, after = _parts(section)
    if not pattern:
        return f"{before}{after}".strip() or _plain(value)
    # A format with a section of its own for negative numbers writes the sign itself.
    own_sign = ";" in number_format and value < 0
    amount = abs(value) if own_sign else value
    return f"{before}{_filled(amount, section, pattern)}{after}".strip()


@lru_cache(maxsize=512)
def _section(number_format: str, value: float) -> str:
    sections = number_format.split(";")
    index = 1 if value < 0 else 2 if value == 0 else 0
    return sections[index] if index < len(sections) else sections[0]


@lru_cache(maxsize=512)
def _parts(section: str) -> tuple[str, str, str]:
    """The pattern of digits, and the literal text before and after it."""
    bare = _QUOTED.sub(lambda match: match[1] or match[2] or "", _BRACKETS.sub(lambda match: match[1] or "", section))
    found = _PLACES.search(bare)
    if not found:
        return "", bare, ""
    after = re.sub(r"^(?:[eE][+-]?[0#]+|\s*/\s*[\d?#]+|\s*[?#0]+\s*/\s*[\d?#]+)", "", bare[found.end() :])
    return found.group(), bare[: found.start()], after


def _filled(amount: float, section: str, pattern: str) -> str:
    if re.search(r"[?#0]\s*/\s*[\d?#]", section):
        return _fraction(amount, section)
    whole, _, decimals = pattern.partition(".")
    places = sum(char in "0?" or char == "#" for char in decimals)
    if re.search(r"[eE][+-]?0", section):
        return f"{amount:.{places}E}"
    amount = amount * 100 if "%" in section else amount
    # As spreadsheets do: half away from zero, of the number as it is written.
    digits = f"{Decimal(repr(amount)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP):f}"
    optional = len(decimals) - len(decimals.rstrip("#"))
    for _ in range(optional):
        digits = digits[:-1] if digits.endswith("0") else digits
    digits = digits.rstrip(".")
    zeros = whole.replace(",", "").count("0")
    sign, bare = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    missing = zeros - len(bare.partition(".")[0])
    return sign + "0" * missing + bare


def _fraction(amount: float, section: str) -> str:
    fixed = re.search(r"/\s*(\d+)", section)
    signs = re.search(r"/\s*([?#]+)", section)
    most = 10 ** len(signs[1]) - 1 if signs else 99
    part = Fraction(round(amount * int(fixed[1])), int(fixed[1])) if fixed else Fraction(amount).limit_denominator(most)
    whole, rest = divmod(abs(part), 1)
    sign = "-" if part < 0 else ""
    if not rest:
        return f"{sign}{whole}"
    bottom = int(fixed[1]) if fixed else rest.denominator
    top = rest * bottom
    return f"{sign}{whole} {top}/{bottom}" if whole else f"{sign}{top}/{bottom}"


def _plain(value: float) -> str:
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return str(int(value))
    return f"{value:.15g}" if value == value and abs(value) != float("inf") else str(value)
