"""A language model server for tests and benchmarks: speaks the OpenAI protocol, says what it is told to say.

    python -m server.models.fake_llm --port 18090 --tokens 100 --delay 0.02

Replies are taken from a script, one for each request; when the script is empty a function answers, or the server
sends back the prompt. A reply can be slow, refused, cut, broken off or malformed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from server.errors import EmbeddingError
from server.models.fake import FakeEmbedding


@dataclass(frozen=True)
class Reply:
    """What the server does with one request.

    `tokens` are sent `delay` seconds apart, then `finish` as the reason. `status` other than 200 refuses,
    with `headers`. `break_after` tokens the connection is closed. `raw` replaces the whole event stream.
    `flush` is the number of bytes sent at a time, 0 = an event at a time.
    """

    tokens: Sequence[str] = ()
    delay: float = 0.0
    finish: str | None = "stop"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    break_after: int | None = None
    raw: Sequence[str] | None = None
    flush: int = 0


class BrokenOff(ConnectionError):
    """Raised inside the stream to close the connection in mid-reply."""


@dataclass
class FakeLLM:
    """The server's state: its script, and what it saw."""

    script: deque[Reply] = field(default_factory=deque)
    default: Reply | None = None
    answer: Callable[[dict[str, Any]], Reply] | None = None
    prompts: list[list[dict[str, str]]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    sent: int = 0
    closed: int = 0
    embedder: FakeEmbedding = field(default_factory=lambda: FakeEmbedding(dimension=8))

    def app(self) -> FastAPI:
        """The ASGI application."""
        app = FastAPI(title="fake LLM", docs_url=None, redoc_url=None)
        app.add_api_route("/v1/chat/completions", self._chat, methods=["POST"], response_model=None)
        app.add_api_route("/v1/embeddings", self._embed, methods=["POST"], response_model=None)
        app.add_api_route("/v1/models", self._models, methods=["GET"])
        return app

    async def _models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "fake", "object": "model"}]}

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.prompts.append(body["messages"])
        self.times.append(asyncio.get_running_loop().time())
        reply = self._reply(body)
        if reply.status != 200:
            return JSONResponse({"error": {"message": "told to refuse"}}, reply.status, dict(reply.headers))
        if not body.get("stream"):
            await asyncio.sleep(reply.delay)
            return JSONResponse(_whole(body, reply))
        return StreamingResponse(self._stream(reply), media_type="text/event-stream")

    def _reply(self, body: dict[str, Any]) -> Reply:
        if self.script:
            return self.script.popleft()
        if self.answer is not None:
            return self.answer(body)
        return self.default or Reply([body["messages"][-1]["content"]])

    async def _stream(self, reply: Reply) -> AsyncIterator[bytes]:
        try:
            for event in self._events(reply):
                if event is None:
                    raise BrokenOff("told to break off")
                data = f"data: {event}\n\n".encode()
                step = reply.flush or len(data)
                for at in range(0, len(data), step):
                    yield data[at : at + step]
                self.sent += 1
                await asyncio.sleep(reply.delay)
        except (asyncio.CancelledError, GeneratorExit):
            self.closed += 1
            raise

    def _events(self, reply: Reply) -> list[str | None]:
        if reply.raw is not None:
            return list(reply.raw)
        events: list[str | None] = [_chunk({"role": "assistant"})]
        events += [_chunk({"content": token}) for token in reply.tokens]
        if reply.break_after is not None:
            return [*events[: reply.break_after + 1], None]
        return [*events, _chunk({}, reply.finish), "[DONE]"]

    async def _embed(self, request: Request) -> Response:
        body = await request.json()
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        try:
            vectors = await asyncio.to_thread(self.embedder.encode_passages, texts)
        except (ValueError, EmbeddingError) as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)
        data = [{"object": "embedding", "index": at, "embedding": v.tolist()} for at, v in enumerate(vectors)]
        return JSONResponse({"object": "list", "model": body["model"], "data": data[::-1]})


def _whole(body: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """A reply in one piece; tokens are words of the prompt and of the reply."""
    prompt, said = (len(message["content"].split()) for message in body["messages"]), "".join(reply.tokens)
    usage = {"prompt_tokens": sum(prompt), "completion_tokens": len(said.split())}
    choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": reply.finish}
    return {"object": "chat.completion", "choices": [choice], "usage": usage}


def _chunk(delta: Mapping[str, str], finish: str | None = None) -> str:
    choice = {"index": 0, "delta": dict(delta), "finish_reason": finish}
    return json.dumps({"object": "chat.completion.chunk", "choices": [choice]}, ensure_ascii=False)


def main() -> None:
    """Serve the same reply to everybody."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=18090)
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--delay", type=float, default=0.02)
    given = parser.parse_args()
    reply = Reply([f"word{n} " for n in range(given.tokens)], given.delay)
    uvicorn.run(FakeLLM(default=reply).app(), host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
