"""The shapes in which routes send an answer: the same parts, as each family of clients reads them."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from configs.settings import EXTRACTIVE
from server.api import events
from server.api.links import Link, citation_json, source_line
from server.chat.parts import Begun, Done, Part, Said, Step, Thought, ToolUse
from server.errors import ZhikuError

log = logging.getLogger(__name__)

Event = Mapping[str, Any]
Parts = AsyncGenerator[Part]

NO_HITS = "<span style='color:red'>未找到相关文档,该回答为大模型自身能力解答！</span>"
"""What the old web page shows when no passage was found and the model answers by itself."""
NOTHING_FOUND = "<span style='color:red'>未找到相关文档 / no relevant documents found</span>"
"""The same when there is no model either."""
_LONGEST_ANSWER = 4500
"""Characters of an answer in one event: even as escapes of twelve bytes they stay below what old clients read."""


class Failure(Exception):
    """Why an answer ended before its end, in words for people."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


async def guarded(parts: Parts) -> AsyncGenerator[Part]:
    """The parts; whatever goes wrong is a `Failure`, for the stream has begun and only an event can tell it."""
    async with aclosing(parts):
        try:
            async for part in parts:
                yield part
        except ZhikuError as error:
            log.warning("no answer: %s", error.message)
            raise Failure(error.code, error.message) from error
        except Exception as error:
            log.exception("an answer broke off")
            raise Failure(500, f"内部错误 / internal error: {type(error).__name__}") from error


@dataclass(frozen=True, slots=True)
class Sources:
    """How the sources of an answer are shown."""

    link: Link
    base_url: str
    none_found: str = NO_HITS

    def docs(self, begun: Begun) -> list[str]:
        """Sources as lines of text, as the old contract has them."""
        lines = [source_line(number, hit, self.link) for number, hit in enumerate(begun.sources, start=1)]
        return lines or [self.none_found]

    def citations(self, done: Done) -> list[dict[str, object]]:
        """Checked citations."""
        return [citation_json(citation, self.base_url, self.link) for citation in done.citations]


# ---- 0.2: `answer` and `docs`, or `text`


async def answer_and_docs(
    parts: Parts, sources: Sources, *, stream: bool, details: bool = False
) -> AsyncIterator[Event]:
    """`{"answer": …}` as it is written, then `{"docs": […]}`; both at once when not streaming. With `details` the last
    event has `citations` and `thinking` too."""
    docs: list[str] = []
    done = Done("")
    try:
        async with aclosing(guarded(parts)) as whole:
            async for part in whole:
                if isinstance(part, Begun):
                    docs = sources.docs(part)
                elif isinstance(part, Done):
                    done = part
                elif isinstance(part, Step) and stream and details:
                    yield {"progress": {"step": part.name, "done": part.done, "total": part.total, "asked": part.asked}}
                elif isinstance(part, Said) and stream:
                    for piece in _pieces(part.text):
                        yield {"answer": piece}
    except Failure as failure:
        yield {"code": failure.code, "msg": failure.message}
        return
    more = {"citations": sources.citations(done), "thinking": done.thinking} if details else {}
    for event in _ending("" if stream else done.text, docs, more):
        yield event


def _pieces(text: str) -> list[str]:
    return [text[at : at + _LONGEST_ANSWER] for at in range(0, len(text), _LONGEST_ANSWER)]


def _ending(answer: str, docs: list[str], more: Event) -> list[Event]:
    """The last events, none too large for old clients: what is left of the answer, the sources, and what new
    clients read besides."""
    *before, last = _pieces(answer) or [""]
    first, *rest = [{"docs": group} for group in events.split_docs(docs, events.MAX_EVENT // 2)]
    if answer and before:
        before, last = [*before, last], ""
    groups: list[Event] = [{"answer": last, **first} if last else first, *rest]
    if _size(more) < events.MAX_EVENT // 3:
        groups[-1] = {**groups[-1], **more}
    return [*({"answer": piece} for piece in before), *groups]


def _size(value: Event) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


async def text_with_id(parts: Parts, *, stream: bool, details: bool = False) -> AsyncIterator[Event]:
    """`{"text": …, "message_id": …}` for each piece, or once; with `details` the last one has `thinking`."""
    message_id = ""
    try:
        async with aclosing(guarded(parts)) as whole:
            async for part in whole:
                if isinstance(part, Begun):
                    message_id = part.message_id
                elif isinstance(part, Said) and stream:
                    for piece in _pieces(part.text):
                        yield {"text": piece, "message_id": message_id}
                elif isinstance(part, Done):
                    thought = {"thinking": part.thinking} if details else {}
                    *before, last = _pieces("" if stream else part.text) or [""]
                    for piece in before:
                        yield {"text": piece, "message_id": message_id}
                    if last or thought:
                        yield {"text": last, "message_id": message_id, **thought}
    except Failure as failure:
        yield {"code": failure.code, "msg": failure.message}


async def agent_steps(parts: Parts, *, stream: bool) -> AsyncIterator[Event]:
    """`{"answer": …}`, `{"tools": […]}` for each tool that was used, and `{"final_answer": …}`; all in one event when
    not streaming, unless it would be too large."""
    said, tools = "", []
    try:
        async with aclosing(guarded(parts)) as whole:
            async for part in whole:
                if isinstance(part, Said):
                    said += part.text
                    for piece in _pieces(part.text) if stream else ():
                        yield {"answer": piece}
                elif isinstance(part, ToolUse):
                    tools.append(tool_lines(part))
                    if stream:
                        yield {"tools": tools[-1]}
                elif isinstance(part, Done):
                    for event in _agent_end(said, part.text, tools, stream=stream):
                        yield event
    except Failure as failure:
        yield {"code": failure.code, "msg": failure.message}


def _agent_end(said: str, final: str, tools: list[list[str]], *, stream: bool) -> list[Event]:
    """The last events of an agent. A long final answer is cut there: it has been said in full before."""
    ending = {"final_answer": _pieces(final)[0] if final else ""}
    if stream:
        return [ending]
    whole = {"answer": said, "final_answer": final}
    if tools:
        whole["tools"] = [line for lines in tools for line in lines]  # type: ignore[assignment]
    if _size(whole) < events.MAX_EVENT:
        return [whole]
    return [*({"answer": piece} for piece in _pieces(said)), *({"tools": lines} for lines in tools), ending]


def tool_lines(use: ToolUse) -> list[str]:
    """A tool's use as the old web page shows it."""
    state = "调用失败" if use.failed else "调用成功"
    shown = json.dumps(use.arguments, ensure_ascii=False)
    return [
        "\n```\n",
        f"工具名称: {use.name}\n",
        f"工具状态: {state}\n",
        f"工具输入: {shown}\n",
        f"工具输出: {use.output[:4000]}\n",
        "\n```\n",
    ]


# ---- 0.3: chunks, sources first


@dataclass(frozen=True, slots=True)
class Reply:
    """What chunks of one reply have in common."""

    model: str
    id: str = ""
    created: int = 0

    @classmethod
    def of(cls, model: str | None) -> Reply:
        """A new reply of a model."""
        return cls(model or EXTRACTIVE, f"chat{uuid.uuid4().hex}", int(time.time()))


async def docs_first(
    parts: Parts, sources: Sources, model: str | None, *, docs_only: bool = False, agent: bool = False
) -> AsyncIterator[Event]:
    """Chunks of the 0.3 releases: one with `docs`, then the text; `{"error": …}` for a failure."""
    reply, message_id = Reply.of(model), ""
    try:
        async with aclosing(guarded(parts)) as whole:
            async for part in whole:
                if isinstance(part, Begun):
                    message_id = part.message_id
                    for group in () if agent else events.split_docs(sources.docs(part), events.MAX_EVENT // 2):
                        yield _chunk_03(reply, message_id, "", docs=group)
                    if docs_only:
                        return
                else:
                    for chunk in _later_chunks_03(reply, message_id, part, sources):
                        yield chunk
    except Failure as failure:
        yield {"error": failure.message, "code": failure.code}


def _later_chunks_03(reply: Reply, message_id: str, part: Part, sources: Sources) -> list[Event]:
    if isinstance(part, Said):
        return [_chunk_03(reply, message_id, piece) for piece in _pieces(part.text)]
    if isinstance(part, Thought):
        return [_chunk_03(reply, message_id, "", reasoning=piece) for piece in _pieces(part.text)]
    if isinstance(part, ToolUse):
        return [_chunk_03(reply, message_id, "", status=_TOOL_END, tools=[_tool_call(part)])]
    citations = sources.citations(part) if isinstance(part, Done) else []
    last = _chunk_03(reply, message_id, "", status=_LLM_END, citations=citations)
    return [last if _size(last) < events.MAX_EVENT else _chunk_03(reply, message_id, "", status=_LLM_END)]


_LLM_TOKEN, _LLM_END, _TOOL_END = 2, 3, 7
"""What a chunk tells of, as 0.3 clients know it."""


def _chunk_03(
    reply: Reply,
    message_id: str,
    text: str,
    *,
    status: int = _LLM_TOKEN,
    docs: list[str] | None = None,
    tools: list[dict[str, Any]] | None = None,
    reasoning: str = "",
    citations: list[dict[str, object]] | None = None,
) -> Event:
    delta = {"content": text, "tool_calls": tools or [], **({"reasoning_content": reasoning} if reasoning else {})}
    return {
        "id": reply.id,
        "object": "chat.completion.chunk",
        "model": reply.model,
        "created": reply.created,
        "status": status,
        "message_type": 1,
        "message_id": message_id or None,
        "is_ref": docs is not None,
        **({"docs": docs} if docs is not None else {}),
        **({"citations": citations} if citations else {}),
        "choices": [{"delta": delta, "role": "assistant"}],
    }


def _tool_call(use: ToolUse) -> dict[str, Any]:
    return {
        "name": use.name, "tool_input": use.arguments, "tool_output": use.output[:4000], "is_error": use.failed,
    }  # fmt: skip


async def whole_reply_03(events_of_stream: AsyncIterator[Event]) -> dict[str, Any]:
    """The chunks of a stream as one completion."""
    text, first = "", dict[str, Any]()
    docs, calls = list[str](), list[Any]()
    async for event in events_of_stream:
        if "error" in event:
            return dict(event)
        first = first or dict(event)
        delta = event["choices"][0]["delta"]
        text += delta["content"]
        docs += event.get("docs", [])
        calls += delta["tool_calls"]
    message = {"role": "assistant", "content": text, "finish_reason": "stop", "tool_calls": calls}
    return {**first, "object": "chat.completion", "status": _LLM_END, "docs": docs, "choices": [{"message": message}]}
