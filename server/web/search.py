"""Web search as a source of passages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING

from configs import SearchEngineSettings
from server.domain import Found, Hit

if TYPE_CHECKING:
    from server.web.base import WebResult
    from server.web.engines import SearchEngines


class WebSearch:
    """The search engines, as chats and agents use them; made when first asked, their client being slow to import."""

    def __init__(self, settings: SearchEngineSettings) -> None:
        self._settings = settings

    @cached_property
    def _engines(self) -> SearchEngines:
        from server.web.engines import SearchEngines

        return SearchEngines(self._settings)

    @property
    def names(self) -> list[str]:
        """Names of all engines, configured or not."""
        return self._engines.names

    def is_usable(self, name: str) -> bool:
        """Whether an engine has what it needs."""
        return name in self._engines.usable

    def finder(self, engine_name: str, top_k: int) -> Callable[..., Awaitable[Found]]:
        """Finds pages with an engine.

        Raises:
            NotFound: there is no such engine, or it has no key; the words are those of the old contract.
        """
        engine = self._engines.get(engine_name)

        async def find(question: str, *_: object) -> Found:
            return Found([_hit(result) for result in await engine.search(question, top_k)])

        return find

    async def close(self) -> None:
        """Close connections."""
        if "_engines" in self.__dict__:
            await self._engines.close()


def _hit(result: WebResult) -> Hit:
    """A page as a passage; its address stands where a file's name would, as the old contract has it."""
    text = result.text if result.title in result.text else f"{result.title}\n{result.text}".strip()
    metadata = {"url": result.url, "title": result.title}
    return Hit(id=result.url, text=text, file_name=result.url, score=None, similarity=None, metadata=metadata)
