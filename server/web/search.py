"""Web search as a source of passages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from server.domain import Hit

Finder = Callable[[str], Awaitable[Sequence[Hit]]]


class WebSearch:
    """Provisional."""

    names: list[str] = ["duckduckgo", "bing", "metaphor", "searxng"]

    def finder(self, engine_name: str, top_k: int) -> Finder:
        """Finds pages."""
        raise NotImplementedError
