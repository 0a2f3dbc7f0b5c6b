"""Canonical texts: what a file says, once for each version, in parts that can be read without the whole."""

from __future__ import annotations

from sqlalchemy import Connection, func, insert, literal, select

from server.db.tables import DocumentRow, TextRow

_PART = 100_000
"""Characters of a part."""


def add(sql: Connection, document_id: int, start: int, text: str) -> None:
    """Store a stretch of the text of a version, which begins at the offset `start`."""
    rows = [
        {"document_id": document_id, "start": start + at, "text": text[at : at + _PART]}
        for at in range(0, len(text), _PART)
    ]
    if rows:
        sql.execute(insert(TextRow), rows)


def copy(sql: Connection, file_id: int, file_version: int, document_id: int) -> None:
    """Give a new document of a file the text that searchers see of the same version."""
    other = select(DocumentRow.id).where(
        DocumentRow.file_id == file_id, DocumentRow.file_version == file_version, DocumentRow.live
    )
    source = sql.scalar(other.order_by(DocumentRow.id.desc()))
    if source is not None and source != document_id:
        rows = select(literal(document_id), TextRow.start, TextRow.text).where(TextRow.document_id == source)
        sql.execute(insert(TextRow).from_select(["document_id", "start", "text"], rows))


def length(sql: Connection, document_id: int) -> int:
    """Number of characters of a version's text."""
    last = sql.execute(
        select(TextRow.start, TextRow.text).where(TextRow.document_id == document_id).order_by(TextRow.start.desc())
    ).first()
    return last[0] + len(last[1]) if last else 0


def read(sql: Connection, document_id: int, start: int, end: int) -> str:
    """The characters of a version's text from one offset to another."""
    before = select(func.max(TextRow.start)).where(TextRow.document_id == document_id, TextRow.start <= start)
    rows = sql.execute(
        select(TextRow.start, TextRow.text)
        .where(
            TextRow.document_id == document_id,
            TextRow.start >= func.coalesce(before.scalar_subquery(), 0),
            TextRow.start < end,
        )
        .order_by(TextRow.start)
    ).all()
    if not rows:
        return ""
    first = rows[0][0]
    return "".join(text for _, text in rows)[max(0, start - first) : end - first]
