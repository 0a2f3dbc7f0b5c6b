"""What it costs to make text searchable, and what searches feel of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from benchmarks.bench import KB, Bench, Row, percentile, spread
from benchmarks.big_files import csv, pdf
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
    size, corpus = bench.size(_MB, 100_000), bench.corpus
    with Server(bench.fresh("ingest")) as server:
        server.start()
        load = _Loader(bench, server)
        one = [load([corpus.mixed(size, 10 + at)]) for at in range(bench.size(3, 1))]
        four = [load([corpus.mixed(4 * size, 20 + at)]) for at in range(bench.size(2, 1))]
        parts = load([corpus.mixed(size // _SMALL_FILES, 100 + number) for number in range(_SMALL_FILES)])
        english, chinese = load([corpus.text("en", size, 3)]), load([corpus.text("zh", size, 3)])
    best, large = min(one, key=_cpu), min(four, key=_cpu)
    return [
        _cpu_row(best, one, english, chinese, parts),
        _bytes_row(bench, best, large, parts),
        _growth_row(best, large),
    ]


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


def _bytes_row(bench: Bench, best: _Load, large: _Load, parts: _Load) -> Row:
    return Row(
        "ingest: bytes written for a byte of text",
        "< 8 x",
        f"{best.used.written / best.size:.1f} x",
        f"write_bytes, what goes to the disk; four times the text {large.used.written / large.size:.1f} x; as "
        f"{_SMALL_FILES} files {parts.used.written / parts.size:.1f} x; write_chars, what is handed to the system, "
        f"{best.used.handed / best.size:.1f} x; while a knowledge base grew to {bench.small} chunks "
        f"{_growing(bench, bench.small):.1f} x, to {bench.large} {_growing(bench, bench.large):.1f} x",
    )


def _growth_row(best: _Load, large: _Load) -> Row:
    return Row(
        "ingest: growth of the CPU time with four times the text",
        "<= 4.4 x",
        f"{large.cpu / best.cpu:.2f} x",
        f"{best.cpu:.2f} → {large.cpu:.2f} CPU s, wall {best.used.wall:.1f} → {large.used.wall:.1f} s",
    )


def _growing(bench: Bench, chunks: int) -> float:
    """Bytes written for a byte of text while one of the larger knowledge bases was built, many files at a time."""
    facts = bench.facts(chunks)
    return facts["written"] / facts["bytes"]


class _Loader:
    """Ingests into one new knowledge base after the other of a server that has done so before."""

    def __init__(self, bench: Bench, server: Server) -> None:
        self._server = server
        self._client = server.client()
        self._count = 0
        self([bench.corpus.mixed(3000, 0)])  # so that imports and first uses are not counted

    def __call__(self, texts: Sequence[str]) -> _Load:
        """Ingest texts, until searches find them by vector too."""
        self._count += 1
        name, client = f"{KB}{self._count}", self._client
        client.create(name)
        before = self._server.usage()
        client.upload(name, {f"{number}.txt": text for number, text in enumerate(texts)})
        client.search(name, "something")
        used = self._server.usage() - before
        chunks = client.chunks(name)
        return _Load(sum(len(text.encode()) for text in texts), chunks, used, _embedding(chunks))


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
    with Server(bench.with_model(bench.fresh("uploads"))) as server:
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


def parsing(bench: Bench) -> list[Row]:
    """Searches while large files are read, split and stored; the embedding model costs next to nothing."""
    queries = bench.corpus.queries(bench.size(200, 30))
    folder = bench.fresh("parsing")
    large = [pdf(folder / f"{n}.pdf", bench.size(2000, 20)) for n in range(2)]
    large += [csv(folder / f"{n}.csv", bench.size(100_000, 1000)) for n in range(2)]
    with Server(folder) as server:
        server.start()
        client = server.client()
        client.create(KB)
        client.upload(KB, {"a.txt": bench.corpus.mixed(bench.size(1_000_000, 20_000), 1)})
        timed(client, KB, queries[:40])
        quiet = timed(client, KB, queries)
        client.create("large")
        started = time.monotonic()
        client.upload("large", {path.name: path for path in large}, wait=False)
        busy = _while_working(client, queries, bench.size(240, 10))
        seconds = time.monotonic() - started
    return [
        Row(
            "p95 of a search while large files are read, split and stored",
            "< 3 x the quiet p95",
            f"{percentile(busy, 0.95) / percentile(quiet, 0.95):.1f} x",
            f"two PDFs and two csv files, {sum(path.stat().st_size for path in large) / _MB:.0f} MB; p50 / p95 quiet "
            f"{spread(quiet)} ms, busy {spread(busy)} ms (max {max(busy) * 1e3:.0f}, {len(busy)} "
            f"searches in {seconds:.0f} s)",
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
