"""Sentences of Chinese and English prose, as places in the text."""

from __future__ import annotations

import re

_STOP = re.compile(r"[。！？!?；;]+[”’」』】》）)\"']*|\.+[”’)\"']*(?=\s|$|[\u3400-\u9fff])|\n")
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|Rev|Gen|Col|Capt|Lt|Sgt|Gov|Sen|St|Mt|Ft|Jr|Sr|Inc|Ltd|Co|Corp|No|v|vs|Vol|Figs?|Eq|"
    r"pp?|ca|approx|al|etc|e\.g|i\.e|cf|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)|\b[A-Z]|(?:^|\n)\s*\d{1,3})$"
)
_LONGEST_ABBREVIATION = 12


def sentences(text: str) -> list[tuple[int, int]]:
    """Places of the sentences of a text, without the white space around them."""
    spans, start = [], 0
    for match in _STOP.finditer(text):
        if match[0][0] != "." or _is_end(text, match):
            spans.append((start, match.end()))
            start = match.end()
    spans.append((start, len(text)))
    trimmed = ((a + len(text[a:z]) - len(text[a:z].lstrip()), a + len(text[a:z].rstrip())) for a, z in spans)
    return [(a, z) for a, z in trimmed if a < z]


def _is_end(text: str, stop: re.Match[str]) -> bool:
    before = text[max(0, stop.start() - _LONGEST_ABBREVIATION) : stop.start()]
    return not _ABBREVIATION.search(before) and not text[stop.end() : stop.end() + 3].lstrip()[:1].islower()
