"""Whole replies of OpenAI-compatible servers, many at a time and at little cost, for work in the background.

A thousand chunks are a thousand calls: aiohttp takes about a fifth of the CPU time that a general client takes for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import orjson
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from configs import ChatModelSettings
from server.errors import LLMError, LLMIncomplete, LLMRateLimited
from server.models.chat import Message, Reply, Usage, was_cut, was_empty
from server.models.thinking import ThinkingSplitter

if TYPE_CHECKING:
    from aiohttp import ClientSession

OPENAI_URL = "https://api.openai.com/v1"
_LONGEST_PAUSE = 60.0
_TOO_OFTEN = 429
_TRANSIENT = {408, 409, _TOO_OFTEN, 500, 502, 503, 504, 529}
_UNFIT = {400, 404, 422}
_pause = wait_exponential_jitter(multiplier=0.5, max=8.0)


class Refused(LLMError):
    """The server answered with an error; `pause` is how long it wants to be left alone, in seconds."""

    def __init__(self, name: str, status: int, pause: float | None) -> None:
        super().__init__(f"模型 {name} 返回 HTTP {status} / {name} answered HTTP {status}")
        self.status = status
        self.pause = pause


class Transient(Refused):
    """Asking again may help."""


class Completions:
    """One server's `/chat/completions`, without streaming. Belongs to the event loop that asks first."""

    def __init__(self, settings: ChatModelSettings) -> None:
        self._settings = settings
        self._url = f"{(settings.base_url or OPENAI_URL).rstrip('/')}/chat/completions"
        self._session: ClientSession | None = None
        self._formats = ["json_schema", "json_object", ""]
        """Ways to ask for JSON, the strictest first; those that the server refuses go."""

    def _connect(self) -> ClientSession:
        if self._session is None:
            from aiohttp import ClientSession, ClientTimeout, TCPConnector

            key = self._settings.api_key
            self._session = ClientSession(
                connector=TCPConnector(limit=0),
                timeout=ClientTimeout(total=None, sock_connect=10.0, sock_read=self._settings.timeout),
                headers={"authorization": f"Bearer {key.get_secret_value()}"} if key else {},
                proxy=_proxy_of(self._url),
            )
        return self._session

    async def reply(
        self, messages: Sequence[Message], temperature: float, schema: Mapping[str, Any] | None = None
    ) -> Reply:
        """The whole reply.

        Raises:
            LLMError: as for `ChatModel.stream`.
        """
        if schema is None:
            return self._read(await self._persist(self._body(messages, temperature, {})))
        while True:
            wanted = self._formats[0]
            try:
                answer = await self._persist(self._body(messages, temperature, _format(wanted, schema)))
                return self._read(answer)
            except Refused as error:
                if error.status not in _UNFIT or not wanted:
                    raise
                if self._formats[0] == wanted:  # else another call has found it out
                    self._formats.pop(0)

    def _body(self, messages: Sequence[Message], temperature: float, more: Mapping[str, Any]) -> bytes:
        settings = self._settings
        return orjson.dumps(
            {
                "model": settings.model or settings.name,
                "messages": [message.as_dict() for message in messages],
                "temperature": temperature,
                "max_tokens": settings.max_output_tokens,
                **more,
                **settings.options,
            }
        )

    async def _persist(self, body: bytes) -> dict[str, Any]:
        """The server's answer; a busy or stumbling server is asked again after a pause, its own if it names one."""
        name = self._settings.name
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type((Transient, ConnectionError, TimeoutError)),
                stop=stop_after_attempt(self._settings.max_retries + 1),
                wait=_wait,
                reraise=True,
            ):
                with attempt:
                    return await self._post(body)
        except Transient as error:
            if error.status != _TOO_OFTEN:
                raise
            raise LLMRateLimited(f"模型 {name} 限流（HTTP 429） / rate limit of {name} reached") from None
        except TimeoutError:
            raise LLMError(f"模型 {name} 超时 / {name} did not answer in time") from None
        except ConnectionError:
            raise LLMError(f"与模型 {name} 的连接失败 / the connection to {name} failed") from None
        raise AssertionError("the last attempt ends in an answer or in an error")

    async def _post(self, body: bytes) -> dict[str, Any]:
        import aiohttp

        try:
            sent = self._connect().post(self._url, data=body, headers={"content-type": "application/json"})
            async with sent as response:
                if response.status != 200:
                    kind = Transient if response.status in _TRANSIENT else Refused
                    raise kind(self._settings.name, response.status, _seconds(response.headers.get("retry-after")))
                data = await response.read()
        except TimeoutError:
            raise
        except aiohttp.ClientError as error:
            raise ConnectionError(type(error).__name__) from None
        try:
            answer = orjson.loads(data)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict) or not answer.get("choices"):
            raise LLMIncomplete(f"模型 {self._settings.name} 的响应无法解析 / {self._settings.name} sent no reply")
        return answer

    def _read(self, answer: Mapping[str, Any]) -> Reply:
        choice, name = answer["choices"][0], self._settings.name
        splitter = ThinkingSplitter(opened=self._settings.begins_thinking)
        content = (choice.get("message") or {}).get("content")
        text = splitter.feed(content)[0] if isinstance(content, str) and content else ""
        text += splitter.finish()[0]
        if choice.get("finish_reason") == "length":
            raise was_cut(name)
        if not text.strip():
            raise was_empty(name)
        counted = answer.get("usage") or {}
        return Reply(text, Usage(counted.get("prompt_tokens") or 0, counted.get("completion_tokens") or 0))

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def _proxy_of(url: str) -> str | None:
    """The proxy that the environment names for an address; asked once, as the session would ask for each request."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


def _format(kind: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """What asks a server for JSON."""
    if kind == "json_schema":
        wanted = {"type": kind, kind: {"name": "reply", "strict": True, "schema": schema}}
    else:
        wanted = {"type": kind}
    return {"response_format": wanted} if kind else {}


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.pause if isinstance(error, Refused) else None
    return min(asked, _LONGEST_PAUSE) if asked is not None else _pause(state)


def _seconds(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value else None
    except ValueError:
        return None  # a date: the pauses of our own will do
