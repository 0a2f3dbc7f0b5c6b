"""Answers that are sent whole: who leaves before they are there ends the work on them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")
_LOOK = 0.3
"""Seconds between two looks whether the client is still there."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work; when the client leaves first, the work is cancelled, and with it a model's reply."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=_LOOK))[0]:
            if await request.is_disconnected():
                task.cancel()
        return await task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})
