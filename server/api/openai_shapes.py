"""Answers as OpenAI's clients read them: completions, chunks, errors."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from sse_starlette import EventSourceResponse

from server.api.links import place_url
from server.api.shapes import Failure, Parts, Sources, guarded
from server.chat.parts import Begun, Done, Said, Thought
from server.domain import Hit
from server.errors import (
    AlreadyExists,
    Busy,
    ConfigurationError,
    InvalidName,
    InvalidRequest,
    LLMRateLimited,
    NotFound,
    ZhikuError,
)
from server.models.chat import Usage

Event = Mapping[str, Any]

_STATUS: Sequence[tuple[type[ZhikuError], int, str]] = (
    (NotFound, 404, "invalid_request_error"),
    (AlreadyExists, 409, "invalid_request_error"),
    (InvalidName, 400, "invalid_request_error"),
    (InvalidRequest, 400, "invalid_request_error"),
    (ConfigurationError, 400, "invalid_request_error"),
    (Busy, 503, "server_error"),
    (LLMRateLimited, 429, "rate_limit_error"),
)


def status_of(error: ZhikuError) -> tuple[int, str]:
    """(HTTP status, kind of error) that OpenAI's clients expect."""
    return next(((status, kind) for known, status, kind in _STATUS if isinstance(error, known)), (500, "server_error"))


def error_json(message: str, kind: str = "server_error") -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


@dataclass(frozen=True, slots=True)
class _Head:
    id: str
    model: str
    created: int

    @classmethod
    def of(cls, model: str) -> _Head:
        return cls(f"chatcmpl-{uuid.uuid4().hex}", model, int(time.time()))

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> Event:
        shared = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}
        return {**shared, "choices": choices, **more}

    def delta(self, finish: str | None = None, /, **delta: Any) -> Event:
        return self.chunk([{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}])


async def chunks(parts: Parts, sources: Sources, model: str, *, with_usage: bool) -> AsyncIterator[bytes]:
    """Standard chunks as bytes of an event stream; the last one has `citations` and `sources`."""
    head, begun = _Head.of(model), Begun("", "")
    yield _encoded(head.delta(role="assistant", content=""))
    try:
        async with aclosing(guarded(parts)) as whole:
            async for part in whole:
                if isinstance(part, Begun):
                    begun = part
                elif isinstance(part, Said):
                    yield _encoded(head.delta(content=part.text))
                elif isinstance(part, Thought):
                    yield _encoded(head.delta(reasoning_content=part.text))
                elif isinstance(part, Done):
                    ending = head.delta(_finish(part))
                    yield _encoded({**ending, **_references(part, begun, sources)})
                    if with_usage:
                        yield _encoded(head.chunk([], usage=usage_json(part.usage)))
    except Failure as failure:
        yield _encoded(error_json(failure.message))
    yield b"data: [DONE]\n\n"


def _finish(done: Done) -> str:
    return "length" if done.cut else "stop"


def _encoded(event: Event) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


def stream(encoded: AsyncIterator[bytes]) -> EventSourceResponse:
    """A response that sends each event as a chunk of its own."""
    return EventSourceResponse(encoded, headers={"Cache-Control": "no-cache"}, ping=15, sep="\n")


async def completion(parts: Parts, sources: Sources, model: str) -> dict[str, Any]:
    """A whole completion.

    Raises:
        ZhikuError: the search or the model failed.
    """
    begun, done = Begun("", ""), Done("")
    async with aclosing(parts) as whole:
        async for part in whole:
            begun = part if isinstance(part, Begun) else begun
            done = part if isinstance(part, Done) else done
    head = _Head.of(model)
    references = _references(done, begun, sources)
    thought = {"reasoning_content": done.thinking} if done.thinking else {}
    message = {"role": "assistant", "content": done.text, "refusal": None, **thought, **references}
    return {
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(done), "logprobs": None}],
        "usage": usage_json(done.usage),
        **references,
    }


def _references(done: Done, begun: Begun, sources: Sources) -> dict[str, Any]:
    shown = [_source(number, hit, sources) for number, hit in enumerate(begun.sources, start=1)]
    return {"citations": sources.citations(done), "sources": shown}


def _source(number: int, hit: Hit, sources: Sources) -> dict[str, Any]:
    linked = sources.link(hit) is not None
    return {
        "number": number, "knowledge_base_name": hit.kb_name if linked else "", "file_name": hit.file_name,
        "page": hit.page, "headings": list(hit.headings), "start": hit.start, "end": hit.end, "text": hit.text,
        "score": hit.score, "similarity": hit.similarity, "chunk_id": hit.id,
        "url": place_url(sources.base_url, hit) if linked else None,
    }  # fmt: skip


def usage_json(usage: Usage) -> dict[str, int]:
    """Tokens as OpenAI's clients read them."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    }


def embeddings_json(vectors: Sequence[Sequence[float]], model: str, encoding: str, tokens: int) -> dict[str, Any]:
    """Embeddings as lists of numbers, or as base64 of little-endian float32."""

    def shown(vector: Sequence[float]) -> Any:
        if encoding != "base64":
            return list(vector)
        return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()

    data = [{"object": "embedding", "index": at, "embedding": shown(vector)} for at, vector in enumerate(vectors)]
    return {"object": "list", "model": model, "data": data, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def page_json(known: Iterable[str], *, limit: int, after: str | None, order: str) -> dict[str, Any]:
    """One page of a list, its `data` still ids, out of all ids in the order of their making.

    Raises:
        NotFound: `after` is none of them.
    """
    ids = list(known) if order == "asc" else list(known)[::-1]
    if after is not None and after not in ids:
        raise NotFound(f"没有 / there is no {after[:60]}: after")
    begin = ids.index(after) + 1 if after is not None else 0
    shown = ids[begin : begin + limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
        "has_more": begin + limit < len(ids),
    }
