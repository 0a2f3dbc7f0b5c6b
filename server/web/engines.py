"""Search engines: a question goes out, titles, addresses and plain text come back.

    engines = SearchEngines(SearchEngineSettings())
    found = await engines.get("duckduckgo").search("知识库", top_k=3)     # [WebResult(title, url, text)]
    await engines.close()

All requests go through the guard (`server.web.guard`); packages for these engines bring HTTP clients of their own,
which would not. A new engine is a subclass of `SearchEngine` with `_ask`, and a line in `_ENGINES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from urllib.parse import parse_qs, urlsplit

from configs import SearchEngineSettings
from server.errors import NotFound
from server.web.base import LONGEST_TEXT, Row, SearchEngine, WebResult, guard_of, key_of, said
from server.web.guard import Guard

__all__ = ["SearchEngine", "SearchEngines", "WebResult"]


class DuckDuckGo(SearchEngine):
    """DuckDuckGo's page for browsers without JavaScript."""

    title = "DuckDuckGo"

    async def _ask(self, query: str, count: int) -> Iterable[Row]:  # noqa: ARG002  # a page has as many as it has
        from bs4 import BeautifulSoup

        page = await self._guard.fetch("POST", self._settings.duckduckgo_url, data={"q": query, "kl": "wt-wt"})
        soup = BeautifulSoup(page.text, "lxml")
        if page.status == 202 or soup.select_one(".anomaly-modal__modal, #challenge-form, form[action*=anomaly]"):
            raise self._failed(
                "被要求人机验证，请稍后重试或换用其他引擎", "it wants a captcha; try later or another engine"
            )
        self._answered(page)
        found = [
            (link.get_text(" "), _target(str(link.get("href", ""))), text.get_text(" ") if text else "")
            for result in soup.select(".result:not(.result--ad):not(.result--no-result)")
            if (link := result.select_one("a.result__a"))
            for text in [result.select_one(".result__snippet")]
        ]
        if not found and not soup.select_one(".no-results, .result--no-result"):
            raise self._failed("无法识别结果页面", "its page cannot be read")
        return found


class Bing(SearchEngine):
    """Bing's Web Search API, or a service of the same shape."""

    title = "Bing"

    def refusal(self) -> str | None:
        """A key is needed."""
        return None if key_of(self._settings.bing_key_env) else "要使用Bing搜索引擎，需要设置 `BING_SUBSCRIPTION_KEY`"

    async def _ask(self, query: str, count: int) -> Iterable[Row]:
        key = key_of(self._settings.bing_key_env)
        headers = {"Ocp-Apim-Subscription-Key": key.get_secret_value() if key else ""}
        params = {"q": query, "count": str(count), "textFormat": "Raw"}
        page = await self._guard.fetch("GET", self._settings.bing_url, params=params, headers=headers, follow=False)
        pages = self._object(page).get("webPages") or {}
        return self._items(pages.get("value", []) if isinstance(pages, dict) else None, "name", "url", "snippet")


class Metaphor(SearchEngine):
    """Exa, which was called Metaphor."""

    title = "Metaphor"

    def refusal(self) -> str | None:
        """A key is needed."""
        return (
            None if key_of(self._settings.metaphor_key_env) else "要使用Metaphor搜索引擎，需要设置 `METAPHOR_API_KEY`"
        )

    async def _ask(self, query: str, count: int) -> Iterable[Row]:
        key = key_of(self._settings.metaphor_key_env)
        headers = {"x-api-key": key.get_secret_value() if key else ""}
        body = {"query": query, "numResults": count, "contents": {"text": {"maxCharacters": LONGEST_TEXT}}}
        page = await self._guard.fetch("POST", self._settings.metaphor_url, json=body, headers=headers, follow=False)
        return self._items(self._object(page).get("results"), "title", "url", "text")


class SearXNG(SearchEngine):
    """A SearXNG of one's own."""

    title = "SearXNG"

    def refusal(self) -> str | None:
        """Its address is needed."""
        return None if self._settings.searxng_url else "要使用SearXNG搜索引擎，需要设置 `searxng_url`"

    async def _ask(self, query: str, count: int) -> Iterable[Row]:  # noqa: ARG002  # a page has as many as it has
        url = f"{(self._settings.searxng_url or '').rstrip('/')}/search"
        page = await self._guard.fetch("GET", url, params={"q": query, "format": "json"})
        if page.status == 403:
            raise self._failed(
                "HTTP 403，请在其设置中允许 json 格式", "HTTP 403, allow the format json in its settings"
            )
        found = self._object(page)
        items = self._items(found.get("results"), "title", "url", "content")
        if not items and (silent := found.get("unresponsive_engines")):
            raise self._failed(f"上游引擎无响应 {said(silent)}", f"its engines do not respond: {said(silent)}")
        return items


_ENGINES: dict[str, Callable[[SearchEngineSettings, Guard], SearchEngine]] = {
    "duckduckgo": DuckDuckGo,
    "bing": Bing,
    "metaphor": Metaphor,
    "searxng": SearXNG,
}


class SearchEngines:
    """The engines by name."""

    def __init__(self, settings: SearchEngineSettings, guard: Guard | None = None) -> None:
        self._guard = guard or guard_of(settings)
        self._engines = {name: make(settings, self._guard) for name, make in _ENGINES.items()}

    @property
    def names(self) -> list[str]:
        """All names, configured or not."""
        return list(self._engines)

    @property
    def usable(self) -> list[str]:
        """Names of those that have what they need."""
        return [name for name, engine in self._engines.items() if engine.refusal() is None]

    def get(self, name: str) -> SearchEngine:
        """The engine of that name.

        Raises:
            NotFound: there is none, or it has no key; the words are those of the old contract.
        """
        engine = self._engines.get(name)
        if engine is None:
            raise NotFound(f"未支持搜索引擎 {name}")
        if refusal := engine.refusal():
            raise NotFound(refusal)
        return engine

    async def close(self) -> None:
        """Close connections."""
        await self._guard.close()


def _target(link: str) -> str:
    """Where a link of DuckDuckGo leads: `//duckduckgo.com/l/?uddg=…` carries the address."""
    parts = urlsplit(link)
    return parse_qs(parts.query).get("uddg", [link])[0] if parts.path == "/l/" else link
