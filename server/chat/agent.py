"""An agent: a model that calls tools until it can answer. LangChain runs the loop, its steps become parts."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from configs import Settings
from configs.settings import EXTRACTIVE
from server.chat import extractive
from server.chat.parts import Asked, Begun, Done, Part, Said, Thought, ToolUse
from server.chat.service import ChatService
from server.chat.tools import Toolbox, describe
from server.errors import LLMError, LLMRateLimited, ZhikuError
from server.models.chat import ChatModel, Message
from server.models.thinking import ThinkingSplitter
from server.retrieval.analysis import language

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage

_LIMIT = {
    "zh": "（已达到步数上限，未能得出答案）",
    "en": "(The limit of steps was reached before there was an answer.)",
}


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
        name = asked.model_name or self._chat.default_model
        if name == EXTRACTIVE:
            yield Said(extractive.NO_MODEL[code])
            yield Done(extractive.NO_MODEL[code])
            return
        model = self._chat.models.get(name)
        run = _Run(model)
        try:
            async with aclosing(self._steps(asked, model, code, tools)) as steps:
                async for mode, data in steps:
                    for part in run.parts(mode, data):
                        yield part
        except ZhikuError:
            raise
        except Exception as error:  # every provider's package has exceptions of its own
            raise _llm_error(model.name, error) from error
        for part in run.rest():
            yield part
        yield Done(run.text.strip() or _LIMIT[code], run.thinking, model=model.name)

    def _steps(
        self, asked: Asked, model: ChatModel, code: str, tools: Sequence[str] | None
    ) -> AsyncGenerator[tuple[str, Any]]:
        from langchain.agents import create_agent
        from langchain.agents.middleware import ModelCallLimitMiddleware

        limit: Any = ModelCallLimitMiddleware(run_limit=self._settings.agent_steps, exit_behavior="end")
        agent = create_agent(
            self._sampling(asked, model.langchain()),
            self.toolbox.chosen(tools),
            system_prompt=self._chat.prompts.render("agent_chat", asked.prompt_name, code, input=asked.query),
            middleware=[limit, _tool_errors()],
        )
        turns: Any = {"messages": [turn.as_dict() for turn in (*asked.history, Message("user", asked.query))]}
        steps: AsyncGenerator[tuple[str, Any]] = agent.astream(  # type: ignore[assignment]  # it depends on the modes
            turns, {"recursion_limit": 1000}, stream_mode=["messages", "updates"]
        )
        return steps

    def _sampling(self, asked: Asked, model: BaseChatModel) -> BaseChatModel:
        temperature = self._settings.temperature if asked.temperature is None else asked.temperature
        wanted = {"temperature": temperature, "max_tokens": asked.max_tokens}
        known = {key: value for key, value in wanted.items() if value is not None and hasattr(model, key)}
        return model.model_copy(update=known)


def _tool_errors() -> Any:
    """A tool that fails is told to the model, which may try another way; the client hears of it too."""
    from langchain.agents.middleware import wrap_tool_call
    from langchain_core.messages import ToolMessage

    @wrap_tool_call
    async def told(request: Any, handler: Any) -> Any:
        try:
            return await handler(request)
        except Exception as error:  # noqa: BLE001  # tools are anybody's code
            call = request.tool_call
            return ToolMessage(describe(error), tool_call_id=call["id"], name=call["name"], status="error")

    return told


@dataclass
class _Run:
    """One run of an agent: `text` is what the model said in its last step."""

    model: ChatModel
    text: str = ""
    thinking: str = ""
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
        calls = getattr(message, "tool_calls", [])
        rest = self.rest()
        self.calls |= {call["id"]: call["args"] for call in calls}
        if calls:
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
