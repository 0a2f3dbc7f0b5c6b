"""Outgoing HTTP that cannot be turned against the inside of the network.

    guard = Guard(allow=["searxng:8080", "10.1.0.0/16"])
    page = await guard.fetch("GET", "https://example.com/")
    await guard.close()

A host is resolved here, every address it has is checked, and the connection goes to an address that was
checked: a name that changes between check and connection (DNS rebinding) gains nothing. The name stays in the Host
header, in SNI and in the verification of the certificate. Each redirect is checked anew. Proxies of the
environment are not used; with `proxy` the address, not the name, is what the proxy is asked for.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from server.errors import InvalidRequest, ZhikuError
from server.web.addresses import Address, address_of, is_public, literal_of, network_of

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host name; the port may be ignored."""

AGENT = "Mozilla/5.0 (compatible; Zhiku)"
_MOST_ADDRESSES = 3  # that are tried, one after the other
_ENCODINGS = ("", "identity", "gzip", "deflate")  # what is known not to unpack to a thousandfold and more at once


class WebError(ZhikuError):
    """Something on the web cannot be reached, or its answer cannot be used."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a server answered, whatever the status says."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    encoding: str = "utf-8"

    @property
    def text(self) -> str:
        """The body as text; what cannot be decoded is replaced."""
        try:
            return self.body.decode(self.encoding, "replace")
        except LookupError:
            return self.body.decode("utf-8", "replace")


class Guard:
    """Fetches pages from public addresses, and from what `allow` names.

    `allow` holds host names, `host:port`, addresses and networks ("10.0.0.0/8"): for operators who run a service
    inside. An answer is at most `max_bytes` long, and takes at most `timeout` seconds, redirects included.
    """

    def __init__(
        self,
        allow: Sequence[str] = (),
        *,
        timeout: float = 15.0,
        max_bytes: int = 2**21,
        max_redirects: int = 3,
        proxy: str | None = None,
        resolver: Resolver | None = None,
        inner: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._timeout = timeout
        self._max_bytes = max_bytes
        # A kept connection would be found by its address, whatever name its certificate was verified for.
        limits = httpx2.Limits(max_keepalive_connections=0)
        inner = inner or httpx2.AsyncHTTPTransport(trust_env=False, limits=limits, proxy=proxy)
        self._client = httpx2.AsyncClient(
            transport=GuardedTransport(inner, allow, resolver or resolve),
            trust_env=False,
            max_redirects=max_redirects,
            timeout=timeout,
            headers={"user-agent": AGENT, "accept-encoding": "gzip, deflate"},
        )

    async def fetch(self, method: str, url: str, *, follow: bool = True, **request: Any) -> Page:
        """The page at an address. `request` is what httpx takes: params, data, json, headers.

        Headers other than Authorization go along to wherever a redirect leads: without `follow` it is not followed.

        Raises:
            InvalidRequest: the address, or one it redirects to, is forbidden.
            WebError: the server cannot be reached, takes too long or sends too much.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._fetch(method, url, follow, request)
        except (TimeoutError, httpx2.TimeoutException):
            raise WebError(f"请求 {_site(url)} 超时 / {_site(url)} did not answer in time") from None
        except httpx2.TooManyRedirects:
            raise WebError(f"{_site(url)} 重定向次数过多 / {_site(url)} redirects too often") from None
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, UnicodeError):
            raise InvalidRequest("网址无效 / this is no address on the web") from None
        except httpx2.HTTPError as error:
            raise WebError(f"无法访问 {_site(url)} / cannot reach {_site(url)} ({type(error).__name__})") from None

    async def _fetch(self, method: str, url: str, follow: bool, request: Mapping[str, Any]) -> Page:
        async with self._client.stream(method, url, follow_redirects=follow, **request) as response:
            if response.headers.get("content-encoding", "").strip().lower() not in _ENCODINGS:
                raise WebError(
                    f"{_site(url)} 的压缩格式不受支持 / {_site(url)} compresses in a way that was not asked for"
                )
            body = bytearray()
            async for block in response.aiter_bytes():
                body += block
                if len(body) > self._max_bytes:
                    raise WebError(f"{_site(url)} 的响应过大 / {_site(url)} sent more than {self._max_bytes} bytes")
            encoding = response.charset_encoding or "utf-8"
            return Page(str(response.url), response.status_code, dict(response.headers), bytes(body), encoding)

    async def close(self) -> None:
        """Close connections."""
        await self._client.aclose()


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends a request to a checked address of its host. Clients follow redirects by asking it again."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, allow: Sequence[str], resolver: Resolver) -> None:
        self._inner = inner
        self._resolver = resolver
        self._networks = [network for entry in allow if (network := network_of(entry)) is not None]
        self._hosts = {entry.strip().lower() for entry in allow if network_of(entry) is None}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer from the first address that takes the connection.

        Raises:
            InvalidRequest: the scheme or an address of the host is forbidden.
        """
        addresses = await self._addresses(request.url)
        extensions = {**request.extensions, "sni_hostname": request.url.raw_host.decode("ascii")}
        for left, address in enumerate(addresses, start=1 - len(addresses)):
            try:
                return await self._inner.handle_async_request(
                    httpx2.Request(
                        request.method,
                        request.url.copy_with(host=str(address)),
                        headers=request.headers,  # the Host header names the host already
                        stream=request.stream,
                        extensions=extensions,
                    )
                )
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if not left:
                    raise
        raise httpx2.ConnectError("no address")

    async def _addresses(self, url: httpx2.URL) -> list[Address]:
        if url.scheme not in ("http", "https"):
            raise InvalidRequest(f"只允许 http 与 https / only http and https are allowed, not {url.scheme[:20]}")
        host, port = (
            url.raw_host.decode("ascii").rstrip(".").lower(),
            url.port or (443 if url.scheme == "https" else 80),
        )
        literal = literal_of(host)
        try:
            found = [literal] if literal else [address_of(one) for one in await self._resolver(host, port)]
        except (OSError, ValueError):
            raise httpx2.ConnectError(f"{host} cannot be resolved") from None
        named = host in self._hosts or f"{host}:{port}" in self._hosts
        if not named and not all(map(self._is_allowed, found)):
            raise InvalidRequest(
                f"禁止访问内部地址：{host} / {host} is an address inside the network, which is forbidden; "
                "an operator can allow it by name"
            )
        return list(dict.fromkeys(found))[:_MOST_ADDRESSES]

    def _is_allowed(self, address: Address) -> bool:
        return is_public(address) or any(address in network for network in self._networks)

    async def aclose(self) -> None:
        """Close connections."""
        await self._inner.aclose()


async def resolve(host: str, port: int) -> list[str]:
    """The addresses that the system knows for a host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def _site(url: str) -> str:
    """The host of an address for messages: the rest of it may hold a key."""
    try:
        return httpx2.URL(url).host[:100] or "?"
    except httpx2.InvalidURL:
        return "?"
