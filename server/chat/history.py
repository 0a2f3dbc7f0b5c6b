"""Conversations as they are stored."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor

from server.chat.parts import Asked, Conversation, Done
from server.db import messages
from server.db.session import Database
from server.models.chat import Message


class History:
    """Reads and writes the turns of conversations; a question is stored before it is answered."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="history")

    async def turns(self, conversation: Conversation | None) -> list[Message]:
        """The last answered turns of a conversation, oldest first."""
        if conversation is None or not conversation.id or conversation.turns <= 0:
            return []
        pairs = await asyncio.wrap_future(self._writer.submit(self._load, conversation))  # behind all writes
        return [turn for query, reply in pairs for turn in (Message("user", query), Message("assistant", reply))]

    def _load(self, conversation: Conversation) -> list[tuple[str, str]]:
        with self._db.read() as sql:
            return messages.last_answered(sql, conversation.id, conversation.turns)

    async def begin(self, message_id: str, asked: Asked) -> None:
        """Store a question, if its conversation is kept."""
        if asked.conversation is not None:
            await asyncio.wrap_future(self._writer.submit(self._add, message_id, asked.conversation.id, asked))

    def _add(self, message_id: str, conversation_id: str, asked: Asked) -> None:
        with self._db.write() as sql:
            messages.add(sql, message_id, conversation_id, asked.kind, asked.query)

    def end(self, message_id: str, asked: Asked, said: str, done: Done | None = None) -> Future[None]:
        """Store what was answered. Who does not wait for it may go: it is written all the same."""
        if asked.conversation is None or not said:
            return self._writer.submit(lambda: None)
        extra: dict[str, object] = {"model": done.model, "thinking": done.thinking} if done else {"partial": True}
        return self._writer.submit(self._finish, message_id, said, extra)

    def _finish(self, message_id: str, said: str, extra: dict[str, object]) -> None:
        with self._db.write() as sql:
            messages.set_response(sql, message_id, said, extra)

    def close(self) -> None:
        """Write what waits."""
        self._writer.shutdown()
