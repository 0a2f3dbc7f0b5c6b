"""What a move of a knowledge base does in SQL: chunks go over to a new generation, an old one is kept."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select, update

from server.db import kbs
from server.db.tables import DocumentRow, GenerationRow, GraphReportRow, GraphSummaryRow, GraphVectorRow
from server.domain import Generation

_CARRIED = (
    GenerationRow.options, GenerationRow.dimension, GenerationRow.transform, GenerationRow.transform_no,
    GenerationRow.transform_size,
)  # fmt: skip


def hand_over(sql: Connection, old: Generation, new: Generation) -> None:
    """Let a generation take the place of another one of the same embedding model, with all its documents; chunks keep
    their ids."""
    carried = sql.execute(select(*_CARRIED).where(GenerationRow.id == old.id)).one()
    sql.execute(update(GenerationRow).where(GenerationRow.id == new.id).values(carried._asdict()))
    sql.execute(update(DocumentRow).where(DocumentRow.generation_id == old.id).values(generation_id=new.id))
    kbs.set_generation(sql, old.kb_id, new.id)
    kbs.drop_generation(sql, old.id)


def keep(sql: Connection, kb_id: int, old: Generation | None) -> None:
    """Keep this generation to go back to, and no other. What was made of many of its chunks for a graph is deleted: it
    would go on quoting those that are deleted later."""
    sql.execute(update(GenerationRow).where(GenerationRow.kb_id == kb_id).values(kept=False))
    if old is not None:
        sql.execute(update(GenerationRow).where(GenerationRow.id == old.id).values(kept=True))
        for table in (GraphSummaryRow, GraphVectorRow, GraphReportRow):
            sql.execute(delete(table).where(table.generation_id == old.id))


def kept(sql: Connection, kb_id: int) -> Generation | None:
    """The generation to go back to."""
    found = sql.scalar(select(GenerationRow.id).where(GenerationRow.kb_id == kb_id, GenerationRow.kept))
    return kbs.get_generation(sql, found) if found is not None else None
