"""Metadata filters as clients write them, in the shape that OpenAI's vector stores use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from server.domain import Compare, Condition, Junction, Scalar
from server.errors import InvalidRequest

_COMPARISONS = ("eq", "ne", "gt", "gte", "lt", "lte")
_DEEPEST, _MOST_PARTS, _MOST_VALUES = 10, 100, 1000
_KEY = re.compile(r'[^"\\\x00-\x1f]{1,100}')


def condition_of(given: Any, depth: int = 0) -> Condition | None:
    """A filter, checked.

    Raises:
        InvalidRequest: it makes no sense; the words say where.
    """
    if given is None or given == {}:
        return None
    if not isinstance(given, Mapping) or depth > _DEEPEST:
        raise _bad("不是对象或嵌套过深 / not an object, or nested too deeply")
    kind = given.get("type")
    if kind in ("and", "or", "not"):
        return _junction(kind, given, depth)
    if kind in _COMPARISONS:
        return Compare(kind, _key(given), _scalar(given.get("value"), ordered=kind not in ("eq", "ne")))
    if kind in ("in", "nin"):
        values = given.get("value")
        if not isinstance(values, list) or len(values) > _MOST_VALUES:
            raise _bad(f"{kind}: value 应为列表 / value must be a list of at most {_MOST_VALUES}")
        return Compare(kind, _key(given), tuple(_scalar(value) for value in values))
    raise _bad(f"type 应为 / type must be one of {', '.join((*_COMPARISONS, 'in', 'nin', 'and', 'or', 'not'))}")


def _junction(kind: str, given: Mapping[str, Any], depth: int) -> Junction:
    parts = given.get("filters")
    if parts is None and kind == "not" and "filter" in given:
        parts = [given["filter"]]
    if not isinstance(parts, list) or not 1 <= len(parts) <= _MOST_PARTS:
        raise _bad(f"{kind}: filters 应为非空列表 / filters must be a list with 1 to {_MOST_PARTS} filters")
    found = [condition_of(part, depth + 1) for part in parts]
    if any(part is None for part in found):
        raise _bad(f"{kind}: 空的过滤条件 / an empty filter")
    return Junction(kind, tuple(part for part in found if part is not None))


def _key(given: Mapping[str, Any]) -> str:
    key = given.get("key")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise _bad("key 应为不含引号的字符串 / key must be a text without quotation marks")
    return key


def _scalar(value: Any, *, ordered: bool = False) -> Scalar:
    if isinstance(value, (str, int, float)) and not (ordered and isinstance(value, bool)):
        return value
    if value is None and not ordered:
        return None
    raise _bad("value 应为文本、数字或布尔值 / value must be a text, a number or, with eq and ne, a boolean or null")


def _bad(reason: str) -> InvalidRequest:
    return InvalidRequest(f"过滤条件有误 / the filter makes no sense: {reason}")
