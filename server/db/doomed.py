"""Vectors that are to be deleted in their stores, whether these can be reached now or later."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, delete, insert, select

from server.db.tables import DoomedSpaceRow, GenerationRow, KnowledgeBaseRow
from server.domain import Generation

_COLUMNS = ["generation_id", "kb_id", "kb_uid", "vs_type"]


def add(sql: Connection, condition: ColumnElement[bool]) -> None:
    """Note the vectors of generations whose rows are about to go."""
    rows = select(GenerationRow.id, GenerationRow.kb_id, KnowledgeBaseRow.uid, GenerationRow.vs_type)
    found = rows.join(KnowledgeBaseRow, KnowledgeBaseRow.id == GenerationRow.kb_id).where(condition)
    sql.execute(insert(DoomedSpaceRow).from_select(_COLUMNS, found))


def list_all(sql: Connection) -> list[Generation]:
    """The generations whose vectors are to be deleted; of them only ids and stores are known."""
    rows = sql.execute(select(*(getattr(DoomedSpaceRow, name) for name in _COLUMNS)))
    return [Generation(number, kb_id, vs_type, "", None, {}, kb_uid=uid) for number, kb_id, uid, vs_type in rows]


def remove(sql: Connection, generation_id: int) -> None:
    """Note that they are gone."""
    sql.execute(delete(DoomedSpaceRow).where(DoomedSpaceRow.generation_id == generation_id))
