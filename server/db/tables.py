"""The tables. SQL is the truth: every index can be thrown away and rebuilt from these rows."""

from __future__ import annotations

import datetime as dt
import secrets
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    false,
)
from sqlalchemy.dialects.mysql import LONGTEXT, MEDIUMBLOB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

BigId = BigInteger().with_variant(Integer, "sqlite")
LongText = Text().with_variant(LONGTEXT, "mysql")
_NEVER_REUSED = {"sqlite_autoincrement": True}
"""Ids name folders and cache entries; one that came back would find what its dead namesake left."""
Blob = LargeBinary().with_variant(MEDIUMBLOB, "mysql")


def utcnow() -> dt.datetime:
    """Now, in UTC, without a zone (what every dialect stores alike)."""
    return dt.datetime.now(dt.UTC).replace(tzinfo=None, microsecond=0)


def new_uid() -> str:
    """An id that nobody can guess."""
    return secrets.token_hex(12)


class Base(DeclarativeBase):
    """Parent of all tables."""

    type_annotation_map = {dict[str, Any]: JSON, dt.datetime: DateTime}


class KnowledgeBaseRow(Base):
    """A knowledge base. `version` grows with every change of what a search can find."""

    __tablename__ = "knowledge_base"
    __table_args__ = _NEVER_REUSED

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(String(255))
    name_key: Mapped[str] = mapped_column(String(255), unique=True)
    info: Mapped[str] = mapped_column(Text, default="")
    version: Mapped[int] = mapped_column(BigInteger, default=0)
    generation_id: Mapped[int] = mapped_column(BigInteger, default=0)
    uid: Mapped[str] = mapped_column(String(32), default=new_uid, unique=True, index=True)
    kind: Mapped[str] = mapped_column(String(20), default="")
    parent_id: Mapped[int | None] = mapped_column(BigInteger, default=None, index=True)
    expires: Mapped[float | None] = mapped_column(Float, default=None)
    attributes: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    graph_options: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    create_time: Mapped[dt.datetime] = mapped_column(default=utcnow)


class GenerationRow(Base):
    """One way in which a knowledge base is split, embedded and stored; a rebuild makes a new one and swaps.

    `transform` is the embedding transform as bytes, `transform_no` grows when it is fitted anew, and
    `transform_size` is the number of vectors it was fitted on. `graph_version` grows when something is added to the
    graph, or merged in it, without a change of the chunks. One that is `kept` is not seen now and can be gone back to.
    """

    __tablename__ = "generation"
    __table_args__ = _NEVER_REUSED

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    kb_id: Mapped[int] = mapped_column(ForeignKey("knowledge_base.id", ondelete="CASCADE"), index=True)
    vs_type: Mapped[str] = mapped_column(String(50))
    embed_model: Mapped[str] = mapped_column(String(255))
    dimension: Mapped[int | None] = mapped_column(Integer, default=None)
    options: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    transform: Mapped[bytes | None] = mapped_column(Blob, default=None)
    transform_no: Mapped[int] = mapped_column(Integer, default=0)
    transform_size: Mapped[int] = mapped_column(Integer, default=0)
    graph_version: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    kept: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    create_time: Mapped[dt.datetime] = mapped_column(default=utcnow)


class DoomedSpaceRow(Base):
    """Vectors of a generation that is gone: its store deletes them as soon as it can be reached."""

    __tablename__ = "doomed_space"

    generation_id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=False)
    kb_id: Mapped[int] = mapped_column(BigId)
    kb_uid: Mapped[str] = mapped_column(String(32))
    vs_type: Mapped[str] = mapped_column(String(50))


class ChangeRow(Base):
    """Chunks with ids from `lo` to `hi` changed when the knowledge base reached `version`; look at them."""

    __tablename__ = "change"

    kb_id: Mapped[int] = mapped_column(ForeignKey("knowledge_base.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    part: Mapped[int] = mapped_column(Integer, primary_key=True)
    lo: Mapped[int] = mapped_column(BigInteger)
    hi: Mapped[int] = mapped_column(BigInteger)
    vectors_only: Mapped[bool] = mapped_column(Boolean, default=False)


class FileRow(Base):
    """A file of a knowledge base. `storage` is the server's own name of its bytes."""

    __tablename__ = "knowledge_file"
    __table_args__ = (UniqueConstraint("kb_id", "name_key"), _NEVER_REUSED)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    kb_id: Mapped[int] = mapped_column(ForeignKey("knowledge_base.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(1024))
    name_key: Mapped[str] = mapped_column(String(64))
    storage: Mapped[str | None] = mapped_column(String(64), default=None)
    sha256: Mapped[str] = mapped_column(String(64), default="", index=True)
    size: Mapped[int] = mapped_column(BigInteger, default=0)
    file_version: Mapped[int] = mapped_column(Integer, default=1)
    custom_docs: Mapped[bool] = mapped_column(Boolean, default=False)
    state: Mapped[str] = mapped_column(String(20), default="stored")
    reason: Mapped[str] = mapped_column(Text, default="")
    uid: Mapped[str] = mapped_column(String(32), default=new_uid, index=True)
    attributes: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    password: Mapped[str | None] = mapped_column(Text, default=None)
    create_time: Mapped[dt.datetime] = mapped_column(default=utcnow)
    update_time: Mapped[dt.datetime] = mapped_column(default=utcnow)


class FileBatchRow(Base):
    """Files that were added to a knowledge base together, by their uids."""

    __tablename__ = "file_batch"

    uid: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_uid)
    kb_id: Mapped[int] = mapped_column(ForeignKey("knowledge_base.id", ondelete="CASCADE"), index=True)
    file_uids: Mapped[list[str]] = mapped_column(JSON, default=list)
    create_time: Mapped[dt.datetime] = mapped_column(default=utcnow)


class DocumentRow(Base):
    """One version of a file's text, cut into chunks, in one generation. Searchers only see `live` ones."""

    __tablename__ = "document"
    __table_args__ = (Index("ix_document_file", "file_id", "generation_id"), _NEVER_REUSED)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    kb_id: Mapped[int] = mapped_column(ForeignKey("knowledge_base.id", ondelete="CASCADE"), index=True)
    file_id: Mapped[int] = mapped_column(ForeignKey("knowledge_file.id", ondelete="CASCADE"))
    generation_id: Mapped[int] = mapped_column(ForeignKey("generation.id", ondelete="CASCADE"), index=True)
    file_version: Mapped[int] = mapped_column(Integer)
    job_id: Mapped[int | None] = mapped_column(BigInteger, default=None)
    live: Mapped[bool] = mapped_column(Boolean, default=False)
    loader: Mapped[str] = mapped_column(String(50), default="")
    splitter: Mapped[str] = mapped_column(String(50), default="")
    options: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    warnings: Mapped[list[str]] = mapped_column(JSON, default=list)
    chunk_count: Mapped[int] = mapped_column(Integer, default=0)
    create_time: Mapped[dt.datetime] = mapped_column(default=utcnow)


class ChunkRow(Base):
    """A passage. Ids are never used twice."""

    __tablename__ = "chunk"
    __table_args__ = (
        Index("ix_chunk_document", "document_id", "ordinal"),
        Index("ix_chunk_text_hash", "text_hash"),
        _NEVER_REUSED,
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    kb_id: Mapped[int] = mapped_column(BigInteger)
    document_id: Mapped[int] = mapped_column(ForeignKey("document.id", ondelete="CASCADE"))
    ordinal: Mapped[int] = mapped_column(Integer)
    text: Mapped[str] = mapped_column(LongText)
    text_hash: Mapped[bytes] = mapped_column(LargeBinary(12))
    start: Mapped[int | None] = mapped_column(Integer, default=None)
    end: Mapped[int | None] = mapped_column(Integer, default=None)
    page: Mapped[int | None] = mapped_column(Integer, default=None)
    lang: Mapped[str] = mapped_column(String(8), default="")
    enabled: Mapped[bool] = mapped_column(Boolean, default=True)
    headings: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True), default=None)
    extra: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True), default=None)


class TextRow(Base):
    """A part of the canonical text of a version, from a character offset on; chunks point into it."""

    __tablename__ = "document_text"

    document_id: Mapped[int] = mapped_column(
        ForeignKey("document.id", ondelete="CASCADE"), primary_key=True, autoincrement=False, type_=BigId
    )
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    text: Mapped[str] = mapped_column(LongText)


class VectorRow(Base):
    """The raw embedding of a chunk, little-endian float16."""

    __tablename__ = "chunk_vector"

    chunk_id: Mapped[int] = mapped_column(
        ForeignKey("chunk.id", ondelete="CASCADE"), primary_key=True, autoincrement=False, type_=BigId
    )
    vector: Mapped[bytes] = mapped_column(Blob)


class ChunkGraphRow(Base):
    """What a chunk says for the graph: JSON of its mentions and relations, made in the way that `recipe` names.

    `rounds` counts the answers of a language model in it; while it is `open` more are to come. `reason` tells why
    there is nothing; `dropped` counts what its text did not bear out, `calls` and `tokens` what it took.
    """

    __tablename__ = "chunk_graph"

    chunk_id: Mapped[int] = mapped_column(
        ForeignKey("chunk.id", ondelete="CASCADE"), primary_key=True, autoincrement=False, type_=BigId
    )
    recipe: Mapped[str] = mapped_column(String(64))
    data: Mapped[bytes] = mapped_column(Blob)
    rounds: Mapped[int] = mapped_column(Integer, default=0)
    open: Mapped[bool] = mapped_column(Boolean, default=False)
    dropped: Mapped[int] = mapped_column(Integer, default=0)
    calls: Mapped[int] = mapped_column(Integer, default=0)
    tokens: Mapped[int] = mapped_column(Integer, default=0)
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    reason: Mapped[str] = mapped_column(Text, default="")


class GraphEditRow(Base):
    """A change that somebody made to a graph: `merge` the entity `source` into `target`, keep `apart`, add or change an
    `entity` or a `relation` (as `data` says), hide one (`no_entity`, `no_relation`)."""

    __tablename__ = "graph_edit"
    __table_args__ = (UniqueConstraint("kb_id", "kind", "source", "target"),)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    kb_id: Mapped[int] = mapped_column(ForeignKey("knowledge_base.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(String(20))
    source: Mapped[str] = mapped_column(String(160))
    target: Mapped[str] = mapped_column(String(160), default="")
    data: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    create_time: Mapped[dt.datetime] = mapped_column(default=utcnow)


class GraphSummaryRow(Base):
    """One text in place of the many descriptions of an entity; `digest` is that of the descriptions it was made of."""

    __tablename__ = "graph_summary"

    generation_id: Mapped[int] = mapped_column(
        ForeignKey("generation.id", ondelete="CASCADE"), primary_key=True, autoincrement=False, type_=BigId
    )
    entity: Mapped[str] = mapped_column(String(160), primary_key=True)
    digest: Mapped[bytes] = mapped_column(Blob)
    text: Mapped[str] = mapped_column(LongText)
    tokens: Mapped[int] = mapped_column(Integer, default=0)


class GraphVectorRow(Base):
    """The raw vector of what is said of an entity or a relation; `digest` is that of the text it was made of. Ids
    grow, so that the largest one and their number tell whether any is new."""

    __tablename__ = "graph_vector"
    __table_args__ = (UniqueConstraint("generation_id", "item"), _NEVER_REUSED)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    generation_id: Mapped[int] = mapped_column(ForeignKey("generation.id", ondelete="CASCADE"))
    item: Mapped[str] = mapped_column(String(400))
    digest: Mapped[bytes] = mapped_column(Blob)
    lang: Mapped[str] = mapped_column(String(8))
    vector: Mapped[bytes] = mapped_column(Blob)


class GraphReportRow(Base):
    """The report of a community, which follows from its entities; `digest` is that of all that the report was made of,
    and tells whether it is to be written anew."""

    __tablename__ = "graph_report"
    __table_args__ = (UniqueConstraint("generation_id", "community"), _NEVER_REUSED)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    generation_id: Mapped[int] = mapped_column(ForeignKey("generation.id", ondelete="CASCADE"))
    community: Mapped[str] = mapped_column(String(32))
    digest: Mapped[str] = mapped_column(String(64))
    data: Mapped[bytes] = mapped_column(Blob)
    calls: Mapped[int] = mapped_column(Integer, default=0)
    tokens: Mapped[int] = mapped_column(Integer, default=0)


class JobRow(Base):
    """Work that goes on in the background. `lease` says until when its worker counts as alive."""

    __tablename__ = "job"
    __table_args__ = (Index("ix_job_state", "state", "id"), _NEVER_REUSED)

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    kind: Mapped[str] = mapped_column(String(20))
    kb_id: Mapped[int] = mapped_column(ForeignKey("knowledge_base.id", ondelete="CASCADE"), index=True)
    file_id: Mapped[int | None] = mapped_column(BigInteger, default=None, index=True)
    payload: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    state: Mapped[str] = mapped_column(String(20), default="queued")
    reason: Mapped[str] = mapped_column(Text, default="")
    total: Mapped[int] = mapped_column(Integer, default=0)
    finished: Mapped[int] = mapped_column(Integer, default=0)
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    worker: Mapped[str | None] = mapped_column(String(120), default=None)
    lease: Mapped[float] = mapped_column(Float, default=0)
    create_time: Mapped[dt.datetime] = mapped_column(default=utcnow)
    update_time: Mapped[dt.datetime] = mapped_column(default=utcnow)


class JobEventRow(Base):
    """What a job has to tell those who watch it, in order."""

    __tablename__ = "job_event"

    job_id: Mapped[int] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"), primary_key=True, type_=BigId)
    seq: Mapped[int] = mapped_column(Integer, primary_key=True)
    data: Mapped[dict[str, Any]] = mapped_column(JSON)


class ConversationRow(Base):
    """A conversation; its id is the client's own."""

    __tablename__ = "conversation"

    id: Mapped[str] = mapped_column(String(255), primary_key=True)
    name: Mapped[str] = mapped_column(String(255), default="")
    chat_type: Mapped[str] = mapped_column(String(50), default="")
    create_time: Mapped[dt.datetime] = mapped_column(default=utcnow)
    update_time: Mapped[dt.datetime] = mapped_column(default=utcnow)


class MessageRow(Base):
    """A question and its answer in a conversation."""

    __tablename__ = "message"

    seq: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(32), unique=True)
    conversation_id: Mapped[str] = mapped_column(String(255), index=True)
    chat_type: Mapped[str] = mapped_column(String(50))
    query: Mapped[str] = mapped_column(LongText)
    response: Mapped[str] = mapped_column(LongText, default="")
    feedback_score: Mapped[int] = mapped_column(Integer, default=-1)
    feedback_reason: Mapped[str] = mapped_column(Text, default="")
    extra: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    create_time: Mapped[dt.datetime] = mapped_column(default=utcnow)
