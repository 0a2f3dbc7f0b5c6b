"""A language model whose tokens say when they were written.

    python -m benchmarks.llm PORT TOKENS DELAY

Processes of one machine share the monotonic clock, so a client can tell how long each token was under way.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator

import uvicorn

from server.models.fake_llm import FakeLLM, Reply


class StampingLLM(FakeLLM):
    """Sends the time instead of the tokens of its script."""

    async def _stream(self, reply: Reply) -> AsyncIterator[bytes]:
        yield _event({"role": "assistant"})
        due = time.monotonic()
        for _ in reply.tokens:
            # Against the clock: the work of sending must not make a model of 20 ms a token a slower one.
            due = max(due + reply.delay, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            yield _event({"content": f"{time.monotonic():.6f} "})
        yield _event({}, "stop")
        yield b"data: [DONE]\n\n"


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]})}\n\n".encode()


def main() -> None:
    """Serve the same reply to everybody."""
    port, tokens, delay = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    app = StampingLLM(default=Reply(["token"] * tokens, delay)).app()
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
