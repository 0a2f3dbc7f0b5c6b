"""Conversations: questions and answers."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from server.db.tables import MessageRow


def add(sql: Connection, message_id: str, conversation_id: str, chat_type: str, query: str) -> None:
    """Store a question before it is answered."""
    sql.execute(
        insert(MessageRow).values(id=message_id, conversation_id=conversation_id, chat_type=chat_type, query=query)
    )


def set_response(sql: Connection, message_id: str, response: str) -> None:
    """Store the answer to a question."""
    sql.execute(update(MessageRow).where(MessageRow.id == message_id).values(response=response))


def last_answered(sql: Connection, conversation_id: str, count: int) -> list[tuple[str, str]]:
    """The last answered (question, answer) pairs of a conversation, oldest first."""
    rows = sql.execute(
        select(MessageRow.query, MessageRow.response)
        .where(MessageRow.conversation_id == conversation_id, MessageRow.response != "")
        .order_by(MessageRow.seq.desc())
        .limit(count)
    ).all()
    return [(row[0], row[1]) for row in reversed(rows)]
