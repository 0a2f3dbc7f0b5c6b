"""Text and JSON from clients, made safe to store and to send back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_DEEPEST = 20
_PLACE = frozenset({"source", "id", "page", "headings", "start", "end"})


def clean_text(text: str) -> str:
    """Without NUL, which databases refuse, and with half characters replaced."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def whole(value: Any) -> Any:
    """The same value with half characters (lone surrogates) replaced, in keys too: nothing below can store them."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {whole(key): whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return value


def safe_json(value: Any, depth: int = 0) -> Any:
    """The same value with clean strings, without NaN and infinity, at most twenty levels deep."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= _DEEPEST:
        return None
    if isinstance(value, dict):
        return {clean_text(str(key)): safe_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [safe_json(item, depth + 1) for item in value]
    return value


def own_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a client may set; the place in the source is the server's to tell."""
    return {key: value for key, value in safe_json(dict(metadata)).items() if key not in _PLACE}
