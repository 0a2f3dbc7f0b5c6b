"""All vector stores side by side, and what our layer adds to their bare clients.

python -m benchmarks.stores [--sizes 10000,100000] [STORE …]

Every measurement is a process of its own. SQL (SQLite here) is filled first; then the store reads it, as it does after
a loss. The bare client puts the same vectors in from memory. Servers are those of the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, insert

from benchmarks.bench import percentile
from configs import EmbeddingModelSettings
from server.db import kbs
from server.db.tables import ChunkRow, DocumentRow, FileRow, VectorRow
from server.db.vectors import FloatArray, pack, text_hash
from server.domain import KnowledgeBase
from server.knowledge_base.context import Space
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.service import KBService
from server.runtime import Runtime
from tests import engines
from tests.contract.stores import STORES, Store, store_of

_DIMENSION = 384
_QUERIES = 200
_FEW_QUERIES = 20
"""For Milvus Lite, which takes seconds for one."""
_TOP = 10
_PAGE = 2000
_DOCUMENT = 1000
COLUMNS = {
    "insert": "vectors/s: ours", "bare insert": "bare", "insert overhead": "beside the store", "index": "index s",
    "p50": "query ms p50", "p95": "p95", "bare p50": "bare p50", "overhead": "more ms", "recall": "recall@10",
    "rss": "RSS MB", "disk": "disk MB",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10000,100000")
    parser.add_argument("--one", action="store_true", help="measure in this process and print JSON")
    parser.add_argument("stores", nargs="*", default=[name for name in STORES if name not in ("graph", "zilliz")])
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    if given.one:
        print(json.dumps(measure(given.stores[0], sizes[0])))
        return
    table = Table("store", "vectors", *COLUMNS.values())
    for size in sizes:
        for name in given.stores:
            found = _in_a_process(name, size)
            table.add_row(name, str(size), *(str(found.get(column, "-")) for column in COLUMNS))
            print(name, size, found, file=sys.stderr, flush=True)
    Console(width=180).print(table)


def _in_a_process(name: str, size: int) -> dict[str, Any]:
    words = [sys.executable, "-m", "benchmarks.stores", "--one", "--sizes", str(size), name]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"insert": (done.stderr.strip().splitlines() or ["failed"])[-1][:60]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(name: str, size: int) -> dict[str, Any]:
    """All figures of one store at one size."""
    folder = Path(tempfile.mkdtemp(prefix="zhiku-bench-"))
    try:
        store = store_of(name)
        model = EmbeddingModelSettings(name="fake", provider="fake", options={"dimension": _DIMENSION})
        context = Runtime.build(store.settings(folder / "data", embedding_models=[model])).service.context
        service = KBServiceFactory.get_default("bench")
        kb = service.create_kb()
        vectors = clustered(size, seed=1)
        queries = clustered(_FEW_QUERIES if name == "milvus-lite" else _QUERIES, seed=2)
        with context.db.write() as sql:
            fill(sql, kb, vectors)
        found = figures(service, store, vectors, queries, folder)
        context.close()
        return found
    finally:
        engines.remove_all()
        shutil.rmtree(folder, ignore_errors=True)


def clustered(count: int, seed: int) -> FloatArray:
    """Unit vectors around 200 centres, as texts lie around their subjects."""
    centres = np.random.default_rng(0).normal(size=(200, _DIMENSION))
    draw = np.random.default_rng(seed)
    drawn = centres[draw.integers(0, 200, count)] + draw.normal(size=(count, _DIMENSION))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), dtype=np.float32)


def fill(sql: Connection, kb: KnowledgeBase, vectors: FloatArray) -> None:
    """Chunks with these vectors, as ingestion would leave them; ids begin at 1."""
    for number, at in enumerate(range(0, len(vectors), _DOCUMENT), start=1):
        page = range(at, min(at + _DOCUMENT, len(vectors)))
        name = f"f{number}.txt"
        sql.execute(insert(FileRow).values(id=number, kb_id=kb.id, name=name, name_key=name))
        sql.execute(insert(DocumentRow).values(
            id=number, kb_id=kb.id, file_id=number, generation_id=kb.generation.id, file_version=1, live=True,
            chunk_count=len(page),
        ))  # fmt: skip
        sql.execute(insert(ChunkRow), [
            {"id": n + 1, "kb_id": kb.id, "document_id": number, "ordinal": n - at, "text": f"text {n}",
             "text_hash": text_hash(f"text {n}"), "lang": "en"} for n in page
        ])  # fmt: skip
        sql.execute(insert(VectorRow), [{"chunk_id": n + 1, "vector": pack(vectors[n])} for n in page])
    kbs.set_dimension(sql, kb.generation.id, _DIMENSION)
    kbs.bump(sql, kb.id, [(1, len(vectors))])


def figures(service: KBService, store: Store, vectors: FloatArray, queries: FloatArray, folder: Path) -> dict[str, Any]:
    generation = service.generation()
    space = Space.of(generation)
    warm, other = (replace(space, generation_id=space.generation_id + more) for more in (1000, 2000))
    service.do_add_doc(warm, [1], vectors[:1])  # the driver is loaded, the client open
    memory, disk = resident(store), on_disk(store, folder)
    inside = time_inside(service)
    ours = seconds(lambda: service.indexes.advance(generation))
    spent = sum(inside)
    index = seconds(lambda: service.do_save(space, force=True))
    memory, disk = resident(store) - memory, on_disk(store, folder) - disk
    with BARE[store.vs_type.value](service, other) as bare:
        theirs = seconds(lambda: bare.put(vectors))
    with BARE[store.vs_type.value](service, space) as bare:
        return {
            "insert": round(len(vectors) / ours), "bare insert": round(len(vectors) / theirs),
            "insert overhead": f"{ours / spent - 1:+.0%}", "index": round(index, 1),
            **asked(service, space, bare, vectors, queries), "rss": round(memory / 1e6), "disk": round(disk / 1e6),
        }  # fmt: skip


def time_inside(service: KBService) -> list[float]:
    """From now on, the seconds of each call that hands vectors to the store: the rest is ours, whatever else keeps the
    machine busy."""
    spent: list[float] = []

    def timed(hook: Callable[..., None]) -> Callable[..., None]:
        return lambda *given: spent.append(seconds(lambda: hook(*given)))

    for name in ("do_clear_vs", "do_add_doc", "do_commit"):
        setattr(service, name, timed(getattr(service, name)))
    return spent


def asked(service: KBService, space: Space, bare: Bare, vectors: FloatArray, queries: FloatArray) -> dict[str, Any]:
    """Both take turns, so that other work on the machine meets both alike."""

    def ask(query: FloatArray) -> list[int]:
        with service.do_init(space):
            service.do_version(space)
            return service.do_search(space, query, _TOP)

    for query in queries[: len(queries) // 10]:
        ask(query), bare.search(query)
    ours = [seconds(lambda query=query: ask(query)) for query in queries]
    theirs = [seconds(lambda query=query: bare.search(query)) for query in queries]
    right = [len({*ask(query)} & {*(np.argsort(-(vectors @ query))[:_TOP] + 1)}) for query in queries]
    return {
        "p50": f"{percentile(ours, 0.5) * 1e3:.1f}", "p95": f"{percentile(ours, 0.95) * 1e3:.1f}",
        "bare p50": f"{percentile(theirs, 0.5) * 1e3:.1f}",
        "overhead": f"{(percentile(ours, 0.5) - percentile(theirs, 0.5)) * 1e3:+.2f}",
        "recall": f"{sum(right) / _TOP / len(queries):.3f}",
    }  # fmt: skip


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def resident(store: Store) -> int:
    """Memory of the process that holds the vectors, with its children; what they share counts once."""
    engine = store.engine
    top = psutil.Process(engine.pid if engine else None)
    total = 0
    for process in [top, *top.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return int(total)


def on_disk(store: Store, folder: Path) -> int:
    roots = [store.engine.folder] if store.engine else [folder / "data" / "stores", folder / "data" / "index"]
    return sum(path.stat().st_size for root in roots for path in root.rglob("*") if path.is_file())


@dataclass(frozen=True)
class Bare:
    """A store's driver, used as its manual says."""

    put: Callable[[FloatArray], None]
    search: Callable[[FloatArray], object]


@contextmanager
def bare_faiss(service: KBService, space: Space) -> Iterator[Bare]:
    import faiss

    from server.knowledge_base.backends.faiss_index import _new_index

    with service.do_init(space) as opened:
        index = opened.index or _new_index(_DIMENSION)

        def put(vectors: FloatArray) -> None:
            for first, page in pages(vectors):
                index.add_with_ids(page, np.arange(first + 1, first + 1 + len(page)))

        assert index.metric_type == faiss.METRIC_INNER_PRODUCT
        yield Bare(put, lambda query: index.search(query[None, :], _TOP))


@contextmanager
def bare_pg(service: KBService, space: Space) -> Iterator[Bare]:
    from pgvector import HalfVector

    from server.knowledge_base.backends.pg_connections import Connections, url_of

    connections = Connections(url_of(service.context.settings), "zhiku", 10)
    table = f"zhiku.{space.collection}"
    with connections.lent() as connection:

        def put(vectors: FloatArray) -> None:
            connection.execute(
                f"CREATE TABLE {table} (id bigint PRIMARY KEY, embedding halfvec({_DIMENSION}) NOT NULL)"
            )
            with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(["int8", "halfvec"])
                for number, vector in enumerate(vectors, start=1):
                    copy.write_row((number, HalfVector(vector)))

        words = f"SELECT id FROM {table} ORDER BY embedding <#> %b LIMIT {_TOP}"
        yield Bare(put, lambda query: connection.execute(words, [HalfVector(query)]).fetchall())
    connections.close()


@contextmanager
def bare_chroma(service: KBService, space: Space) -> Iterator[Bare]:
    from server.knowledge_base.backends.chroma import ChromaKBService

    assert isinstance(service, ChromaKBService)
    with service._client() as client:
        collection = client.made(space)

        def put(vectors: FloatArray) -> None:
            for first, page in pages(vectors[:, :], 1000):
                collection.upsert([str(first + 1 + at) for at in range(len(page))], page)

        yield Bare(put, lambda query: collection.query([query], n_results=_TOP, include=[]))


@contextmanager
def bare_milvus(service: KBService, space: Space) -> Iterator[Bare]:
    from server.knowledge_base.backends.milvus import MilvusKBService

    assert isinstance(service, MilvusKBService)
    with service._client() as client:

        def put(vectors: FloatArray) -> None:
            service._create(client, space, _DIMENSION)
            for first, page in pages(vectors):
                rows = [{"id": number, "vector": vector} for number, vector in enumerate(page, start=first + 1)]
                client.upsert(space.collection, rows)

        options: dict[str, Any] = {"limit": _TOP, "search_params": {"params": {"ef": 100}}}
        yield Bare(put, lambda query: client.search(space.collection, [query], **options))


def pages(vectors: FloatArray, size: int = _PAGE) -> Iterator[tuple[int, FloatArray]]:
    for first in range(0, len(vectors), size):
        yield first, vectors[first : first + size]


BARE = {"faiss": bare_faiss, "pg": bare_pg, "chroma": bare_chroma, "milvus": bare_milvus}

if __name__ == "__main__":
    main()
