"""Tables inside documents, as Markdown blocks that repeat their header."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from server.domain import Block

Row = Sequence[str]

# Rows are grouped up to this many characters: a group with its header fits a default chunk.
_GROUP = 240


def table_blocks(rows: Sequence[Row], headings: tuple[str, ...] = (), page: int | None = None) -> Iterator[Block]:
    """Whole blocks of Markdown rows; the first row that is not empty is the header of each of them.

    A cell that is None in no way differs from an empty one; rows may differ in length. A table of one
    row, or of one column, has no header and comes as plain lines.
    """
    filled = [tuple(map(_cell, row)) for row in rows]
    filled = [row for row in filled if any(row)]
    if not filled:
        return
    width = max(map(len, filled))
    if len(filled) == 1 or width == 1:
        text = "\n".join(" | ".join(cell for cell in row if cell) for row in filled)
        yield Block(text, page, headings, whole=True)
        return
    lines = [_line(row, width) for row in filled]
    head = f"{lines[0]}\n|{' --- |' * width}"
    for group in _groups(lines[1:], _GROUP - len(head)):
        yield Block("\n".join((head, *group)), page, headings, whole=True)


def _groups(lines: list[str], room: int) -> Iterator[list[str]]:
    group: list[str] = []
    used = 0
    for line in lines:
        if group and used + len(line) > room:
            yield group
            group, used = [], 0
        group.append(line)
        used += len(line) + 1
    yield group


def _line(row: Row, width: int) -> str:
    cells = (*row, *[""] * (width - len(row)))
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
