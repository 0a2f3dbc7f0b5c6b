"""What WordprocessingML means: the text of paragraphs, cells, notes and margins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

# Elements are lxml's, which has no types.
Element = Any

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_MATH_TEXT = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"
_BREAKS = {f"{W}tab": "\t", f"{W}br": "\n", f"{W}cr": "\n", f"{W}noBreakHyphen": "-"}
# Text boxes are told apart from the paragraph they hang on; a fallback repeats one; the rest is not shown.
_SKIPPED = frozenset({f"{W}txbxContent", f"{W}del", f"{W}moveFrom", f"{W}pPr", _FALLBACK})
_WRAPPERS = frozenset({f"{W}sdt", f"{W}sdtContent", f"{W}customXml", f"{W}ins", f"{W}moveTo"})
_HEADING_NAME = re.compile(r"(?:heading|标题)\s*(\d)", re.IGNORECASE)
_NOTES = ("footnotes", "endnotes")


def _inside(element: Element) -> Iterator[Element]:
    """All descendants that are shown, in order, without recursion."""
    stack = list(reversed(element))
    while stack:
        child = stack.pop()
        if child.tag not in _SKIPPED:
            yield child
            stack.extend(reversed(child))


def story(element: Element) -> Iterator[Element]:
    """The paragraphs and tables directly in a body, a cell or a note, in order."""
    stack = list(reversed(element))
    while stack:
        child = stack.pop()
        if child.tag in (f"{W}p", f"{W}tbl"):
            yield child
        elif child.tag in _WRAPPERS:
            stack.extend(reversed(child))


def paragraph_text(paragraph: Element) -> str:
    """The visible text of a paragraph: no deleted text, no field codes, no text boxes."""
    parts = []
    for node in _inside(paragraph):
        if node.tag in (f"{W}t", _MATH_TEXT):
            parts.append(node.text or "")
        else:
            parts.append(_BREAKS.get(node.tag, ""))
    return "".join(parts)


def story_text(element: Element) -> str:
    """All text of a cell, note or margin: a line for each paragraph, nested tables row by row."""
    lines: list[str] = []
    for child in story(element):
        if child.tag == f"{W}tbl":
            lines.extend(" | ".join(filter(None, row)) for row in table_rows(child))
        else:
            lines.append(paragraph_text(child))
            lines.extend(text_boxes(child))
    return "\n".join(line for line in lines if line.strip())


def text_boxes(paragraph: Element) -> Iterator[str]:
    """The texts of the boxes that hang on a paragraph, each once."""
    for box in paragraph.iter(f"{W}txbxContent"):
        if next(box.iterancestors(_FALLBACK), None) is None and (text := story_text(box)):
            yield text


def table_rows(table: Element) -> Iterator[list[str]]:
    """The texts of the cells; one merged over rows has its text in each of them, in the first column it spans."""
    above: dict[int, str] = {}
    for row in _through(table, f"{W}tr"):
        texts: list[str] = [""] * _number(row.find(f"{W}trPr/{W}gridBefore"), 0)
        for cell in _through(row, f"{W}tc"):
            merge = cell.find(f"{W}tcPr/{W}vMerge")
            goes_on = merge is not None and merge.get(f"{W}val", "continue") == "continue"
            span = _number(cell.find(f"{W}tcPr/{W}gridSpan"), 1)
            place = len(texts)
            if not goes_on:
                above[place] = story_text(cell)
            texts.extend([above.get(place, ""), *[""] * (span - 1)])
        yield texts


def _through(element: Element, tag: str) -> Iterator[Element]:
    for child in element:
        if child.tag == tag:
            yield child
        elif child.tag in _WRAPPERS:
            yield from _through(child, tag)


def _number(element: Element, default: int) -> int:
    value = "" if element is None else element.get(f"{W}val", "")
    return min(int(value), 100) if value.isdecimal() else default


def heading_levels(document: Any) -> dict[str, int]:
    """The heading level, from 0 for the title, of each paragraph style that is a heading."""
    styles = {style.get(f"{W}styleId"): style for style in document.styles.element.iter(f"{W}style")}
    found = ((name, _style_level(style, styles)) for name, style in styles.items())
    return {name: level for name, level in found if level is not None}


def _style_level(style: Element, styles: dict[str, Element]) -> int | None:
    for _ in range(10):
        name = style.find(f"{W}name")
        label = "" if name is None else name.get(f"{W}val", "")
        if label.lower() == "title":
            return 0
        if match := _HEADING_NAME.match(label):
            return int(match.group(1))
        if (level := _outline(style)) is not None:
            return level
        parent = style.find(f"{W}basedOn")
        style = None if parent is None else styles.get(parent.get(f"{W}val"))
        if style is None:
            return None
    return None


def _outline(element: Element) -> int | None:
    """The outline level counted from 1; 9 stands for body text in the format."""
    level = _number(element.find(f"{W}pPr/{W}outlineLvl"), 9)
    return level + 1 if level < 9 else None


def heading_level(paragraph: Element, levels: dict[str, int]) -> int | None:
    """The level of a paragraph that is a heading, by itself or by its style; None for body text."""
    own = _outline(paragraph)
    style = paragraph.find(f"{W}pPr/{W}pStyle")
    return own if own is not None or style is None else levels.get(style.get(f"{W}val"))


def notes(document: Any) -> Iterator[str]:
    """Footnotes and endnotes; their marks are left out of the text, which is searched for as it reads."""
    from docx.oxml import parse_xml

    for relation in document.part.rels.values():
        kind = relation.reltype.rpartition("/")[2]
        if kind not in _NOTES or relation.is_external:
            continue
        for note in parse_xml(relation.target_part.blob):
            if note.get(f"{W}type") in (None, "normal") and (text := story_text(note)):
                yield text.strip()


def margins(document: Any) -> Iterator[str]:
    """The texts of headers and footers of all sections, each different one once."""
    seen: set[str] = set()
    for relation in document.part.rels.values():
        if relation.reltype.rpartition("/")[2] in ("header", "footer") and not relation.is_external:
            text = story_text(relation.target_part.element).strip()
            if text and text not in seen:
                seen.add(text)
                yield text
