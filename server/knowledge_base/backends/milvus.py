"""Vectors in Milvus, by its URI, or in Milvus Lite in the data root."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from pymilvus import DataType, MilvusClient, MilvusException

from configs.settings import MilvusSettings
from server.db.vectors import FloatArray
from server.errors import DimensionMismatch, MissingDependency
from server.knowledge_base.context import Space
from server.knowledge_base.service import KBService
from server.knowledge_base.store_clients import Driver

logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it writes a stack trace for each error that it raises, too

_VERSION = "zhiku.version"
_ALL = "id >= 0"
_MOST_HITS = 16384
"""Milvus gives no more hits for a question."""
_RANGES = 100
"""Ranges of ids in one expression."""
_PAGE = 5000
_NOT_FOUND = 100
_UNAVAILABLE = {1, 2, 3, 4, 5, 8, *range(500, 1000)}
"""Codes of a server that is starting, gone, or has lost a part of itself."""


def _is_lost(error: Exception) -> bool:
    return not isinstance(error, MilvusException) or error.code in _UNAVAILABLE


class MilvusKBService(KBService):
    """A knowledge base in Milvus.

    The version is a property of the collection, so it goes with the vectors. It is noted after a read of the level
    Strong, which waits until all that was written can be found; searches need not wait then (level Session: a process
    finds what it wrote itself in any case).
    """

    def vs_type(self) -> str:
        """The backend's name."""
        return "milvus"

    def _settings(self) -> MilvusSettings:
        return self.context.settings.milvus

    def _open(self) -> MilvusClient:
        settings = self._settings()
        token = settings.token.get_secret_value() if settings.token else ""
        return MilvusClient(uri=settings.uri or self._lite(), token=token, timeout=settings.timeout)

    def _lite(self) -> str:
        if importlib.util.find_spec("milvus_lite") is None:
            raise MissingDependency(
                "请设置 milvus.uri，或安装 Milvus Lite / set milvus.uri, or install: pip install 'zhiku[milvus-lite]'"
            )
        path = self.context.stores_dir / "milvus.db"
        path.parent.mkdir(parents=True, exist_ok=True)
        return str(path)

    @contextmanager
    def _client(self) -> Iterator[MilvusClient]:
        store = self.vs_type()
        driver = Driver(store, f"{store}.uri", self._open, (MilvusException, grpc.RpcError), _is_lost)
        with self.context.store_clients.use(driver) as client:
            yield client

    @contextmanager
    def _collection(self, space: Space) -> Iterator[tuple[MilvusClient, dict[str, Any]]]:
        """The client and what it says of a collection: nothing, when there is none."""
        with self._client() as client:
            try:
                about = client.describe_collection(space.collection, timeout=self._settings().timeout)
            except MilvusException as error:
                if error.code != _NOT_FOUND:
                    raise
                about = {}
            yield client, about

    def do_version(self, space: Space) -> int:
        """The collection's property."""
        with self._collection(space) as (_, about):
            return int(about.get("properties", {}).get(_VERSION, 0))

    def do_commit(self, space: Space, version: int) -> None:
        """Wait until what was written can be found, and note the version; where nothing was, there is nothing."""
        with self._collection(space) as (client, about):
            if about:
                self._query(client, space, limit=1)
                client.alter_collection_properties(
                    space.collection, properties={_VERSION: str(version)}, timeout=self._settings().timeout
                )

    def _query(self, client: MilvusClient, space: Space, limit: int) -> list[Any]:
        found: list[Any] = client.query(
            space.collection, filter=_ALL, limit=limit, output_fields=["id"], consistency_level="Strong",
            timeout=self._settings().timeout,
        )  # fmt: skip
        return found

    def do_add_doc(self, space: Space, ids: Sequence[int], vectors: FloatArray) -> None:
        """Put vectors in."""
        with self._collection(space) as (client, about):
            if not about:
                self._create(client, space, vectors.shape[1])
            elif (dimension := _dimension(about)) != vectors.shape[1]:
                raise DimensionMismatch(
                    f"向量维度应为 {dimension}，实际为 {vectors.shape[1]}，请重建知识库 / vectors should have "
                    f"{dimension} dimensions, these have {vectors.shape[1]}: rebuild the knowledge base"
                )
            rows = [{"id": int(chunk_id), "vector": vector} for chunk_id, vector in zip(ids, vectors, strict=True)]
            client.upsert(space.collection, rows, timeout=self._settings().timeout)

    def _create(self, client: MilvusClient, space: Space, dimension: int) -> None:
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimension)
        index = client.prepare_index_params()
        index.add_index("vector", index_type="HNSW", metric_type="IP", params={"M": 16, "efConstruction": 200})
        client.create_collection(
            space.collection, schema=schema, index_params=index, num_shards=1, consistency_level="Session",
            timeout=self._settings().timeout,
        )  # fmt: skip

    def do_delete_doc(self, space: Space, ranges: Sequence[tuple[int, int]]) -> None:
        """Take ranges of ids out."""
        with self._collection(space) as (client, about):
            for at in range(0, len(ranges) if about else 0, _RANGES):
                gone = " or ".join(f"(id >= {lo:d} and id <= {hi:d})" for lo, hi in ranges[at : at + _RANGES])
                client.delete(space.collection, filter=gone, timeout=self._settings().timeout)

    def do_search(
        self, space: Space, vector: FloatArray, top_k: int, allowed: Sequence[int] | None = None
    ) -> list[int]:
        """Ids of the nearest vectors."""
        limit = min(top_k, _MOST_HITS)
        chosen = "" if allowed is None else f"id in {[int(chunk_id) for chunk_id in allowed]}"
        with self._client() as client:
            try:
                found = client.search(
                    space.collection, [vector], filter=chosen, limit=limit, timeout=self._settings().timeout,
                    search_params={"params": {"ef": max(100, limit)}},
                )  # fmt: skip
            except MilvusException as error:
                if error.code != _NOT_FOUND:
                    raise
                return []
        return [int(hit["id"]) for hit in found[0]]

    def do_ids(self, space: Space) -> list[int]:
        """All ids in the collection."""
        with self._collection(space) as (client, about):
            if not about:
                return []
            pages = client.query_iterator(
                space.collection, batch_size=_PAGE, filter=_ALL, output_fields=["id"], consistency_level="Strong"
            )
            found: list[int] = []
            while page := pages.next():
                found.extend(int(row["id"]) for row in page)
            pages.close()
            return found

    def do_clear_vs(self, space: Space) -> None:
        """Drop the collection."""
        with self._client() as client:
            client.drop_collection(space.collection, timeout=self._settings().timeout)

    def do_drop_kb(self, space: Space) -> None:
        """Drop the collection."""
        self.do_clear_vs(space)


def _dimension(about: dict[str, Any]) -> int:
    return next(int(field["params"]["dim"]) for field in about["fields"] if field["name"] == "vector")
