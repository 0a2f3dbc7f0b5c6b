"""Knowledge bases, their generations, and the log of their changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from server.db import doomed
from server.db.tables import (
    ChangeRow,
    DocumentRow,
    FileBatchRow,
    FileRow,
    GenerationRow,
    KnowledgeBaseRow,
    new_uid,
)
from server.domain import ChangedRange, Generation, KnowledgeBase
from server.names import kb_key

KEPT_CHANGES = 4000
"""Versions whose changes stay in the log; an index that is further behind is built anew."""

_KB = select(
    KnowledgeBaseRow.id,
    KnowledgeBaseRow.name,
    KnowledgeBaseRow.info,
    KnowledgeBaseRow.version,
    KnowledgeBaseRow.create_time,
    GenerationRow.id,
    GenerationRow.vs_type,
    GenerationRow.embed_model,
    GenerationRow.dimension,
    GenerationRow.options,
    GenerationRow.transform_no,
    GenerationRow.transform_size,
    KnowledgeBaseRow.uid,
    KnowledgeBaseRow.kind,
    KnowledgeBaseRow.expires,
    KnowledgeBaseRow.attributes,
    KnowledgeBaseRow.graph_options,
).join(GenerationRow, GenerationRow.id == KnowledgeBaseRow.generation_id)
# put together once: every search asks for it
_GET = _KB.where(KnowledgeBaseRow.id == bindparam("kb_id"))


def _knowledge_base(row: Row[*tuple[Any, ...]]) -> KnowledgeBase:
    kb_id, name, info, version, created, gen_id, *rest, kind, expires, attributes, graph = row
    generation = Generation(gen_id, kb_id, *rest)
    return KnowledgeBase(
        kb_id, name, info, version, generation, created, generation.kb_uid, kind, expires, attributes or {}, graph or {}
    )


def find(sql: Connection, name: str, kind: str = "") -> KnowledgeBase | None:
    """The knowledge base of that name among those of a kind; case and width of the letters do not count."""
    row = sql.execute(_KB.where(KnowledgeBaseRow.name_key == _key(name, kind))).first()
    return _knowledge_base(row) if row else None


def _key(name: str, kind: str) -> str:
    """Names of hidden ones can never be those of others: no visible name has a slash."""
    return f"{kind}/{kb_key(name)}" if kind else kb_key(name)


def find_uid(sql: Connection, uid: str, kind: str = "") -> KnowledgeBase | None:
    """The knowledge base with that unguessable id."""
    row = sql.execute(_KB.where(KnowledgeBaseRow.uid == uid, KnowledgeBaseRow.kind == kind)).first()
    return _knowledge_base(row) if row else None


def get(sql: Connection, kb_id: int) -> KnowledgeBase | None:
    """The knowledge base with that id."""
    row = sql.execute(_GET, {"kb_id": kb_id}).first()
    return _knowledge_base(row) if row else None


def list_all(sql: Connection, kind: str | None = "") -> list[KnowledgeBase]:
    """All knowledge bases of a kind (None = of all) in the order of their making."""
    query = _KB if kind is None else _KB.where(KnowledgeBaseRow.kind == kind)
    return [_knowledge_base(row) for row in sql.execute(query.order_by(KnowledgeBaseRow.id))]


def create(
    sql: Connection,
    name: str,
    info: str,
    vs_type: str,
    embed_model: str,
    options: Mapping[str, Any],
    **more: Any,
) -> KnowledgeBase:
    """A new, empty knowledge base. The name must be canonical and free; `more` are `kind`, `parent_id`, `expires`."""
    values = {"name": name, "name_key": _key(name, more.get("kind", "")), "info": info, **more}
    key = sql.execute(insert(KnowledgeBaseRow).values(values)).inserted_primary_key
    kb_id = int(key[0]) if key else 0
    generation_id = add_generation(sql, kb_id, vs_type, embed_model, options)
    set_generation(sql, kb_id, generation_id)
    made = get(sql, kb_id)
    if made is None:
        raise RuntimeError("a row that was just inserted is not there")
    return made


def drop(sql: Connection, kb_id: int) -> None:
    """Delete the knowledge base with all that hangs on it, by foreign keys."""
    doomed.add(sql, GenerationRow.kb_id == kb_id)
    sql.execute(delete(KnowledgeBaseRow).where(KnowledgeBaseRow.id == kb_id))


def children(sql: Connection, kb_id: int) -> list[KnowledgeBase]:
    """The hidden knowledge bases that belong to one."""
    return [_knowledge_base(row) for row in sql.execute(_KB.where(KnowledgeBaseRow.parent_id == kb_id))]


def set_attributes(sql: Connection, kb_id: int, attributes: Mapping[str, Any]) -> None:
    """Replace what a client notes about it."""
    sql.execute(update(KnowledgeBaseRow).where(KnowledgeBaseRow.id == kb_id).values(attributes=dict(attributes)))


def set_graph_options(sql: Connection, kb_id: int, options: Mapping[str, Any]) -> None:
    """Replace how its chunks are read for the graph."""
    sql.execute(update(KnowledgeBaseRow).where(KnowledgeBaseRow.id == kb_id).values(graph_options=dict(options)))


def rename(sql: Connection, kb_id: int, name: str) -> None:
    """Give it another name, which must be canonical and free."""
    sql.execute(update(KnowledgeBaseRow).where(KnowledgeBaseRow.id == kb_id).values(name=name, name_key=kb_key(name)))


def add_batch(sql: Connection, kb_id: int, file_uids: Sequence[str]) -> str:
    """Note which files were added together; returns the id that clients know it by."""
    uid = new_uid()
    sql.execute(insert(FileBatchRow).values(uid=uid, kb_id=kb_id, file_uids=list(file_uids)))
    return uid


def get_batch(sql: Connection, kb_id: int, uid: str) -> tuple[list[str], datetime] | None:
    """(uids of its files, time of its making) of a batch."""
    columns = select(FileBatchRow.file_uids, FileBatchRow.create_time)
    row = sql.execute(columns.where(FileBatchRow.kb_id == kb_id, FileBatchRow.uid == uid)).first()
    return (list(row[0]), row[1]) if row else None


def set_expires(sql: Connection, kb_id: int, expires: float) -> None:
    """Change until when it is kept, in seconds since the epoch."""
    sql.execute(update(KnowledgeBaseRow).where(KnowledgeBaseRow.id == kb_id).values(expires=expires))


def set_info(sql: Connection, kb_id: int, info: str) -> None:
    """Change the description."""
    sql.execute(update(KnowledgeBaseRow).where(KnowledgeBaseRow.id == kb_id).values(info=info))


def add_generation(sql: Connection, kb_id: int, vs_type: str, embed_model: str, options: Mapping[str, Any]) -> int:
    """A generation that nobody sees yet."""
    values = {"kb_id": kb_id, "vs_type": vs_type, "embed_model": embed_model, "options": dict(options)}
    key = sql.execute(insert(GenerationRow).values(values)).inserted_primary_key
    return int(key[0]) if key else 0


def get_generation(sql: Connection, generation_id: int) -> Generation | None:
    """The generation with that id."""
    columns = GenerationRow.__table__.c
    row = sql.execute(
        select(
            columns.id,
            columns.kb_id,
            columns.vs_type,
            columns.embed_model,
            columns.dimension,
            columns.options,
            columns.transform_no,
            columns.transform_size,
            KnowledgeBaseRow.uid,
        )
        .join(KnowledgeBaseRow, KnowledgeBaseRow.id == columns.kb_id)
        .where(columns.id == generation_id)
    ).first()
    return Generation(*row) if row else None


def list_generation_ids(sql: Connection, kb_id: int) -> list[int]:
    """All generations of a knowledge base, the live one and those being built or left behind."""
    return list(sql.scalars(select(GenerationRow.id).where(GenerationRow.kb_id == kb_id)))


def set_generation(sql: Connection, kb_id: int, generation_id: int) -> None:
    """Make a generation the one that searchers see."""
    sql.execute(update(KnowledgeBaseRow).where(KnowledgeBaseRow.id == kb_id).values(generation_id=generation_id))


def drop_generation(sql: Connection, generation_id: int) -> None:
    """Delete a generation with its documents, chunks and vectors."""
    doomed.add(sql, GenerationRow.id == generation_id)
    sql.execute(delete(GenerationRow).where(GenerationRow.id == generation_id))


def set_options(sql: Connection, generation_id: int, options: Mapping[str, Any]) -> None:
    """Change how files are cut from now on."""
    sql.execute(update(GenerationRow).where(GenerationRow.id == generation_id).values(options=dict(options)))


def set_dimension(sql: Connection, generation_id: int, dimension: int) -> None:
    """Record the length of the generation's vectors."""
    sql.execute(update(GenerationRow).where(GenerationRow.id == generation_id).values(dimension=dimension))


def set_transform(sql: Connection, generation: Generation, transform: bytes, size: int) -> None:
    """Give a generation a new embedding transform, fitted on `size` vectors."""
    sql.execute(
        update(GenerationRow)
        .where(GenerationRow.id == generation.id)
        .values(transform=transform, transform_no=generation.transform_no + 1, transform_size=size)
    )


def get_transform(sql: Connection, generation_id: int) -> bytes | None:
    """The fitted embedding transform of a generation, None when it has none."""
    return sql.scalar(select(GenerationRow.transform).where(GenerationRow.id == generation_id))


def bump(sql: Connection, kb_id: int, ranges: Iterable[tuple[int, int]] = (), *, vectors_only: bool = False) -> int:
    """Log that chunks in these ranges of ids changed, and return the knowledge base's new version.

    The row of the knowledge base stays locked until the transaction ends, so versions become visible in
    their order on every database.
    """
    matches = KnowledgeBaseRow.id == kb_id
    sql.execute(update(KnowledgeBaseRow).where(matches).values(version=KnowledgeBaseRow.version + 1))
    version = sql.scalar(select(KnowledgeBaseRow.version).where(matches)) or 0
    rows = [
        {"kb_id": kb_id, "version": version, "part": part, "lo": lo, "hi": hi, "vectors_only": vectors_only}
        for part, (lo, hi) in enumerate(ranges)
    ]
    if rows:
        sql.execute(insert(ChangeRow), rows)
    if version % 256 == 0:
        sql.execute(delete(ChangeRow).where(ChangeRow.kb_id == kb_id, ChangeRow.version <= version - KEPT_CHANGES))
    return version


def changes_since(sql: Connection, kb: KnowledgeBase, version: int) -> list[ChangedRange] | None:
    """What changed after `version`, or None when the log does not reach back that far."""
    if kb.version == version:
        return []
    if kb.version - version > KEPT_CHANGES:
        return None
    rows = sql.execute(
        select(ChangeRow.version, ChangeRow.lo, ChangeRow.hi, ChangeRow.vectors_only)
        .where(ChangeRow.kb_id == kb.id, ChangeRow.version > version, ChangeRow.version <= kb.version)
        .order_by(ChangeRow.version, ChangeRow.part)
    )
    return [ChangedRange(*row) for row in rows]


def count_files(sql: Connection) -> dict[int, int]:
    """Number of searchable files by knowledge base."""
    rows = sql.execute(
        select(FileRow.kb_id, func.count(FileRow.id.distinct()))
        .join(DocumentRow, DocumentRow.file_id == FileRow.id)
        .where(DocumentRow.live)
        .group_by(FileRow.kb_id)
    )
    return {int(kb_id): int(count) for kb_id, count in rows}
