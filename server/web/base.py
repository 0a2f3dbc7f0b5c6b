"""What all search engines share: their settings, how an answer is read, and that its text is plain."""

from __future__ import annotations

import html
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson
from pydantic import SecretStr

from configs import SearchEngineSettings
from server.errors import InvalidRequest
from server.web.guard import Guard, Page, WebError

Row = tuple[Any, Any, Any]
"""(title, address, text) as an engine gave them."""

_LONGEST_QUERY = 400
LONGEST_TEXT = 4000
_MOST_RESULTS = 50
_TAG = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->|</?[A-Za-z!][^<>]*>", re.DOTALL | re.IGNORECASE)
# What engines put around the words they found, and escape once more than they should.
_ESCAPED_TAG = re.compile(
    r"<(script|style)\b.*?</\1\s*>|</?(?:a|b|br|div|em|font|i|img|mark|p|script|span|strong|style|u)\b[^<>]*>",
    re.DOTALL | re.IGNORECASE,
)
_BLANK = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\ufeff]+")


def guard_of(settings: SearchEngineSettings) -> Guard:
    """The guard of these settings; an engine that the operator set up inside may be reached."""
    inside = [urlsplit(settings.searxng_url)] if settings.searxng_url else []
    known = [f"{it.hostname}:{it.port or (443 if it.scheme == 'https' else 80)}" for it in inside]
    return Guard([*settings.allow, *known], timeout=settings.timeout, proxy=settings.proxy)


@dataclass(frozen=True, slots=True)
class WebResult:
    """A page that an engine found; `text` is what the engine shows of it. Nothing in it is HTML."""

    title: str
    url: str
    text: str


class SearchEngine(ABC):
    """Asks one engine."""

    title: str

    def __init__(self, settings: SearchEngineSettings, guard: Guard) -> None:
        self._settings = settings
        self._guard = guard

    def refusal(self) -> str | None:
        """What has to be configured before this engine can be asked."""
        return None

    async def search(self, query: str, top_k: int) -> list[WebResult]:
        """At most `top_k` pages, best first; empty when the engine found nothing.

        Raises:
            WebError: the engine cannot be reached, or says that it failed.
            InvalidRequest: there is nothing to search for, or the engine's address is forbidden.
        """
        words = " ".join(query.split())[:_LONGEST_QUERY]
        if not words:
            raise InvalidRequest("搜索内容为空 / there is nothing to search for")
        count = max(1, min(top_k, _MOST_RESULTS))
        return _usable(await self._ask(words, count))[:count]

    @abstractmethod
    async def _ask(self, query: str, count: int) -> Iterable[Row]:
        """(title, address, text) as the engine gave them."""

    def _failed(self, chinese: str, english: str) -> WebError:
        return WebError(f"{self.title} 搜索失败：{chinese} / searching with {self.title} failed: {english}")

    def _answered(self, page: Page) -> Page:
        if page.status == 429:
            raise self._failed("请求过于频繁，请稍后重试", "it is asked too often, try again later")
        if page.status in (401, 403):
            raise self._failed(
                f"HTTP {page.status}，请检查密钥与权限", f"HTTP {page.status}, check key and permissions"
            )
        if page.status != 200:
            raise self._failed(f"HTTP {page.status}", f"HTTP {page.status}")
        return page

    def _object(self, page: Page) -> dict[str, Any]:
        """The JSON object that a page must be."""
        try:
            found = orjson.loads(self._answered(page).body)
        except orjson.JSONDecodeError:
            raise self._failed("响应不是 JSON", "the answer is not JSON") from None
        if not isinstance(found, dict):
            raise self._failed("响应格式不对", "the answer has another shape than expected")
        if problem := found.get("error") or found.get("errors"):
            raise self._failed(f"引擎报错 {said(problem)}", f"it reports {said(problem)}")
        return found

    def _items(self, found: Any, *fields: str) -> list[Row]:
        """(title, address, text) of a list of objects, whose fields have these names."""
        if not isinstance(found, list):
            raise self._failed("响应格式不对", "the answer has another shape than expected")
        title, url, text = fields
        return [(item.get(title), item.get(url), item.get(text)) for item in found if isinstance(item, dict)]


def plain_text(text: str) -> str:
    """Text without tags, entities, control characters and runs of white space; `&lt;noon&gt;` is what it shows."""
    bare = _ESCAPED_TAG.sub(" ", html.unescape(_TAG.sub(" ", text)))
    return _BLANK.sub(" ", bare).strip()[:LONGEST_TEXT]


def _usable(found: Iterable[Row]) -> list[WebResult]:
    """Results with an address on the web, each address once."""
    results: dict[str, WebResult] = {}
    for title, url, text in found:
        if isinstance(url, str) and urlsplit(url.strip()).scheme in ("http", "https"):
            clean = _BLANK.sub("", url)
            named = plain_text(title if isinstance(title, str) else "") or clean
            results.setdefault(clean, WebResult(named, clean, plain_text(text if isinstance(text, str) else "")))
    return list(results.values())


def key_of(variable: str) -> SecretStr | None:
    """The key that an environment variable holds, if it does."""
    value = os.environ.get(variable, "")
    return SecretStr(value) if value else None


def said(problem: Any) -> str:
    """An engine's own words, short and plain."""
    first: Any = problem[0] if isinstance(problem, Sequence) and problem and not isinstance(problem, str) else problem
    if isinstance(first, dict):
        first = first.get("message") or first.get("code") or "?"
    return plain_text(str(first))[:120]
