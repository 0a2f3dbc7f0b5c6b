"""Making running text of what a PDF page holds: lines in, paragraphs out."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from server.ingest.loaders.encoding import clean

# Glyph variants that stand for ordinary characters: Latin ligatures, CJK and Kangxi radicals.
_FOLDED = {
    code: folded
    for code in (*range(0xFB00, 0xFB07), *range(0x2E80, 0x2FD6))
    if (folded := unicodedata.normalize("NFKC", chr(code))) != chr(code)
}
_BROKEN_WORD = re.compile(r"(?<=\w)[\x02\ufffe](?:\r?\n)?(?=\w)")
_HYPHEN_END = re.compile(r"[a-zà-ÿ][-\u00ad\u2010]$")
_NUMBER = re.compile(r"[0-9]{1,5}")
_SENTENCE_END = re.compile(r"""[.!?。！？:：;；…][)"'”’」』）]*$""")
_LIST_START = re.compile(r"[•●○■▪◦·*–—-]\s|\(?\d{1,3}[.)、．]|[（(]?[一二三四五六七八九十]+[）)、]|第.{1,5}[章节条回]")
_WIDE = re.compile(r"[\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60]")
_EDGE = 3
_MIN_WIDTH = 20
_MIN_PAGES = 3
_RUNNING_SHARE = 0.4
_MAX_NUMBERS = 4


def page_lines(text: str) -> list[str]:
    """The lines of a page, without blank ones; ligatures are letters again, words are whole."""
    text = clean(_BROKEN_WORD.sub("", text)).translate(_FOLDED).replace("\u00ad\n", "")
    return [line for raw in text.split("\n") if (line := raw.strip())]


def without_running_lines(pages: Sequence[list[str]]) -> list[list[str]]:
    """The pages without headers and footers: lines at the edge of many pages that differ in the page number only.

    The last line of a page is never taken away; other numbers than that of the page make lines different.
    """
    need = max(_MIN_PAGES, math.ceil(_RUNNING_SHARE * sum(map(bool, pages))))
    kept = [list(lines) for lines in pages]
    for _ in range(_EDGE):
        for edge in (0, -1):
            _take_edge(kept, edge, need)
    return kept


def _take_edge(pages: list[list[str]], edge: int, need: int) -> None:
    """Removes the first or last line of those pages where it is a running one."""
    shapes = [_shapes(lines[edge], number) if lines else set() for number, lines in enumerate(pages)]
    counts = Counter(shape for variants in shapes for shape in variants)
    for lines, variants in zip(pages, shapes, strict=True):
        if len(lines) > 1 and any(counts[shape] >= need for shape in variants):
            del lines[edge]


def _shapes(line: str, number: int) -> set[str]:
    """The line as it is, and with each of its numbers told relative to that of the page."""
    relative = (
        f"{line[: match.start()]}#{int(match.group()) - number}{line[match.end() :]}"
        for match in islice(_NUMBER.finditer(line), _MAX_NUMBERS)
    )
    return {"".join(shape.split()) for shape in (line, *relative)}


def paragraphs(lines: Sequence[str]) -> str:
    """One text of the lines: those that only ended because the page did are joined, others keep "\\n"."""
    if not lines:
        return ""
    full = _full_width(lines)
    text = [lines[0]]
    for before, line in zip(lines, lines[1:], strict=False):
        text.append(_joint(before, line, full))
        if text[-1] == "-":
            text[-2:] = [text[-2][:-1], ""]
        text.append(line)
    return "".join(text)


def _full_width(lines: Sequence[str]) -> float:
    """How wide a line must be to count as full: near to the widest quarter of the page."""
    widths = sorted(map(text_width, lines))
    return 0.75 * widths[len(widths) * 3 // 4]


def text_width(line: str) -> int:
    """The width of a line in narrow characters: Chinese ones are twice as wide."""
    return len(line) + len(_WIDE.findall(line))


def _goes_on(before: str, line: str, full: float) -> bool:
    """Whether a line ended for want of room only."""
    width = text_width(before)
    if width < _MIN_WIDTH:
        return False
    if _SENTENCE_END.search(before):
        return width >= 1.2 * full
    # A small letter never begins a paragraph, wherever the line before it ended.
    return width >= full or (line[0].islower() and (before[-1].isalnum() or before[-1] in ",)"))


def _joint(before: str, line: str, full: float) -> str:
    """What stands between two lines: "" or a space inside a paragraph, "-" for a word to be mended."""
    if _HYPHEN_END.search(before) and line[0].islower():
        return "-"
    if _LIST_START.match(line) or not _goes_on(before, line, full):
        return "\n"
    return "" if _WIDE.match(before[-1]) and _WIDE.match(line[0]) else " "
