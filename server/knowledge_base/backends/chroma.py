"""Vectors in Chroma: in files of the data root for one process, or in a Chroma server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import chromadb
import httpx
import numpy as np
from chromadb.api import ClientAPI
from chromadb.config import Settings as ChromaClientSettings
from chromadb.errors import ChromaError, InvalidArgumentError, InvalidDimensionException, NotFoundError

from server.db.vectors import FloatArray
from server.errors import DimensionMismatch
from server.knowledge_base.context import Space
from server.knowledge_base.service import KBService
from server.knowledge_base.store_clients import Driver

_VERSION = "zhiku_version"
_NUMBER = "n"
"""Chroma's ids are strings; the number beside them can be asked for by ranges."""
_INDEX: Any = {"hnsw": {"space": "ip", "ef_construction": 200, "ef_search": 100, "max_neighbors": 16}}
_PAGE = 1000
_EXACT_UP_TO = 2000
"""A filter that leaves so few is searched exactly: the index does not reach what lies far from all else."""
_SEEN = 1000
"""Collections that are remembered."""
_RANGES = 100
"""Ranges of ids in one condition."""


class ChromaClient:
    """Chroma's client, and the collections that it has seen."""

    def __init__(self, api: ClientAPI, session: httpx.Client | None = None) -> None:
        self._api = api
        self._session = session
        self._seen: dict[str, chromadb.Collection] = {}

    def find(self, space: Space) -> chromadb.Collection | None:
        """The collection of a space as it is now, if there is one."""
        name = space.collection
        try:
            found = self._seen[name] = self._api.get_collection(name, embedding_function=None)
        except NotFoundError:
            self._seen.pop(name, None)
            return None
        if len(self._seen) > _SEEN:
            self._seen.clear()
        return found

    def seen(self, space: Space) -> chromadb.Collection | None:
        """The same as it was when it was looked up last, which saves a request; it may be gone since."""
        return self._seen.get(space.collection) or self.find(space)

    def made(self, space: Space) -> chromadb.Collection:
        """The collection of a space, a new one if there is none."""
        return self.find(space) or self._api.create_collection(
            space.collection, configuration=_INDEX, embedding_function=None
        )

    def drop(self, space: Space) -> None:
        """Delete the collection of a space."""
        try:
            self._seen.pop(space.collection, None)
            self._api.delete_collection(space.collection)
        except NotFoundError:
            return

    def close(self) -> None:
        """End it, with its connections, which its own `close` forgets."""
        self._api.close()
        if self._session:
            self._session.close()


class ChromaKBService(KBService):
    """A knowledge base in Chroma."""

    def vs_type(self) -> str:
        """The backend's name."""
        return "chroma"

    def _open(self) -> ChromaClient:
        given = self.context.settings.chroma
        quiet = ChromaClientSettings(anonymized_telemetry=False)
        if not given.url:
            path = self.context.stores_dir / "chroma"
            path.mkdir(parents=True, exist_ok=True)
            return ChromaClient(chromadb.PersistentClient(str(path), settings=quiet))
        url = httpx.URL(given.url)
        headers = {"Authorization": f"Bearer {given.token.get_secret_value()}"} if given.token else {}
        secure = url.scheme == "https"
        api = chromadb.HttpClient(url.host, url.port or (443 if secure else 80), secure, headers, settings=quiet)
        session: httpx.Client = api._server._session
        session.timeout = httpx.Timeout(given.timeout)  # it would wait for ever
        return ChromaClient(api, session)

    @contextmanager
    def _client(self) -> Iterator[ChromaClient]:
        # a client that finds no server says so with a ValueError
        errors = (ChromaError, httpx.HTTPError, ValueError)
        driver = Driver("chroma", "chroma.url", self._open, errors, _is_lost)
        with self.context.store_clients.use(driver) as client:
            yield client

    def do_version(self, space: Space) -> int:
        """What the collection's metadata say."""
        with self._client() as client:
            found = client.find(space)
            return int((found.metadata or {}).get(_VERSION, 0)) if found else 0

    def do_commit(self, space: Space, version: int) -> None:
        """Note the version in the collection's metadata."""
        with self._client() as client:
            client.made(space).modify(metadata={_VERSION: version})

    def do_add_doc(self, space: Space, ids: Sequence[int], vectors: FloatArray) -> None:
        """Put vectors in."""
        numbers = [int(chunk_id) for chunk_id in ids]
        with self._client() as client, _dimension_checked():
            collection = client.made(space)
            for at in range(0, len(numbers), _PAGE):
                page = numbers[at : at + _PAGE]
                collection.upsert(
                    [str(number) for number in page], vectors[at : at + _PAGE], [{_NUMBER: number} for number in page]
                )

    def do_delete_doc(self, space: Space, ranges: Sequence[tuple[int, int]]) -> None:
        """Take ranges of ids out."""
        with self._client() as client:
            collection = client.find(space)
            if collection is None:
                return
            for at in range(0, len(ranges), _RANGES):
                conditions = [_between(lo, hi) for lo, hi in ranges[at : at + _RANGES]]
                collection.delete(where=conditions[0] if len(conditions) == 1 else {"$or": conditions})

    def do_search(
        self, space: Space, vector: FloatArray, top_k: int, allowed: Sequence[int] | None = None
    ) -> list[int]:
        """Ids of the nearest vectors."""
        chosen = None if allowed is None else [str(chunk_id) for chunk_id in allowed]
        with self._client() as client, _dimension_checked():
            try:
                return _search(client.seen(space), vector, top_k, chosen)
            except NotFoundError:
                return _search(client.find(space), vector, top_k, chosen)

    def do_ids(self, space: Space) -> list[int]:
        """All ids in the collection."""
        with self._client() as client:
            collection = client.find(space)
            return [int(chunk_id) for chunk_id in collection.get(include=[])["ids"]] if collection else []

    def do_clear_vs(self, space: Space) -> None:
        """Delete the collection."""
        with self._client() as client:
            client.drop(space)

    def do_drop_kb(self, space: Space) -> None:
        """Delete the collection."""
        self.do_clear_vs(space)


def _search(
    collection: chromadb.Collection | None, vector: FloatArray, top_k: int, chosen: list[str] | None
) -> list[int]:
    if collection is None:
        return []
    if chosen is not None and len(chosen) <= _EXACT_UP_TO:
        return _nearest(collection.get(ids=chosen, include=["embeddings"]), vector, top_k)
    found = collection.query([vector], ids=chosen, n_results=top_k, include=[])
    return [int(chunk_id) for chunk_id in found["ids"][0]]


def _nearest(found: Any, vector: FloatArray, top_k: int) -> list[int]:
    if not found["ids"]:
        return []
    order = np.argsort(-(np.asarray(found["embeddings"]) @ vector), kind="stable")
    return [int(found["ids"][at]) for at in order[:top_k]]


def _is_lost(error: Exception) -> bool:
    return isinstance(error, httpx.HTTPError) or "connect" in str(error).lower()


def _between(lo: int, hi: int) -> dict[str, Any]:
    return {"$and": [{_NUMBER: {"$gte": int(lo)}}, {_NUMBER: {"$lte": int(hi)}}]}


@contextmanager
def _dimension_checked() -> Iterator[None]:
    try:
        yield
    except (InvalidArgumentError, InvalidDimensionException) as error:
        if "dimension" not in str(error).lower():
            raise
        raise DimensionMismatch(
            f"向量维度不符，请重建知识库 / vectors of another length, rebuild the knowledge base: {error}"
        ) from error
