"""What it costs to make text searchable, and what searches feel of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from benchmarks.bench import KB, Bench, Row, percentile, spread
from benchmarks.process import Client, Server, Usage
from benchmarks.serving import timed
from configs.settings import EMBEDDED
from server.models.fake import FakeEmbedding

_MB = 1_000_000
_SMALL_FILES = 50


@dataclass(frozen=True)
class _Load:
    """What ingesting some files cost the server."""

    size: int
    chunks: int
    used: Usage
    embedding: float

    @property
    def cpu(self) -> float:
        """CPU seconds outside the embedding model."""
        return self.used.cpu - self.embedding

    @property
    def per_mb(self) -> float:
        """The same for a MB of text."""
        return self.cpu / self.size * _MB


def ingest(bench: Bench) -> list[Row]:
    """CPU, bytes written and growth, with an embedding model of small and known cost."""
    size = bench.size(_MB, 100_000)
    corpus = bench.corpus
    one = [_load(bench, [corpus.mixed(size, 1)]) for _ in range(bench.size(3, 1))]
    four = [_load(bench, [corpus.mixed(4 * size, 2)]) for _ in range(bench.size(2, 1))]
    parts = _load(bench, [corpus.mixed(size // _SMALL_FILES, number) for number in range(_SMALL_FILES)])
    english, chinese = (_load(bench, [corpus.text(language, size, 3)]) for language in ("en", "zh"))
    best, large = min(one, key=_cpu), min(four, key=_cpu)
    return [_cpu_row(best, one, english, chinese, parts), _bytes_row(best, large, parts), _growth_row(best, large)]


def _cpu(load: _Load) -> float:
    return load.cpu


def _cpu_row(best: _Load, one: Sequence[_Load], english: _Load, chinese: _Load, parts: _Load) -> Row:
    return Row(
        "ingest: CPU outside the embedding model, for a MB of text",
        "< 2 CPU s",
        f"{best.per_mb:.2f} CPU s",
        f"one file, half English and half Chinese, {best.chunks} chunks; runs "
        f"{', '.join(f'{load.per_mb:.2f}' for load in one)}; wall {best.used.wall:.1f} s; English alone "
        f"{english.per_mb:.2f}, Chinese {chinese.per_mb:.2f}; as {_SMALL_FILES} files {parts.per_mb:.2f}; the fake "
        f"embedding ({best.embedding:.2f} s) is taken off",
    )


def _bytes_row(best: _Load, large: _Load, parts: _Load) -> Row:
    return Row(
        "ingest: bytes written for a byte of text",
        "< 8 x",
        f"{best.used.written / best.size:.1f} x",
        f"write_bytes, what goes to the disk; four times the text {large.used.written / large.size:.1f} x; as "
        f"{_SMALL_FILES} files {parts.used.written / parts.size:.1f} x; write_chars, what is handed to the system, "
        f"{best.used.handed / best.size:.1f} x",
    )


def _growth_row(best: _Load, large: _Load) -> Row:
    return Row(
        "ingest: growth of the CPU time with four times the text",
        "<= 4.4 x",
        f"{large.cpu / best.cpu:.2f} x",
        f"{best.cpu:.2f} → {large.cpu:.2f} CPU s, wall {best.used.wall:.1f} → {large.used.wall:.1f} s",
    )


def _load(bench: Bench, texts: Sequence[str]) -> _Load:
    """Ingest texts into a new knowledge base of a new server, until searches find them by vector too."""
    with Server(bench.fresh("ingest")) as server:
        server.start()
        client = server.client()
        client.create("warm")  # so that imports and first uses are not counted
        client.upload("warm", {"a.txt": bench.corpus.mixed(3000, 0)})
        client.search("warm", "something")
        client.create(KB)
        before = server.usage()
        client.upload(KB, {f"{number}.txt": text for number, text in enumerate(texts)})
        client.search(KB, "something")
        used = server.usage() - before
        chunks = client.chunks(KB)
    size = sum(len(text.encode()) for text in texts)
    return _Load(size, chunks, used, _embedding(chunks))


def _embedding(chunks: int) -> float:
    """CPU seconds of the fake model for so many chunks."""
    texts = [f"{number} " + "x" * 350 for number in range(1000)]
    model = FakeEmbedding(dimension=384)
    started = time.thread_time()
    model.embed_passages(texts)
    return (time.thread_time() - started) / len(texts) * chunks


def uploads(bench: Bench) -> list[Row]:
    """Searches while files are ingested, both with the embedded model."""
    queries = bench.corpus.queries(bench.size(200, 30))
    with Server(bench.fresh("uploads")) as server:
        server.start()
        client = server.client()
        client.create(KB, EMBEDDED)
        client.upload(KB, {"a.txt": bench.corpus.mixed(bench.size(200_000, 20_000), 1)})
        timed(client, KB, queries[:20])
        quiet = timed(client, KB, queries)
        files = {f"{n}.txt": bench.corpus.mixed(bench.size(50_000, 20_000), 10 + n) for n in range(bench.size(60, 5))}
        before = client.chunks(KB)
        started = time.monotonic()
        client.upload(KB, files, wait=False)
        busy = _while_working(client, queries, bench.size(60, 10))
        speed = (client.chunks(KB) - before) / (time.monotonic() - started)
    return [
        Row(
            "p95 of a search while uploads run, embedded model",
            "< 3 x the quiet p95",
            f"{percentile(busy, 0.95) / percentile(quiet, 0.95):.1f} x",
            f"p50 / p95 quiet {spread(quiet)} ms, busy {spread(busy)} ms (max {max(busy) * 1e3:.0f}, {len(busy)} "
            f"searches); meanwhile {speed:.0f} chunks/s came in",
        )
    ]


def _while_working(client: Client, queries: Sequence[str], seconds: float) -> list[float]:
    """Times of searches until the jobs are done or the time is up."""
    found: list[float] = []
    deadline = time.monotonic() + seconds
    for query in cycle(queries):
        if time.monotonic() > deadline or (len(found) % 20 == 0 and not client.waiting_jobs()):
            return found
        found += timed(client, KB, [query])
    return found
