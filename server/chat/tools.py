"""The tools that an agent may call: built-in ones, and those of installed packages.

A package adds its own under the entry point group `zhiku.tools`: a LangChain tool, or a function whose docstring and
annotations describe it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from server.domain import Hit
from server.errors import InvalidRequest, NotFound, ZhikuError

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

KBSearch = Callable[[str, str], Awaitable[Sequence[Hit]]]
"""(name of a knowledge base, query) → hits."""
WebSearch = Callable[[str], Awaitable[Sequence[Hit]]]

_GROUP = "zhiku.tools"


class Toolbox:
    """All tools by name; they are made when asked for, LangChain being slow to import."""

    def __init__(
        self, search: KBSearch, list_kbs: Callable[[], Sequence[tuple[str, str]]], web: WebSearch | None
    ) -> None:
        self._search = search
        self._list_kbs = list_kbs
        self._web = web

    def make(self) -> dict[str, BaseTool]:
        """All tools by name. They are made anew each time, for they tell which knowledge bases there are; call this in
        a thread."""
        from langchain_core.tools import BaseTool, StructuredTool

        made: list[Any] = [*self._built_in(), *(found.load() for found in entry_points(group=_GROUP))]
        tools = [it if isinstance(it, BaseTool) else StructuredTool.from_function(it) for it in made]
        return {tool.name: tool for tool in tools}

    async def chosen(self, names: Sequence[str] | None) -> list[BaseTool]:
        """The tools of these names; None = all.

        Raises:
            NotFound: there is none of a name.
        """
        tools = await asyncio.to_thread(self.make)
        for name in names or ():
            if name not in tools:
                raise NotFound(f"没有工具 / there is no tool {name}; 可用 / there are: {', '.join(tools)}")
        return list(tools.values()) if names is None else [tools[name] for name in names]

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """What a tool returns.

        Raises:
            NotFound: there is none of that name; InvalidRequest: the tool failed, for these arguments at least.
        """
        (tool,) = await self.chosen([name])
        try:
            return await tool.ainvoke(arguments)
        except ZhikuError:
            raise
        except Exception as error:  # tools are anybody's code
            raise InvalidRequest(f"工具 {name} 出错 / the tool {name} failed: {describe(error)}") from error

    # ---- the built-in ones

    def _built_in(self) -> list[BaseTool]:
        from langchain_core.tools import StructuredTool

        made = [
            StructuredTool.from_function(
                coroutine=self._search_knowledge_base,
                name="search_knowledge_base",
                description=self._search_description(),
                response_format="content_and_artifact",
            ),
            StructuredTool.from_function(calculate),
            StructuredTool.from_function(current_time),
        ]
        if self._web is not None:
            made.append(
                StructuredTool.from_function(
                    coroutine=self._search_internet, name="search_internet", response_format="content_and_artifact"
                )
            )
        return [*made]

    def _search_description(self) -> str:
        known = "; ".join(f"{name}: {info}"[:200] for name, info in list(self._list_kbs())[:50])
        return (
            "Search a knowledge base for passages that answer a query. 在知识库中检索与问题相关的片段。"
            f"Knowledge bases 知识库: {known or 'none'}"
        )

    async def _search_knowledge_base(
        self,
        knowledge_base: Annotated[str, "name of the knowledge base"],
        query: Annotated[str, "what to look for, in full words"],
    ) -> tuple[str, Sequence[Hit]]:
        hits = await self._search(knowledge_base, query)
        return shown(hits), hits

    async def _search_internet(self, query: Annotated[str, "what to look for"]) -> tuple[str, Sequence[Hit]]:
        """Search the web for what no knowledge base holds. 搜索互联网。"""
        assert self._web is not None
        hits = await self._web(query)
        return shown(hits), hits


def shown(hits: Sequence[Hit]) -> str:
    """Hits as a model reads them."""
    found = (f"[{number}] ({hit.file_name})\n{hit.text}" for number, hit in enumerate(hits, start=1))
    return "\n\n".join(found) or "没有找到相关内容 / nothing relevant was found"


def calculate(expression: Annotated[str, "such as (3 + 5) * 2 ** 0.5"]) -> str:
    """Work out an arithmetic expression. 计算算术表达式。"""
    from simpleeval import InvalidExpression, SimpleEval

    try:
        return str(SimpleEval(functions={"abs": abs, "round": round, "min": min, "max": max}).eval(expression))
    except (InvalidExpression, SyntaxError, ArithmeticError, TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(f"无法计算 / cannot work this out: {describe(error)}") from None


def current_time(timezone: Annotated[str, "such as Asia/Shanghai or UTC"] = "UTC") -> str:
    """Tell date and time in a time zone. 查询当前日期和时间。"""
    try:
        now = dt.datetime.now(ZoneInfo(timezone))
    except (ZoneInfoNotFoundError, ValueError):
        raise InvalidRequest(f"没有时区 / there is no time zone {timezone}") from None
    return now.strftime("%Y-%m-%d %H:%M:%S %A %Z")


def describe(error: Exception) -> str:
    """An error in one line, for a model and for people."""
    if isinstance(error, ZhikuError):
        return error.message
    return f"{type(error).__name__}: {error}"[:300]
