"""Conversations: questions, answers, and what people thought of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from server.db.tables import ConversationRow, MessageRow, utcnow


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A question and its answer; `feedback_score` is -1 until somebody gives one."""

    id: str
    conversation_id: str
    chat_type: str
    query: str
    response: str
    feedback_score: int
    feedback_reason: str
    extra: Mapping[str, Any]
    create_time: datetime


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation and the number of its messages; its name is its first question."""

    id: str
    name: str
    chat_type: str
    messages: int
    create_time: datetime
    update_time: datetime


_MESSAGE = select(
    MessageRow.id, MessageRow.conversation_id, MessageRow.chat_type, MessageRow.query, MessageRow.response,
    MessageRow.feedback_score, MessageRow.feedback_reason, MessageRow.extra, MessageRow.create_time,
)  # fmt: skip


def add(sql: Connection, message_id: str, conversation_id: str, chat_type: str, query: str) -> None:
    """Store a question before it is answered."""
    sql.execute(
        insert(MessageRow).values(id=message_id, conversation_id=conversation_id, chat_type=chat_type, query=query)
    )
    if not conversation_id:
        return
    known = sql.execute(
        update(ConversationRow).where(ConversationRow.id == conversation_id).values(update_time=utcnow())
    )
    if not known.rowcount:
        name = " ".join(query.split())[:100]
        sql.execute(insert(ConversationRow).values(id=conversation_id, name=name, chat_type=chat_type))


def set_response(sql: Connection, message_id: str, response: str, extra: Mapping[str, Any]) -> None:
    """Store the answer to a question."""
    sql.execute(update(MessageRow).where(MessageRow.id == message_id).values(response=response, extra=dict(extra)))


def set_feedback(sql: Connection, message_id: str, score: int, reason: str) -> bool:
    """Store what somebody thought of an answer; False when there is no such message."""
    values = {"feedback_score": score, "feedback_reason": reason}
    return bool(sql.execute(update(MessageRow).where(MessageRow.id == message_id).values(values)).rowcount)


def last_answered(sql: Connection, conversation_id: str, count: int) -> list[tuple[str, str]]:
    """The last answered (question, answer) pairs of a conversation, oldest first."""
    rows = sql.execute(
        select(MessageRow.query, MessageRow.response)
        .where(MessageRow.conversation_id == conversation_id, MessageRow.response != "")
        .order_by(MessageRow.seq.desc())
        .limit(count)
    ).all()
    return [(row[0], row[1]) for row in reversed(rows)]


def list_conversations(sql: Connection, offset: int, limit: int) -> list[StoredConversation]:
    """Conversations, the one used last first."""
    count = select(func.count(MessageRow.seq)).where(MessageRow.conversation_id == ConversationRow.id)
    rows = sql.execute(
        select(
            ConversationRow.id, ConversationRow.name, ConversationRow.chat_type, count.scalar_subquery(),
            ConversationRow.create_time, ConversationRow.update_time,
        )
        .order_by(ConversationRow.update_time.desc(), ConversationRow.id)
        .offset(offset)
        .limit(limit)
    )  # fmt: skip
    return [StoredConversation(*row) for row in rows]


def list_messages(sql: Connection, conversation_id: str, offset: int, limit: int) -> list[StoredMessage]:
    """Messages of a conversation in their order."""
    query = _MESSAGE.where(MessageRow.conversation_id == conversation_id).order_by(MessageRow.seq)
    return [StoredMessage(*row) for row in sql.execute(query.offset(offset).limit(limit))]


def drop_conversation(sql: Connection, conversation_id: str) -> bool:
    """Delete a conversation with its messages; False when there is none."""
    found = sql.execute(delete(MessageRow).where(MessageRow.conversation_id == conversation_id)).rowcount
    return bool(sql.execute(delete(ConversationRow).where(ConversationRow.id == conversation_id)).rowcount or found)
