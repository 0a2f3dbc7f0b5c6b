"""Chunks and their vectors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Connection,
    Select,
    Subquery,
    any_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.orm import aliased

from server.db.conditions import sql_of
from server.db.tables import ChunkGraphRow, ChunkRow, DocumentRow, FileRow, GenerationRow, VectorRow
from server.db.vectors import text_hash
from server.domain import Chunk, Condition, StoredChunk

_PAGE = 2000
_IN_LIMIT = 500
_DOCUMENTS = 200

_COLUMNS = (
    ChunkRow.id, ChunkRow.document_id, ChunkRow.ordinal, ChunkRow.text, FileRow.name, ChunkRow.lang,
    ChunkRow.page, ChunkRow.headings, ChunkRow.start, ChunkRow.end, ChunkRow.extra, ChunkRow.enabled,
)  # fmt: skip


def _stored(row: Sequence[Any]) -> StoredChunk:
    chunk_id, document, ordinal, text, name, lang, page, headings, start, end, extra, *more = row
    return StoredChunk(
        chunk_id, document, ordinal, text, name, lang, page, tuple(headings or ()), start, end, extra or {}, *more
    )  # fmt: skip


def _live(generation_id: int, *more: Any) -> Select[*tuple[Any, ...]]:
    return (
        select(*_COLUMNS, *more)
        .join(DocumentRow, DocumentRow.id == ChunkRow.document_id)
        .join(FileRow, FileRow.id == DocumentRow.file_id)
        .where(DocumentRow.generation_id == generation_id, DocumentRow.live)
    )


def add(
    sql: Connection, kb_id: int, document_id: int, first: int, chunks: Sequence[Chunk], languages: Sequence[str]
) -> None:
    """Insert chunks of a version in their order; `first` is the number of the first of them."""
    rows = [
        {
            "kb_id": kb_id, "document_id": document_id, "ordinal": ordinal, "text": chunk.text,
            "text_hash": text_hash(chunk.text), "start": chunk.start, "end": chunk.end, "page": chunk.page,
            "lang": lang, "headings": list(chunk.headings) or None, "extra": dict(chunk.metadata) or None,
            "enabled": chunk.enabled,
        }
        for ordinal, (chunk, lang) in enumerate(zip(chunks, languages, strict=True), start=first)
    ]  # fmt: skip
    if rows:
        sql.execute(insert(ChunkRow), rows)


def by_ids(
    sql: Connection, generation_id: int, ids: Iterable[int], *, disabled: bool = False
) -> dict[int, StoredChunk]:
    """Visible chunks with these ids and their vectors; ids that are gone are missing in the answer, and those that
    somebody disabled unless `disabled`."""
    wanted = list(dict.fromkeys(ids))
    found: dict[int, StoredChunk] = {}
    for at in range(0, len(wanted), _IN_LIMIT):
        for seen_in, live, *row in sql.execute(_BY_IDS[sql.dialect.name], {"ids": wanted[at : at + _IN_LIMIT]}):
            if live and seen_in == generation_id and (disabled or row[11]):
                found[row[0]] = _stored(row)
    return found


# The generation is compared afterwards: as a condition it makes SQLite walk all its documents first.
_ROWS: Select[*tuple[Any, ...]] = (
    select(DocumentRow.generation_id, DocumentRow.live, *_COLUMNS, VectorRow.vector)
    .join(DocumentRow, DocumentRow.id == ChunkRow.document_id)
    .join(FileRow, FileRow.id == DocumentRow.file_id)
    .outerjoin(VectorRow, VectorRow.chunk_id == ChunkRow.id)
)
_BY_IDS = defaultdict(
    lambda: _ROWS.where(ChunkRow.id.in_(bindparam("ids", expanding=True))),
    # one parameter for all ids: PostgreSQL plans this once, and a list of another length anew
    postgresql=_ROWS.where(ChunkRow.id == any_(bindparam("ids", type_=ARRAY(BigInteger)))),
)


def of_files(sql: Connection, generation_id: int, file_names: Iterable[str] | None = None) -> list[StoredChunk]:
    """Visible chunks of some files (None = of all), in reading order."""
    query = _live(generation_id).order_by(FileRow.id, ChunkRow.ordinal)
    if file_names is not None:
        query = query.where(FileRow.name.in_(list(file_names)))
    return [_stored(row) for row in sql.execute(query)]


def matching(sql: Connection, generation_id: int, condition: Condition) -> list[int]:
    """Ids of the visible chunks that fit a metadata filter, in order."""
    query = _live(generation_id).where(ChunkRow.enabled, sql_of(condition))
    return list(sql.scalars(query.with_only_columns(ChunkRow.id).order_by(ChunkRow.id)))


def page_of(
    sql: Connection, generation_id: int, file_name: str | None, offset: int, limit: int
) -> tuple[int, list[StoredChunk]]:
    """(number of all, one page) of the chunks of a file, or of all files, in reading order; disabled ones too."""
    query = _live(generation_id)
    if file_name is not None:
        query = query.where(FileRow.name == file_name)
    total = sql.scalar(query.with_only_columns(func.count(ChunkRow.id))) or 0
    rows = sql.execute(query.order_by(FileRow.id, ChunkRow.ordinal).offset(offset).limit(limit))
    return int(total), [_stored(row) for row in rows]


def all_texts(sql: Connection, generation_id: int) -> Iterator[list[tuple[int, str]]]:
    """Lists of (id, text) of all visible chunks."""
    return _by_documents(sql, generation_id, _texts())


def texts_between(sql: Connection, generation_id: int, lo: int, hi: int) -> Iterator[list[tuple[int, str]]]:
    """Lists of (id, text) of visible chunks in a range of ids, in order."""
    return _by_range(sql, generation_id, _texts(), lo, hi)


def _texts() -> Select[*tuple[Any, ...]]:
    return select(ChunkRow.id, ChunkRow.text).where(ChunkRow.enabled)


def all_vectors(sql: Connection, generation_id: int) -> Iterator[list[tuple[int, str, bytes]]]:
    """Lists of (id, language, raw vector) of all visible chunks that have one."""
    return _by_documents(sql, generation_id, _vectors())


def vectors_between(sql: Connection, generation_id: int, lo: int, hi: int) -> Iterator[list[tuple[int, str, bytes]]]:
    """Lists of (id, language, raw vector) of visible chunks that have one, in a range of ids, in order."""
    return _by_range(sql, generation_id, _vectors(), lo, hi)


def _vectors() -> Select[*tuple[Any, ...]]:
    query = select(ChunkRow.id, ChunkRow.lang, VectorRow.vector).join(VectorRow, VectorRow.chunk_id == ChunkRow.id)
    return query.where(ChunkRow.enabled)


def _by_documents(sql: Connection, generation_id: int, query: Select[*tuple[Any, ...]]) -> Iterator[list[Any]]:
    live = select(DocumentRow.id).where(DocumentRow.generation_id == generation_id, DocumentRow.live)
    numbers = sql.scalars(live.order_by(DocumentRow.id)).all()
    for at in range(0, len(numbers), _DOCUMENTS):
        rows = sql.execute(query.where(ChunkRow.document_id.in_(numbers[at : at + _DOCUMENTS])))
        while page := rows.fetchmany(_PAGE):
            yield [tuple(row) for row in page]


def _by_range(
    sql: Connection, generation_id: int, query: Select[*tuple[Any, ...]], lo: int, hi: int
) -> Iterator[list[Any]]:
    # "+ 0" keeps SQLite from walking all documents of the generation instead of the range
    seen = (DocumentRow.generation_id + 0 == generation_id) & DocumentRow.live
    found = query.join(DocumentRow, DocumentRow.id == ChunkRow.document_id).where(seen, ChunkRow.id.between(lo, hi))
    rows = sql.execute(found.order_by(ChunkRow.id))
    while page := rows.fetchmany(_PAGE):
        yield [tuple(row) for row in page]


def without_vector(sql: Connection, document_id: int, after: int = 0) -> list[tuple[int, str, bytes]]:
    """(id, text, hash) of the next chunks of a version that still need a vector: ids above `after`, in order."""
    rows = sql.execute(
        select(ChunkRow.id, ChunkRow.text, ChunkRow.text_hash)
        .outerjoin(VectorRow, VectorRow.chunk_id == ChunkRow.id)
        .where(ChunkRow.document_id == document_id, ChunkRow.id > after, VectorRow.chunk_id.is_(None))
        .order_by(ChunkRow.id)
        .limit(_PAGE)
    )
    return [(row[0], row[1], row[2]) for row in rows]


def count_without_vector(sql: Connection, document_id: int) -> int:
    """Number of chunks of a version that still need a vector."""
    rows = select(func.count()).select_from(ChunkRow).outerjoin(VectorRow, VectorRow.chunk_id == ChunkRow.id)
    return sql.scalar(rows.where(ChunkRow.document_id == document_id, VectorRow.chunk_id.is_(None))) or 0


def twins(sql: Connection, document_id: int, file_id: int, held: type[Any], *conditions: Any) -> Subquery | None:
    """For chunks of a new version, chunks of equal text whose row in the table `held` can be used again: columns `id`
    and `twin`. They are of the same file, or of files with the same bytes, and meet the `conditions`; None when there
    is no other version."""
    digest = select(FileRow.sha256).where(FileRow.id == file_id).scalar_subquery()
    same = or_(FileRow.id == file_id, FileRow.sha256 == digest)
    others = sql.scalars(
        select(DocumentRow.id)
        .join(FileRow, FileRow.id == DocumentRow.file_id)
        .join(GenerationRow, GenerationRow.id == DocumentRow.generation_id)
        .where(same, DocumentRow.id != document_id, *conditions)
    ).all()
    if not others:
        return None
    new, old = aliased(ChunkRow), aliased(ChunkRow)
    return (
        select(new.id.label("id"), func.min(old.id).label("twin"))
        .join(old, old.text_hash == new.text_hash)
        .join(held, held.chunk_id == old.id)
        .where(new.document_id == document_id, old.document_id.in_(others))
        .group_by(new.id)
        .subquery()
    )


def reuse_vectors(sql: Connection, document_id: int, file_id: int, embed_model: str, dimension: int) -> None:
    """Give a new version the vectors that the same model made before of equal texts."""
    model = (GenerationRow.embed_model == embed_model, GenerationRow.dimension == dimension)
    equal = twins(sql, document_id, file_id, VectorRow, *model)
    if equal is not None:
        found = select(equal.c.id, VectorRow.vector).join(VectorRow, VectorRow.chunk_id == equal.c.twin)
        sql.execute(insert(VectorRow).from_select(["chunk_id", "vector"], found))


def add_vectors(sql: Connection, vectors: Mapping[int, bytes]) -> None:
    """Store raw vectors by chunk id."""
    if vectors:
        sql.execute(insert(VectorRow), [{"chunk_id": chunk_id, "vector": blob} for chunk_id, blob in vectors.items()])


def set_metadata(sql: Connection, chunk_id: int, extra: Mapping[str, Any]) -> None:
    """Replace a chunk's own metadata."""
    sql.execute(update(ChunkRow).where(ChunkRow.id == chunk_id).values(extra=dict(extra) or None))


def edit(sql: Connection, chunk_id: int, text: str, lang: str, vector: bytes) -> None:
    """Replace a chunk's text and vector in place; the new text stands nowhere in the file."""
    values = {"text": text, "text_hash": text_hash(text), "lang": lang}
    sql.execute(update(ChunkRow).where(ChunkRow.id == chunk_id).values(start=None, end=None, **values))
    for table in (VectorRow, ChunkGraphRow):
        sql.execute(delete(table).where(table.chunk_id == chunk_id))
    add_vectors(sql, {chunk_id: vector})


def set_enabled(sql: Connection, ids: Sequence[int], *, enabled: bool) -> None:
    """Let searches find chunks, or not."""
    sql.execute(update(ChunkRow).where(ChunkRow.id.in_(ids)).values(enabled=enabled))


def remove(sql: Connection, ids: Sequence[int]) -> None:
    """Delete chunks and count them off their documents."""
    documents = set(sql.scalars(select(ChunkRow.document_id).where(ChunkRow.id.in_(ids))))
    sql.execute(delete(ChunkRow).where(ChunkRow.id.in_(ids)))
    for document_id in documents:
        count = select(func.count()).select_from(ChunkRow).where(ChunkRow.document_id == document_id)
        sql.execute(
            update(DocumentRow).where(DocumentRow.id == document_id).values(chunk_count=count.scalar_subquery())
        )


def count_vectors(sql: Connection, generation_id: int) -> int:
    """Number of visible chunks with a vector."""
    return int(
        sql.scalar(
            select(func.count())
            .select_from(VectorRow)
            .join(ChunkRow, ChunkRow.id == VectorRow.chunk_id)
            .join(DocumentRow, DocumentRow.id == ChunkRow.document_id)
            .where(DocumentRow.generation_id == generation_id, DocumentRow.live)
        )
        or 0
    )


def sample_texts(sql: Connection, generation_id: int, count: int) -> list[str]:
    """Texts of about `count` visible chunks, evenly spread over the generation; the same ones every time."""
    live = (
        select(ChunkRow.id)
        .join(DocumentRow, DocumentRow.id == ChunkRow.document_id)
        .where(DocumentRow.generation_id == generation_id, DocumentRow.live)
    )
    ids = sql.scalars(live.order_by(ChunkRow.id)).all()
    chosen = ids[:: max(1, len(ids) // count)][:count]
    return list(sql.scalars(select(ChunkRow.text).where(ChunkRow.id.in_(chosen)).order_by(ChunkRow.id)))


def count_of_file(sql: Connection, generation_id: int, file_id: int) -> tuple[int, int]:
    """(chunks, chunks with a vector) of a file's visible version."""
    row = sql.execute(
        select(func.count(ChunkRow.id), func.count(VectorRow.chunk_id))
        .join(DocumentRow, DocumentRow.id == ChunkRow.document_id)
        .outerjoin(VectorRow, VectorRow.chunk_id == ChunkRow.id)
        .where(DocumentRow.file_id == file_id, DocumentRow.generation_id == generation_id, DocumentRow.live)
    ).one()
    return int(row[0]), int(row[1])


def count_by_file(sql: Connection, generation_id: int) -> dict[int, tuple[int, int]]:
    """(chunks, chunks with a vector) of visible versions, by file id."""
    rows = sql.execute(
        select(DocumentRow.file_id, func.count(ChunkRow.id), func.count(VectorRow.chunk_id))
        .join(ChunkRow, ChunkRow.document_id == DocumentRow.id)
        .outerjoin(VectorRow, VectorRow.chunk_id == ChunkRow.id)
        .where(DocumentRow.generation_id == generation_id, DocumentRow.live)
        .group_by(DocumentRow.file_id)
    )
    return {row[0]: (row[1], row[2]) for row in rows}
