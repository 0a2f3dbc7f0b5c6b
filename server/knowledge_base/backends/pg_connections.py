"""Connections to the PostgreSQL that holds vectors."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, LiteralString

import psycopg
from pgvector.psycopg import register_vector
from psycopg import errors, sql
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from configs import Settings
from server.errors import ConfigurationError

_IDLE = 32
"""Connections that are kept open."""
_SEARCH: dict[LiteralString, LiteralString] = {
    "hnsw.ef_search": "100",
    "hnsw.iterative_scan": "strict_order",  # go on until enough are found that fit the filter
    "hnsw.max_scan_tuples": "2000000000",
    "hnsw.scan_mem_multiplier": "4",
}


class Connections:
    """Connections to the database of vectors, ready for use; the same one again for the next who asks."""

    def __init__(self, url: str, schema: str, timeout: float) -> None:
        self._url, self._timeout, self.schema = url, timeout, schema
        self._idle: list[psycopg.Connection[Any]] = []
        with self.lent() as connection:
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
            connection.execute(sql.SQL(
                "CREATE TABLE IF NOT EXISTS {}.spaces (name text PRIMARY KEY, version bigint NOT NULL)"
            ).format(sql.Identifier(schema)))  # fmt: skip

    @contextmanager
    def lent(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection in autocommit mode."""
        connection = self._reused() or self._connected()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if len(self._idle) < _IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def _reused(self) -> psycopg.Connection[Any] | None:
        while self._idle:
            with suppress(IndexError):  # another thread was faster
                connection = self._idle.pop()
                if not select.select([connection.fileno()], [], [], 0)[0]:
                    return connection
                connection.close()  # a server that says something unasked has hung up
        return None

    def _connected(self) -> psycopg.Connection[Any]:
        seconds = max(1, round(self._timeout))
        connection = psycopg.connect(
            self._url, autocommit=True, connect_timeout=seconds, keepalives_idle=seconds,
            tcp_user_timeout=seconds * 1000, application_name="zhiku",
        )  # fmt: skip
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except (errors.InsufficientPrivilege, errors.FeatureNotSupported, errors.UndefinedFile) as error:
            connection.close()
            raise ConfigurationError(
                "PostgreSQL 中没有 pgvector：请安装并以管理员执行 / there is no pgvector in this PostgreSQL: "
                "install it and run as administrator: CREATE EXTENSION vector"
            ) from error
        register_vector(connection)
        found = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
        if found and tuple(int(part) for part in found[0].split(".")[:2]) >= (0, 8):
            for name, value in _SEARCH.items():
                connection.execute(sql.SQL(f"SET {name} = {value}"))
        return connection

    def close(self) -> None:
        """Close those that nobody uses."""
        while self._idle:
            self._idle.pop().close()


def url_of(settings: Settings) -> str:
    """Where vectors are kept.

    Raises:
        ConfigurationError: the settings do not say it.
    """
    given = settings.pg.url.get_secret_value() if settings.pg.url is not None else settings.sql_url
    wanted = ConfigurationError("请设置 / set pg.url (ZHIKU_PG__URL): postgresql://user:password@host/database")
    try:
        url = make_url(given)
    except ArgumentError:
        raise wanted from None  # the error itself could show the password
    if url.get_backend_name() != "postgresql":
        raise wanted
    return url.set(drivername="postgresql").render_as_string(hide_password=False)
