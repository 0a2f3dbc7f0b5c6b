"""Files of knowledge bases and the versions of their text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, delete, func, insert, select, update

from server.db.tables import ChunkRow, DocumentRow, FileRow, GenerationRow, utcnow
from server.domain import StoredFile
from server.names import file_key

_FILE: Select[*tuple[Any, ...]] = select(
    FileRow.id,
    FileRow.kb_id,
    FileRow.name,
    FileRow.storage,
    FileRow.sha256,
    FileRow.size,
    FileRow.file_version,
    FileRow.custom_docs,
    FileRow.state,
    FileRow.reason,
    FileRow.create_time,
    FileRow.update_time,
    FileRow.uid,
    FileRow.attributes,
    FileRow.password,
)


_NO_ESCAPE = "\x01"
"""No name has it; without one, some databases take the backslash, and refuse patterns that end in it."""


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """The searchable version of a file's text."""

    id: int
    file_id: int
    file_version: int
    loader: str
    splitter: str
    chunk_count: int
    warnings: list[str]
    options: Mapping[str, Any]
    live: bool


_DOCUMENT = select(
    DocumentRow.id, DocumentRow.file_id, DocumentRow.file_version, DocumentRow.loader, DocumentRow.splitter,
    DocumentRow.chunk_count, DocumentRow.warnings, DocumentRow.options, DocumentRow.live,
)  # fmt: skip


def find(sql: Connection, kb_id: int, name: str) -> StoredFile | None:
    """The file with that canonical name."""
    row = sql.execute(_FILE.where(FileRow.kb_id == kb_id, FileRow.name_key == file_key(name))).first()
    return StoredFile(*row) if row else None


def get(sql: Connection, file_id: int) -> StoredFile | None:
    """The file with that id."""
    row = sql.execute(_FILE.where(FileRow.id == file_id)).first()
    return StoredFile(*row) if row else None


def list_like(sql: Connection, kb_id: int, pattern: str) -> list[str]:
    """Names of the files that fit an SQL pattern; case does not count."""
    plain = pattern.replace(_NO_ESCAPE, "")
    fits = FileRow.name.ilike(plain, escape=_NO_ESCAPE)
    return list(sql.scalars(select(FileRow.name).where(FileRow.kb_id == kb_id, fits)))


def find_uid(sql: Connection, kb_id: int, uid: str) -> StoredFile | None:
    """The file of a knowledge base with that unguessable id."""
    row = sql.execute(_FILE.where(FileRow.kb_id == kb_id, FileRow.uid == uid)).first()
    return StoredFile(*row) if row else None


def list_all(sql: Connection, kb_id: int) -> list[StoredFile]:
    """All files of a knowledge base in the order in which they came."""
    return [StoredFile(*row) for row in sql.execute(_FILE.where(FileRow.kb_id == kb_id).order_by(FileRow.id))]


def list_searchable(sql: Connection, kb_id: int, generation_id: int) -> list[str]:
    """Names of the files that searches can find."""
    return list(
        sql.scalars(
            select(FileRow.name)
            .join(DocumentRow, DocumentRow.file_id == FileRow.id)
            .where(FileRow.kb_id == kb_id, DocumentRow.generation_id == generation_id, DocumentRow.live)
            .order_by(FileRow.id)
        )
    )


def put(sql: Connection, kb_id: int, name: str, storage: str, sha256: str, size: int) -> StoredFile:
    """Record new bytes for a name; a known name gets the next version."""
    known = find(sql, kb_id, name)
    values: dict[str, Any] = {
        "storage": storage, "sha256": sha256, "size": size, "state": "stored", "reason": "",
        "custom_docs": False, "update_time": utcnow(),
    }  # fmt: skip
    if known is None:
        values |= {"kb_id": kb_id, "name": name, "name_key": file_key(name)}
        sql.execute(insert(FileRow).values(values))
    else:
        values["file_version"] = known.file_version + 1
        sql.execute(update(FileRow).where(FileRow.id == known.id).values(values))
    stored = find(sql, kb_id, name)
    if stored is None:
        raise RuntimeError("a row that was just written is not there")
    return stored


def set_state(sql: Connection, file_id: int, state: str, reason: str = "") -> None:
    """Record how far a file is, with a reason for people."""
    values = {"state": state, "reason": reason, "update_time": utcnow()}
    sql.execute(update(FileRow).where(FileRow.id == file_id).values(values))


def set_uid(sql: Connection, file_id: int, uid: str) -> None:
    """Give a file an id that clients know it by."""
    sql.execute(update(FileRow).where(FileRow.id == file_id).values(uid=uid))


def set_password(sql: Connection, file_id: int, password: str | None) -> None:
    """Record what opens the bytes of a file."""
    sql.execute(update(FileRow).where(FileRow.id == file_id).values(password=password))


def set_attributes(sql: Connection, file_id: int, attributes: Mapping[str, Any]) -> None:
    """Replace what a client wants to filter by."""
    sql.execute(update(FileRow).where(FileRow.id == file_id).values(attributes=dict(attributes)))


def set_custom(sql: Connection, file_id: int, *, custom: bool) -> None:
    """Record whether a client supplied the chunks of this file."""
    sql.execute(update(FileRow).where(FileRow.id == file_id).values(custom_docs=custom))


def remove(sql: Connection, file_id: int) -> None:
    """Delete a file's row; documents, chunks and vectors go with it."""
    sql.execute(delete(FileRow).where(FileRow.id == file_id))


def add_document(sql: Connection, **values: Any) -> int:
    """A version of a file's text that nobody sees yet."""
    key = sql.execute(insert(DocumentRow).values(values)).inserted_primary_key
    return int(key[0]) if key else 0


def finish_document(sql: Connection, document_id: int, loader: str, warnings: Iterable[str], chunk_count: int) -> None:
    """All chunks of a version are in."""
    values = {"loader": loader, "warnings": list(warnings), "chunk_count": chunk_count}
    sql.execute(update(DocumentRow).where(DocumentRow.id == document_id).values(values))


def live_document(sql: Connection, file_id: int, generation_id: int) -> DocumentInfo | None:
    """The version that searchers of a generation see."""
    return documents(sql, [file_id], generation_id).get(file_id)


def documents(sql: Connection, file_ids: Iterable[int], generation_id: int) -> dict[int, DocumentInfo]:
    """The versions that searchers of a generation see, by file."""
    wanted = set(file_ids)
    query = _DOCUMENT.where(DocumentRow.generation_id == generation_id, DocumentRow.live)
    if len(wanted) == 1:
        query = query.where(DocumentRow.file_id.in_(wanted))
    found = (DocumentInfo(*row) for row in sql.execute(query))
    return {info.file_id: info for info in found if info.file_id in wanted}


def document_of_job(sql: Connection, file_id: int, generation_id: int, job_id: int) -> DocumentInfo | None:
    """The version that a job wrote before it was interrupted, with all its chunks."""
    row = sql.execute(
        _DOCUMENT.where(
            DocumentRow.file_id == file_id,
            DocumentRow.generation_id == generation_id,
            DocumentRow.job_id == job_id,
            DocumentRow.chunk_count > 0,
        )
    ).first()
    return DocumentInfo(*row) if row else None


def document(sql: Connection, document_id: int) -> DocumentInfo | None:
    """The version with that id."""
    row = sql.execute(_DOCUMENT.where(DocumentRow.id == document_id)).first()
    return DocumentInfo(*row) if row else None


def unpublished_documents(sql: Connection, file_id: int, generation_id: int, *, begun_only: bool = False) -> list[int]:
    """Versions that never became visible: all of them, or those whose chunks are not all in."""
    query = select(DocumentRow.id).where(
        DocumentRow.file_id == file_id, DocumentRow.generation_id == generation_id, ~DocumentRow.live
    )
    return list(sql.scalars(query.where(DocumentRow.chunk_count == 0) if begun_only else query))


def all_documents(sql: Connection, file_id: int) -> list[int]:
    """All versions of a file in all generations."""
    return list(sql.scalars(select(DocumentRow.id).where(DocumentRow.file_id == file_id)))


def retire(sql: Connection, file_id: int) -> None:
    """Keep a file's bytes only; work on its version that is under way ends without effect."""
    values = {"state": "stored", "reason": "", "file_version": FileRow.file_version + 1, "custom_docs": False}
    sql.execute(update(FileRow).where(FileRow.id == file_id).values(values))


def drop_documents(sql: Connection, document_ids: Iterable[int]) -> list[tuple[int, int]]:
    """Delete versions with their chunks; returns the ranges of chunk ids that are gone."""
    ranges = []
    for document_id in document_ids:
        lo, hi = chunk_range(sql, document_id)
        if hi:
            ranges.append((lo, hi))
        sql.execute(delete(DocumentRow).where(DocumentRow.id == document_id))
    return ranges


def forget_kept(sql: Connection, file_id: int, but: int = 0) -> None:
    """Delete the versions of a file in generations that are kept to go back to, `but` one: who goes back reads the file
    again."""
    kept = select(DocumentRow.id).join(GenerationRow, GenerationRow.id == DocumentRow.generation_id)
    kept = kept.where(DocumentRow.file_id == file_id, GenerationRow.kept, GenerationRow.id != but)
    drop_documents(sql, sql.scalars(kept).all())


def chunk_range(sql: Connection, document_id: int) -> tuple[int, int]:
    """Lowest and highest chunk id of a version, (0, 0) when it has none."""
    row = sql.execute(
        select(func.min(ChunkRow.id), func.max(ChunkRow.id)).where(ChunkRow.document_id == document_id)
    ).one()
    return (int(row[0]), int(row[1])) if row[0] is not None else (0, 0)


def publish(sql: Connection, document_id: int, file_id: int, generation_id: int) -> list[tuple[int, int]]:
    """Make a version the one that is seen and drop those before it; returns the ranges that changed."""
    old = sql.scalars(
        select(DocumentRow.id).where(
            DocumentRow.file_id == file_id, DocumentRow.generation_id == generation_id, DocumentRow.id != document_id
        )
    ).all()
    ranges = drop_documents(sql, old)
    forget_kept(sql, file_id, but=generation_id)
    sql.execute(update(DocumentRow).where(DocumentRow.id == document_id).values(live=True))
    new = chunk_range(sql, document_id)
    return [*ranges, new] if new[1] else ranges
