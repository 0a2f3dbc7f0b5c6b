"""The SQL database: one engine, two kinds of transaction."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from server.errors import ConfigurationError

MIGRATIONS = Path(__file__).parent / "migrations"
# Errors must not show what was written: passwords of files among it.
_QUIET: dict[str, Any] = {"hide_parameters": True}


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


def _newest() -> str:
    """The revision that this code needs: migrations are numbered files."""
    return max(path.name.split("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))


class Database:
    """Access to the database; every use is one transaction.

    Example:
        with db.write() as sql:
            sql.execute(insert(KnowledgeBaseRow).values(name="docs"))
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine: Engine = self._create_engine()
        self._writer = threading.RLock()

    def _create_engine(self) -> Engine:
        parsed = make_url(self.url)
        if parsed.get_backend_name() != "sqlite":
            return create_engine(parsed, pool_size=20, max_overflow=20, pool_pre_ping=True, **_QUIET)
        if parsed.database:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(
            parsed, pool_size=20, max_overflow=40, connect_args={"check_same_thread": False}, **_QUIET
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

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
    def write(self) -> Iterator[Connection]:
        """A transaction that commits at the end, or rolls back on an exception.

        SQLite has one writer: threads of this process queue up fairly instead of polling its lock.
        """
        with self._writer if self.is_sqlite else contextlib.nullcontext():
            connection = self.engine.connect().execution_options(zhiku_write=True)
            with connection, connection.begin():
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
                    shown = make_url(self.url).render_as_string(hide_password=True)
                    raise ConfigurationError(
                        f"数据库连接失败 / cannot reach the database {shown}: {error.orig}"
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
