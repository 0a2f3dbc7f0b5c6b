"""Vectors in PostgreSQL with pgvector: all knowledge bases in one schema, each generation in a table of its own.

One table for all would have one HNSW index for all: a search in a small knowledge base would walk through the
neighbours of all others, and two embedding models could not share it. So the table is the condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, LiteralString

import psycopg
from pgvector import HalfVector
from psycopg import errors, sql

from server.db.vectors import FloatArray
from server.errors import DimensionMismatch
from server.knowledge_base.backends.pg_connections import Connections, url_of
from server.knowledge_base.context import Space
from server.knowledge_base.service import KBService
from server.knowledge_base.store_clients import Driver

_INDEX_FROM = 20_000
"""Vectors from which an HNSW index is worth its making: below, an exact search takes a few milliseconds."""
_EXACT_UP_TO = 5_000
"""A filter that leaves so few is searched exactly; an index would be walked past all that it leaves out."""
_TABLE: LiteralString = (
    "CREATE TABLE IF NOT EXISTS {table} (id bigint PRIMARY KEY, embedding halfvec({dimension}) NOT NULL)"
)
_UPSERT: LiteralString = (
    "INSERT INTO {table} SELECT * FROM incoming ON CONFLICT (id) DO UPDATE SET embedding = EXCLUDED.embedding"
)


class PgKBService(KBService):
    """A knowledge base in PostgreSQL with pgvector."""

    def vs_type(self) -> str:
        """The backend's name."""
        return "pg"

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        settings = self.context.settings
        driver = Driver(
            "pg", "pg.url", lambda: Connections(url_of(settings), settings.pg.schema_name, settings.pg.timeout),
            (psycopg.Error,), lambda error: isinstance(error, psycopg.OperationalError),
        )  # fmt: skip
        with self.context.store_clients.use(driver) as connections, connections.lent() as connection:
            yield connection

    def _sql(self, space: Space, words: LiteralString, **names: sql.Composable) -> sql.Composed:
        """A statement about the table of a space."""
        schema = sql.Identifier(self.context.settings.pg.schema_name)
        table = sql.SQL("{}.{}").format(schema, sql.Identifier(space.collection))
        return sql.SQL(words).format(table=table, schema=schema, **names)

    def do_version(self, space: Space) -> int:
        """The version that was noted last, while the table is there."""
        words = "SELECT version FROM {schema}.spaces WHERE name = %s AND to_regclass({name}) IS NOT NULL"
        with self._connection() as connection:
            table = self._sql(space, "{table}").as_string(connection)
            found = connection.execute(self._sql(space, words, name=sql.Literal(table)), [space.collection]).fetchone()
        return int(found[0]) if found else 0

    def do_commit(self, space: Space, version: int) -> None:
        """Note a version."""
        words: LiteralString = (
            "INSERT INTO {schema}.spaces VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET version = EXCLUDED.version"
        )
        with self._connection() as connection:
            connection.execute(self._sql(space, words), [space.collection, version])

    def do_add_doc(self, space: Space, ids: Sequence[int], vectors: FloatArray) -> None:
        """Put vectors in: new ones straight into the table, others by way of a copy."""
        dimension = sql.Literal(vectors.shape[1])
        with self._connection() as connection:
            try:
                with connection.transaction():
                    connection.execute(self._sql(space, _TABLE, dimension=dimension))
                    highest = connection.execute(self._sql(space, "SELECT max(id) FROM {table}")).fetchone()
                    if highest is None or highest[0] is None or highest[0] < min(ids):
                        _copy(connection, self._sql(space, "COPY {table} FROM STDIN (FORMAT BINARY)"), ids, vectors)
                        return
                    connection.execute(self._sql(space, "CREATE TEMP TABLE incoming (LIKE {table}) ON COMMIT DROP"))
                    _copy(connection, sql.SQL("COPY incoming FROM STDIN (FORMAT BINARY)"), ids, vectors)
                    connection.execute(self._sql(space, _UPSERT))
            except errors.DataException as error:
                raise _mismatch(space) from error

    def do_delete_doc(self, space: Space, ranges: Sequence[tuple[int, int]]) -> None:
        """Take ranges of ids out."""
        words: LiteralString = (
            "DELETE FROM {table} USING unnest(%s::bigint[], %s::bigint[]) AS gone(lo, hi) WHERE id BETWEEN lo AND hi"
        )
        with self._connection() as connection, suppress(errors.UndefinedTable):
            connection.execute(self._sql(space, words), [[lo for lo, _ in ranges], [hi for _, hi in ranges]])

    def do_search(
        self, space: Space, vector: FloatArray, top_k: int, allowed: Sequence[int] | None = None
    ) -> list[int]:
        """Ids of the nearest vectors."""
        order: LiteralString = " ORDER BY embedding <#> %b LIMIT %s"
        chosen: list[Any] = [HalfVector(vector), top_k]
        if allowed is None:
            words: LiteralString = "SELECT id FROM {table}" + order
        elif len(allowed) <= _EXACT_UP_TO:
            words = "WITH fit AS MATERIALIZED (SELECT * FROM {table} WHERE id = ANY(%s)) SELECT id FROM fit" + order
            chosen = [list(allowed), *chosen]
        else:
            words = "SELECT id FROM {table} WHERE id = ANY(%s)" + order
            chosen = [list(allowed), *chosen]
        with self._connection() as connection:
            try:
                return [row[0] for row in connection.execute(self._sql(space, words), chosen)]
            except errors.UndefinedTable:
                return []
            except errors.DataException as error:
                raise _mismatch(space) from error

    def do_ids(self, space: Space) -> list[int]:
        """All ids in the table."""
        with self._connection() as connection:
            try:
                return [row[0] for row in connection.execute(self._sql(space, "SELECT id FROM {table}"))]
            except errors.UndefinedTable:
                return []

    def do_clear_vs(self, space: Space) -> None:
        """Drop the table."""
        with self._connection() as connection, connection.transaction():
            connection.execute(self._sql(space, "DROP TABLE IF EXISTS {table}"))
            connection.execute(self._sql(space, "DELETE FROM {schema}.spaces WHERE name = %s"), [space.collection])

    def do_drop_kb(self, space: Space) -> None:
        """Drop the table."""
        self.do_clear_vs(space)

    def do_save(self, space: Space, *, force: bool = False) -> None:  # noqa: ARG002  # durable as it is
        """Make the index when the table is large enough. Others read and write meanwhile."""
        name = sql.Identifier(f"{space.collection}_hnsw")
        with self._connection() as connection:
            if not self._wants_index(connection, space):
                return
            # one that was broken off is left behind, invalid
            connection.execute(self._sql(space, "DROP INDEX IF EXISTS {schema}.{name}", name=name))
            # the default of 64 MB would make it write to disk from some 50,000 vectors on
            connection.execute("SET maintenance_work_mem = '512MB'")
            connection.execute(self._sql(
                space, "CREATE INDEX CONCURRENTLY {name} ON {table} USING hnsw (embedding halfvec_ip_ops)", name=name
            ))  # fmt: skip
            connection.execute("RESET maintenance_work_mem")

    def _wants_index(self, connection: psycopg.Connection[Any], space: Space) -> bool:
        table = self._sql(space, "{table}").as_string(connection)
        found = connection.execute(
            "SELECT to_regclass(%(table)s) IS NOT NULL AND NOT EXISTS (SELECT 1 FROM pg_index JOIN pg_class "
            "ON pg_class.oid = indexrelid WHERE indrelid = to_regclass(%(table)s) AND relam = (SELECT oid FROM pg_am "
            "WHERE amname = 'hnsw') AND (indisvalid OR pg_class.oid IN (SELECT index_relid FROM "
            "pg_stat_progress_create_index)))", {"table": table},
        ).fetchone()  # fmt: skip
        if not (found and found[0]):
            return False
        count = connection.execute(self._sql(space, "SELECT count(*) FROM {table}")).fetchone()
        return bool(count and count[0] >= _INDEX_FROM)


def _copy(connection: psycopg.Connection[Any], words: sql.Composable, ids: Sequence[int], vectors: FloatArray) -> None:
    with connection.cursor().copy(words) as copy:
        copy.set_types(["int8", "halfvec"])
        for chunk_id, vector in zip(ids, vectors, strict=True):
            copy.write_row((int(chunk_id), HalfVector(vector)))


def _mismatch(space: Space) -> DimensionMismatch:
    return DimensionMismatch(
        f"向量维度与 {space.collection} 不符：嵌入模型换了，请重建知识库 / vectors of another length than those of "
        f"{space.collection}: the embedding model changed, rebuild the knowledge base"
    )
