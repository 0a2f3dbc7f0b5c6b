"""The address that clients know this service by, also behind a proxy."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from fastapi import Request

from configs import Settings

_HOST = re.compile(r"[A-Za-z0-9.\-_]+(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~\-]+)*/?")


def public_url(request: Request, settings: Settings) -> str:
    """Base of links to this service, with a slash at the end."""
    base = settings.public_url or base_url(request, settings.trusted_proxies)
    return base.rstrip("/") + "/"


def base_url(request: Request, trusted: Sequence[str]) -> str:
    """The request's own base URL, or what a trusted proxy says that the client called."""
    base = request.base_url
    if request.client is None or not is_trusted(request.client.host, trusted):
        return str(base)
    scheme = _first(request, "x-forwarded-proto")
    host = _first(request, "x-forwarded-host")
    prefix = _first(request, "x-forwarded-prefix")
    if scheme in ("http", "https"):
        base = base.replace(scheme=scheme)
    if _HOST.fullmatch(host):
        base = base.replace(netloc=host)
    if prefix and _PREFIX.fullmatch(prefix):
        base = base.replace(path=prefix.rstrip("/") + base.path)
    return str(base)


def _first(request: Request, header: str) -> str:
    """The header as the outermost proxy wrote it."""
    return request.headers.get(header, "").split(",")[0].strip()


def is_trusted(peer: str, trusted: Sequence[str]) -> bool:
    """Whether an address is one of these, or lies in one of these networks; `*` is every one."""
    if "*" in trusted or peer in trusted:
        return True
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    return any("/" in entry and address in ipaddress.ip_network(entry, strict=False) for entry in trusted)
