"""Conversations that are kept: list, read, delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from server.api.deps import ServiceDep
from server.api.schemas import BaseResponse
from server.db import messages
from server.errors import NotFound

router = APIRouter(prefix="/conversations", tags=["Chat"])

Offset = Annotated[int, Query(ge=0, le=2**31, description="how many to leave out")]
Limit = Annotated[int, Query(ge=1, le=1000, description="how many at most")]


@router.get("", operation_id="list_conversations")
async def list_conversations(service: ServiceDep, offset: Offset = 0, limit: Limit = 100) -> list[dict[str, Any]]:
    """Conversations, the one used last first."""

    def load() -> list[dict[str, Any]]:
        with service.context.db.read() as sql:
            return [asdict(found) for found in messages.list_conversations(sql, offset, limit)]

    return await service.gates.run_free(load)


@router.get("/messages", operation_id="list_messages")
async def list_messages(
    service: ServiceDep,
    conversation_id: Annotated[str, Query(max_length=255, description="the conversation")],
    offset: Offset = 0,
    limit: Limit = 100,
) -> list[dict[str, Any]]:
    """Questions and answers of a conversation, in their order."""

    def load() -> list[dict[str, Any]]:
        with service.context.db.read() as sql:
            return [asdict(found) for found in messages.list_messages(sql, conversation_id, offset, limit)]

    return await service.gates.run_free(load)


@router.delete("", operation_id="delete_conversation")
async def delete_conversation(
    service: ServiceDep, conversation_id: Annotated[str, Query(max_length=255, description="the conversation")]
) -> BaseResponse:
    """Delete a conversation with all its messages, from the disk too."""

    def drop() -> None:
        with service.context.db.write() as sql:
            if not messages.drop_conversation(sql, conversation_id):
                raise NotFound(f"没有对话 / there is no conversation {conversation_id}")
        service.context.db.scrub()

    await service.gates.run_free(drop)
    return BaseResponse(msg="已删除对话 / conversation deleted")
