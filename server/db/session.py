"""The SQL database: one engine, two kinds of transaction."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from server.errors import ConfigurationError, MissingDependency

MIGRATIONS = Path(__file__).parent / "migrations"
_POSTGRES = {
    "connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3,
    "application_name": "zhiku",
}  # fmt: skip
"""A server that does not answer is noticed, and one notices that this process is gone."""


def _prepare_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    """WAL lets readers go on while one writes; FULL makes an acknowledged commit survive a power cut."""
    connection.isolation_level = None  # we emit BEGIN ourselves
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "busy_timeout=60000",
        "cache_size=-16000",
        "mmap_size=268435456",
        "wal_autocheckpoint=4000",
        "secure_delete=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes the write lock at once: upgrading a read transaction later fails when others wrote."""
    writes = connection.get_execution_options().get("zhiku_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def _json(value: Any) -> str:
    """JSON without NUL, which PostgreSQL would store and then fail to read."""
    return _NUL.sub(r"\1", json.dumps(value))


def _without_nul(
    _c: Connection, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool
) -> tuple[str, Any]:
    """Text without NUL, which PostgreSQL refuses: ids of clients, words of models."""
    rows = parameters if many else [parameters]
    if any(isinstance(value, str) and "\0" in value for row in rows for value in row.values()):
        rows = [{key: v.replace("\0", "") if isinstance(v, str) else v for key, v in row.items()} for row in rows]
    return statement, rows if many else rows[0]


# Errors must not show what was written: passwords of files among it.
_COMMON: dict[str, Any] = {"hide_parameters": True, "json_serializer": _json}
_LOCKS = 0x7A68  # "zh": locks of other programs in the same database have other numbers
_LIMITS = text(
    "SELECT set_config('lock_timeout', '60s', true), set_config('idle_in_transaction_session_timeout', '120s', true)"
)
"""Like SQLite, give up after a minute of waiting; a process that hangs must not stop all others for ever."""
_ALONE = text(f"SELECT pg_advisory_xact_lock({_LOCKS}, 0)")
_IN_ONE_KB = text(
    f"SELECT pg_advisory_xact_lock_shared({_LOCKS}, 0), pg_advisory_xact_lock({_LOCKS}, CAST(:kb AS int))"
)
_MOST_LOCKS = 0x7FFFFFFF


def _take_turn(connection: Connection, kb_id: int) -> None:
    """Let one writer at a time through, as SQLite does, or one at a time for each knowledge base."""
    if connection.dialect.name != "postgresql":
        return
    connection.execute(_LIMITS)
    if kb := kb_id % _MOST_LOCKS:
        connection.execute(_IN_ONE_KB, {"kb": kb})
    else:
        connection.execute(_ALONE)


def url_of(text: str) -> URL:
    """A database's URL with the driver that this service uses; `postgres://` is what many providers write.

    Raises:
        ConfigurationError: it is no URL.
    """
    try:
        url = make_url(text)
    except ArgumentError:
        raise ConfigurationError(
            "database_url 不是有效的 URL / database_url is no URL, such as postgresql://user:password@host:5432/name"
        ) from None
    return url.set(drivername="postgresql+psycopg") if url.drivername in ("postgres", "postgresql") else url


def _newest() -> str:
    """The revision that this code needs: migrations are numbered files."""
    return max(path.name.split("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))


class Database:
    """Access to the database; every use is one transaction.

    Example:
        with db.write() as sql:
            sql.execute(insert(KnowledgeBaseRow).values(name="docs"))
    """

    def __init__(self, url: str, connections: int = 40) -> None:
        """At most so many `connections` at a time; nothing is opened yet.

        Raises:
            ConfigurationError: it is no URL. MissingDependency: the driver of its database is not installed.
        """
        self._url = url_of(url)
        self._connections = connections
        try:
            self.engine: Engine = self._create_engine()
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            raise MissingDependency(
                f"数据库需要安装驱动 / the database {self._url.get_backend_name()} needs its driver: "
                f"pip install 'zhiku[pg]' ({error})"
            ) from error
        self._writer = threading.RLock()

    def _create_engine(self) -> Engine:
        pool = {"pool_size": min(20, self._connections), "max_overflow": max(0, self._connections - 20)}
        if self._url.get_backend_name() != "sqlite":
            return self._create_server_engine(pool)
        if self._url.database:
            Path(self._url.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(self._url, connect_args={"check_same_thread": False}, **pool, **_COMMON)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _create_server_engine(self, pool: dict[str, int]) -> Engine:
        postgres = self._url.get_backend_name() == "postgresql"
        # what the URL says itself goes first
        given = {key: value for key, value in _POSTGRES.items() if key not in self._url.query} if postgres else {}
        engine = create_engine(self._url, pool_pre_ping=True, connect_args=given, **pool, **_COMMON)
        if postgres:
            event.listen(engine, "before_cursor_execute", _without_nul, retval=True)
        return engine

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return self._url.render_as_string(hide_password=True)

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is a file of this machine, with one writer at a time."""
        return self.engine.dialect.name == "sqlite"

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view of the data; what is written in it is rolled back."""
        connection = self.engine.connect()
        if not self.is_sqlite:  # there every transaction is a snapshot anyway
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection:
            yield connection

    @contextlib.contextmanager
    def write(self, kb_id: int = 0) -> Iterator[Connection]:
        """A transaction that commits at the end, or rolls back on an exception. Writers take turns, so what it has
        read is still true when it commits.

        Whoever touches nothing but one knowledge base says so by its `kb_id`: on PostgreSQL, writers to other ones need
        not wait. SQLite has one writer: threads of this process queue up fairly instead of polling its lock.
        """
        with self._writer if self.is_sqlite else contextlib.nullcontext():
            connection = self.engine.connect().execution_options(zhiku_write=True)
            with connection, connection.begin():
                _take_turn(connection, kb_id)
                yield connection

    def migrate(self, patience: float = 60.0) -> None:
        """Bring the tables to the newest version; waits at most `patience` seconds for the server."""
        self._wait(patience)
        if self.revision() == _newest():
            return
        from alembic import command  # costs a third of a second, and is needed once in a release
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        with self.write() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def revision(self) -> str | None:
        """The version of the tables, None for an empty database."""
        with self.read() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
            return found

    def _wait(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        while True:
            try:
                with self.read():
                    return
            except OperationalError as error:
                if time.monotonic() > deadline:
                    raise ConfigurationError(
                        f"数据库连接失败，请检查 database_url 和数据库服务 / cannot reach the database, look at "
                        f"database_url and at its server: {self.shown}: {error.orig}"
                    ) from None
                time.sleep(min(1.0, patience / 10))

    def scrub(self) -> None:
        """Take what was deleted off the disk too: SQLite's log would keep it until it is full."""
        if not self.is_sqlite:
            return
        with self._writer, self.engine.connect() as connection:
            connection.commit()
            cursor = connection.connection.cursor()
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            cursor.close()

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()
