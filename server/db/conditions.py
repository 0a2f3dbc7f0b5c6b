"""Metadata filters as SQL. Keys and values of clients only ever enter as bound parameters."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, String, and_, case, false, func, not_, or_, true
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

from server.db.tables import ChunkRow, FileRow
from server.domain import Compare, Condition, Scalar

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le,
}  # fmt: skip
_KINDS: Mapping[type, tuple[str, ...]] = {
    str: ("text", "string"),
    bool: ("true", "false", "boolean"),
    int: ("integer", "real", "number"),
    float: ("integer", "real", "number"),
}
"""What SQLite and PostgreSQL call the types of JSON values."""


class json_kind(GenericFunction[str]):  # noqa: N801  # an SQL function is called by its name
    """The type of the value that a JSON object has for a key, NULL when it has none."""

    type = String()
    inherit_cache = True


@compiles(json_kind, "postgresql")
def _postgresql(element: Any, compiler: Any, **kw: Any) -> str:
    column, key = element.clauses
    return f"json_typeof({compiler.process(column, **kw)} -> {compiler.process(key, **kw)})"


@compiles(json_kind)
def _sqlite(element: Any, compiler: Any, **kw: Any) -> str:
    column, key = element.clauses
    column, key = compiler.process(column, **kw), compiler.process(key, **kw)
    return f"json_type({column}, '$.\"' || {key} || '\"')"


class by_code(GenericFunction[str]):  # noqa: N801
    """A text that is compared by code points, not by the rules of the database's language."""

    type = String()
    inherit_cache = True


@compiles(by_code, "postgresql")
def _collated(element: Any, compiler: Any, **kw: Any) -> str:
    return f'({compiler.process(element.clauses, **kw)} COLLATE "C")'


@compiles(by_code)
def _as_it_is(element: Any, compiler: Any, **kw: Any) -> str:
    return f"({compiler.process(element.clauses, **kw)})"


def sql_of(condition: Condition) -> ColumnElement[bool]:
    """A filter as a condition on chunks joined with their files; never NULL."""
    if isinstance(condition, Compare):
        return _comparison(condition)
    parts = [sql_of(part) for part in condition.parts]
    if condition.kind == "not":
        return not_(and_(true(), *parts))
    return and_(true(), *parts) if condition.kind == "and" else or_(false(), *parts)


def _comparison(wanted: Compare) -> ColumnElement[bool]:
    if wanted.kind == "ne":
        return not_(_is(wanted.key, "eq", wanted.value))
    if wanted.kind in ("in", "nin"):
        values = wanted.value if isinstance(wanted.value, tuple) else (wanted.value,)
        found = or_(false(), *(_is(wanted.key, "eq", value) for value in values))
        return found if wanted.kind == "in" else not_(found)
    return _is(wanted.key, wanted.kind, wanted.value)


def _is(key: str, kind: str, value: Any) -> ColumnElement[bool]:
    """The chunk's own value counts before that of its file; a missing one, or one of another type, fits nothing."""
    if key in _COLUMNS:
        return _column(_COLUMNS[key], kind, value)
    own, shared = json_kind(ChunkRow.extra, key), json_kind(FileRow.attributes, key)
    return case(
        (own.is_not(None), _value(ChunkRow.extra, own, key, kind, value)),
        (shared.is_not(None), _value(FileRow.attributes, shared, key, kind, value)),
        else_=true() if value is None and kind == "eq" else false(),
    )


_COLUMNS: Mapping[str, tuple[Any, type]] = {
    "source": (FileRow.name, str),
    "file_name": (FileRow.name, str),
    "page": (ChunkRow.page, int),
    "language": (ChunkRow.lang, str),
}


def _column(column: tuple[Any, type], kind: str, value: Scalar) -> ColumnElement[bool]:
    expression, expected = column
    if value is None:
        return expression.is_(None) if kind == "eq" else false()
    if isinstance(value, bool) or not isinstance(value, (int, float) if expected is int else expected):
        return false()
    left = by_code(expression) if expected is str else expression
    return func.coalesce(_OPERATORS[kind](left, value), false())


def _value(column: Any, found: ColumnElement[str], key: str, kind: str, value: Scalar) -> ColumnElement[bool]:
    if value is None:
        return found == "null" if kind == "eq" else false()
    if isinstance(value, bool):
        left = column[key].as_boolean()
    elif isinstance(value, str):
        left = by_code(column[key].as_string())
    else:
        left = column[key].as_float()
    return case((found.in_(_KINDS[type(value)]), _OPERATORS[kind](left, value)), else_=false())
