"""An agent: a model that calls tools until it can answer. LangChain runs the loop, its steps become parts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from configs import Settings
from configs.settings import EXTRACTIVE
from server.chat import extractive
from server.chat.context import conversation
from server.chat.parts import Asked, Begun, Done, Part, Said, Thought, ToolUse
from server.chat.service import ChatService
from server.chat.tools import Toolbox, describe
from server.errors import LLMError, LLMRateLimited, ZhikuError
from server.models.chat import ChatModel
from server.models.thinking import ThinkingSplitter
from server.retrieval.analysis import language
from server.tokens import estimate_tokens

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage
    from langchain_core.tools import BaseTool

Step = tuple[str, Any]
"""(mode, data) as LangGraph streams them."""

_LIMIT = {
    "zh": "（已达到步数上限，未能得出答案）",
    "en": "(The limit of steps was reached before there was an answer.)",
}
_SILENT = {"zh": "（模型没有给出答案）", "en": "(The model gave no answer.)"}
_HISTORY_SHARE, _OUTPUT_SHARE = 0.4, 0.2
"""How much of the model's context earlier turns, and the output of one tool, may take."""


class Agent:
    """Answers questions with the help of tools."""

    def __init__(self, settings: Settings, chat: ChatService, toolbox: Toolbox) -> None:
        self._settings = settings
        self._chat = chat
        self.toolbox = toolbox

    async def answer(self, asked: Asked, tools: Sequence[str] | None = None) -> AsyncGenerator[Part]:
        """The parts of an answer; `Said` is what the model says at each step, `Done` holds the last.

        Raises:
            LLMError: the model failed; NotFound: there is no tool of a name.
        """
        yield Begun(uuid.uuid4().hex, asked.query)
        code = "zh" if language(asked.query) == "zh" else "en"
        name = asked.model_name or self._chat.models.default
        if name == EXTRACTIVE:
            excuse = extractive.no_model(asked.query)
            yield Said(excuse)
            yield Done(excuse)
            return
        model, chosen = self._chat.models.get(name), await self.toolbox.chosen(tools)
        run = _Run(model)
        try:
            loop = await asyncio.to_thread(self._steps, asked, model, code, chosen)  # it imports and builds a lot
            async with aclosing(pumped(loop)) as steps:
                async for mode, data in steps:
                    for part in run.parts(mode, data):
                        yield part
        except ZhikuError:
            raise
        except Exception as error:  # every provider's package has exceptions of its own
            raise _llm_error(model.name, error) from error
        for part in run.rest():
            yield part
        missing = (_LIMIT if run.calls_of_model >= self._settings.agent_steps else _SILENT)[code]
        yield Done(run.text.strip() or missing, run.thinking, model=model.name)

    def _steps(self, asked: Asked, model: ChatModel, code: str, tools: Sequence[BaseTool]) -> AsyncIterator[Step]:
        from langchain.agents import create_agent
        from langchain.agents.middleware import ModelCallLimitMiddleware

        limit: Any = ModelCallLimitMiddleware(run_limit=self._settings.agent_steps, exit_behavior="end")
        size = model.settings.context_size
        agent = create_agent(
            self._sampling(asked, model.langchain()),
            tools,
            system_prompt=self._chat.prompts.render("agent_chat", asked.prompt_name, code, input=asked.query),
            middleware=[limit, _told_failures(int(size * _OUTPUT_SHARE)), _told_nonsense()],
        )
        turns = conversation(asked.history, asked.query, int(size * _HISTORY_SHARE))
        messages: Any = {"messages": [turn.as_dict() for turn in turns]}
        steps: Any = agent.astream(messages, {"recursion_limit": 1000}, stream_mode=["messages", "updates"])
        return aiter(steps)

    def _sampling(self, asked: Asked, model: BaseChatModel) -> BaseChatModel:
        temperature = self._settings.temperature if asked.temperature is None else asked.temperature
        wanted = {"temperature": temperature, "max_tokens": asked.max_tokens}
        known = {key: value for key, value in wanted.items() if value is not None and hasattr(model, key)}
        return model.model_copy(update=known)


async def pumped(steps: AsyncIterator[Step]) -> AsyncGenerator[Step]:
    """The steps, taken by a task of their own: closing this ends the task, and with it the model's reply, at once.
    Closing the loop's own generator would let the model go on to the end of its step."""
    queue: asyncio.Queue[Step | BaseException | None] = asyncio.Queue()

    async def pump() -> None:
        try:
            async for step in steps:
                queue.put_nowait(step)
            queue.put_nowait(None)
        except Exception as error:  # noqa: BLE001  # it is raised on the other side
            queue.put_nowait(error)

    task = asyncio.create_task(pump())
    try:
        while (step := await queue.get()) is not None:
            if isinstance(step, BaseException):
                raise step
            yield step
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _told_failures(longest: int) -> Any:
    """A tool that fails is told to the model, which may try another way; the client hears of it too. Output beyond so
    many tokens is cut."""
    from langchain.agents.middleware import wrap_tool_call
    from langchain_core.messages import ToolMessage

    @wrap_tool_call
    async def failures(request: Any, handler: Any) -> Any:
        try:
            result = await handler(request)
        except Exception as error:  # noqa: BLE001  # tools are anybody's code
            call = request.tool_call
            return ToolMessage(describe(error), tool_call_id=call["id"], name=call["name"], status="error")
        if isinstance(result, ToolMessage) and estimate_tokens(text := str(result.text)) > longest:
            result.content = f"{text[:longest]}…"
        return result

    return failures


def _told_nonsense() -> Any:
    """Arguments that are no JSON are told to the model, which may write them anew."""
    from langchain.agents.middleware import after_model
    from langchain_core.messages import ToolMessage

    @after_model(can_jump_to=["model"])
    def nonsense(state: Any, _: Any) -> dict[str, Any] | None:
        last = state["messages"][-1]
        wrong = getattr(last, "invalid_tool_calls", [])
        if not wrong or last.tool_calls:
            return None
        reason = "参数不是合法的 JSON / the arguments are not JSON"
        answers = [
            ToolMessage(reason, tool_call_id=call["id"] or "", name=call["name"] or "", status="error")
            for call in wrong
        ]
        return {"messages": answers, "jump_to": "model"}

    return nonsense


@dataclass
class _Run:
    """One run of an agent: `text` is what the model said in its last step."""

    model: ChatModel
    text: str = ""
    thinking: str = ""
    calls_of_model: int = 0
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    splitter: ThinkingSplitter = field(default_factory=ThinkingSplitter)

    def parts(self, mode: str, data: Any) -> list[Part]:
        """What a step of the loop means."""
        if mode == "messages":
            message, meta = data
            return self._said(message.text) if meta.get("langgraph_node") == "model" and message.text else []
        found: list[Part] = []
        for node, update in data.items():
            for message in (update or {}).get("messages", ()):
                found += self._called(message) if node == "model" else self._returned(message)
        return found

    def _said(self, text: str) -> list[Part]:
        return self._split(*self.splitter.feed(str(text)))

    def rest(self) -> list[Part]:
        """What was held back at the end of a step."""
        return self._split(*self.splitter.finish())

    def _split(self, answer: str, thinking: str) -> list[Part]:
        self.text += answer
        self.thinking += thinking
        return [*([Thought(thinking)] if thinking else []), *([Said(answer)] if answer else [])]

    def _called(self, message: BaseMessage) -> list[Part]:
        """The model has ended a step; when it wants tools, another will follow."""
        self.calls_of_model += 1
        calls = getattr(message, "tool_calls", [])
        rest = self.rest()
        self.calls |= {call["id"]: call["args"] for call in calls}
        if calls or getattr(message, "invalid_tool_calls", []):
            self.text, self.splitter = "", ThinkingSplitter(opened=self.model.settings.begins_thinking)
        return rest

    def _returned(self, message: BaseMessage) -> list[Part]:
        if message.type != "tool":
            return []
        arguments = self.calls.get(getattr(message, "tool_call_id", ""), {})
        failed = getattr(message, "status", "") == "error"
        hits = getattr(message, "artifact", None) or ()
        return [ToolUse(message.name or "", arguments, str(message.text), failed, hits)]


def _llm_error(name: str, error: Exception) -> LLMError:
    status = getattr(error, "status_code", None)
    if status == 429:
        return LLMRateLimited(
            f"模型 {name} 限流（HTTP 429），请稍后重试 / rate limit of {name} reached, try again later"
        )
    if status is not None:
        return LLMError(f"模型 {name} 返回 HTTP {status} / {name} answered HTTP {status}")
    return LLMError(f"模型 {name} 出错 / {name} failed: {type(error).__name__}")
