"""Server-sent events, byte for byte as the old clients read them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from sse_starlette import EventSourceResponse

MAX_EVENT = 60_000
"""Bytes; old clients read at most 64 KiB at a time and lose an event that is larger."""


def encode(event: Mapping[str, Any]) -> bytes:
    """One event: a `data:` line with one JSON object, and a blank line."""
    return f"data: {json.dumps(event, ensure_ascii=False)}\r\n\r\n".encode("utf-8", "replace")


def stream(events: AsyncIterator[Mapping[str, Any]]) -> EventSourceResponse:
    """A response that sends each event as a chunk of its own."""

    async def encoded() -> AsyncIterator[bytes]:
        async for event in events:
            yield encode(event)

    return EventSourceResponse(encoded(), headers={"Cache-Control": "no-cache"}, ping=15)


def split_docs(docs: list[str], limit: int = MAX_EVENT) -> list[list[str]]:
    """Sources in groups that each fit into one event; a single one that is too long is cut."""
    groups: list[list[str]] = [[]]
    size = 0
    for doc in docs:
        shown = _cut(doc, limit - 200)
        length = len(json.dumps(shown, ensure_ascii=False).encode("utf-8", "replace")) + 2
        if groups[-1] and size + length > limit - 100:
            groups.append([])
            size = 0
        groups[-1].append(shown)
        size += length
    return groups


def _cut(text: str, limit: int) -> str:
    if len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")) <= limit:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(json.dumps(text[:middle], ensure_ascii=False).encode("utf-8", "replace")) <= limit:
            low = middle
        else:
            high = middle - 1
    return text[:low] + "…"
