"""The embedded model on all cores, and what the store's exact search over float16 loses."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import Bench, Row, percentile, spread
from server.knowledge_base.backends.faiss_index import FaissIndex
from server.models.e5 import E5Model
from server.models.pool import LocalEmbedding

Floats = NDArray[np.float32]
_DIMENSION = 384
_TOP = 10


def embedding(bench: Bench) -> list[Row]:
    """The pool against the bare engine, and a question's wait behind a batch."""
    engine = E5Model(bench.models.parent)
    threads = os.cpu_count() or 1
    pool = LocalEmbedding(engine, threads)
    passages = [_passage(bench, number) for number in range(bench.size(64, 16))]
    queries = bench.corpus.queries(bench.size(100, 20))
    engine.embed_passage(passages[0])
    try:
        return [_throughput(bench, engine, pool, passages, threads), _wait(pool, passages, queries, threads)]
    finally:
        pool.close()


def _passage(bench: Bench, number: int) -> str:
    return bench.corpus.text("zh", 3 * 350, number) if number % 2 else bench.corpus.text("en", 350, number)


def _throughput(bench: Bench, engine: E5Model, pool: LocalEmbedding, passages: Sequence[str], threads: int) -> Row:
    """Both take turns, so that other work on the machine meets both alike."""
    bare, pooled = _Speed(), _Speed()
    with ThreadPoolExecutor(threads) as executor:
        for _ in range(bench.size(6, 2)):
            bare.measure(len(passages), lambda: list(executor.map(engine.embed_passage, passages)))
            pooled.measure(len(passages), lambda: pool.embed_passages(passages))
    ratio = percentile([a / b for a, b in zip(pooled.wall, bare.wall, strict=True)], 0.5)
    return Row(
        f"embedding passages: the pool against the bare engine, {threads} threads each",
        ">= 90 %",
        f"{ratio:.0%}",
        f"passages/s {max(pooled.wall):.1f} against {max(bare.wall):.1f} (best of {len(bare.wall)} rounds of "
        f"{len(passages)}); CPU ms a passage {min(pooled.cpu) * 1e3:.1f} against {min(bare.cpu) * 1e3:.1f}",
    )


class _Speed:
    """Passages per second, and CPU seconds per passage, round by round."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def measure(self, count: int, call: Callable[[], object]) -> None:
        """Time one round."""
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        self.wall.append(count / (time.perf_counter() - wall))
        self.cpu.append((time.process_time() - cpu) / count)


def _wait(pool: LocalEmbedding, passages: Sequence[str], queries: Sequence[str], threads: int) -> Row:
    done, finished = threading.Event(), [0]

    def keep_busy() -> None:
        while not done.is_set():
            pool.embed_passages(passages)
            finished[0] += len(passages)

    alone = _times(pool.embed_query, queries)
    worker = threading.Thread(target=keep_busy)
    started = time.perf_counter()
    worker.start()
    try:
        busy = _times(pool.embed_query, queries)
    finally:
        done.set()
        worker.join()
    passage = (time.perf_counter() - started) * threads / finished[0]
    waited = [seconds - percentile(alone, 0.5) for seconds in busy]
    return Row(
        "embedding a question while a batch runs: how much longer, p50 / p95",
        "about one passage",
        f"{spread(waited, 1 / passage)} passages",
        f"p50 / p95 alone {spread(alone)} ms, busy {spread(busy)} ms (max {max(busy) * 1e3:.0f}); a passage meanwhile "
        f"took {passage * 1e3:.0f} ms on one of {threads} threads",
    )


def _times(call: Callable[[str], object], texts: Sequence[str]) -> list[float]:
    found = []
    for text in texts:
        started = time.perf_counter()
        call(text)
        found.append(time.perf_counter() - started)
    return found


@dataclass(frozen=True)
class _Kind:
    """Vectors to search in and questions to ask."""

    name: str
    vectors: Floats
    queries: Floats


def recall(bench: Bench) -> list[Row]:
    """The store's first ten against the first ten of exact search over float32."""
    kinds = _kinds(bench.large, bench.size(200, 50))
    results = [_compare(bench, kind) for kind in kinds]
    numbers = "; ".join(f"{kind.name} {found:.4f}" for kind, (found, _) in zip(kinds, results, strict=True))
    times = [seconds for _, part in results for seconds in part]
    return [
        Row(
            f"dense recall@10 of the FAISS store, {bench.large} vectors",
            ">= 0.99",
            f"{min(found for found, _ in results):.4f}",
            f"{numbers}; p50 / p95 of a search in process {spread(times)} ms",
        )
    ]


def _kinds(count: int, questions: int) -> list[_Kind]:
    """Independent directions, where neighbours hardly differ and rounding shows most; and directions in crowds
    of about a hundred, as passages on one subject are."""
    rng = np.random.default_rng(5)
    free = _unit(rng.normal(size=(count + questions, _DIMENSION)))
    centres = rng.normal(size=(max(1, count // 100), _DIMENSION))
    chosen = rng.integers(0, len(centres), size=count + questions)
    crowded = _unit(centres[chosen] + 0.7 * rng.normal(size=(count + questions, _DIMENSION)))
    return [_Kind("independent", free[:count], free[count:]), _Kind("crowded", crowded[:count], crowded[count:])]


def _compare(bench: Bench, kind: _Kind) -> tuple[float, list[float]]:
    index = FaissIndex(bench.data / "recall.faiss")
    for at in range(0, len(kind.vectors), 2000):
        index.put(range(at + 1, at + 1 + len(kind.vectors[at : at + 2000])), kind.vectors[at : at + 2000])
    times, right = [], 0
    for query in kind.queries:
        started = time.perf_counter()
        found = index.search(query, _TOP)
        times.append(time.perf_counter() - started)
        exact = np.argsort(-(kind.vectors @ query))[:_TOP] + 1
        right += len(set(found) & set(exact.tolist()))
    return right / (_TOP * len(kind.queries)), times


def _unit(vectors: NDArray[np.float64]) -> Floats:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)
