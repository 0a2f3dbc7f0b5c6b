"""The same work on SQLite and on PostgreSQL: `python -m benchmarks.databases [--quick]`, after `make stores-test`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.bench import KB, Bench, spread
from benchmarks.process import Server
from benchmarks.serving import timed
from tests import engines

_ROUNDS = 3
_SMALL_FILES = 50


def measured(bench: Bench, database: str) -> list[str]:
    """CPU seconds of the service and of the database while files come in, and times of searches."""
    mb, small = bench.size(1_000_000, 50_000), bench.size(20_000, 2_000)
    texts = {f"{n}.txt": bench.corpus.mixed(mb, n) for n in range(bench.size(4, 1))}
    parts = {f"small{n}.txt": bench.corpus.mixed(small, 100 + n) for n in range(_SMALL_FILES)}
    queries = bench.corpus.queries(bench.size(400, 30))
    settings = {"database_url": engines.postgres_url()} if database == "PostgreSQL" else {}
    with Server(bench.fresh(database), **settings) as server:
        server.start()
        client = server.client()
        client.create(KB)
        client.upload(KB, {"first.txt": bench.corpus.mixed(3000, 999)})
        row = [database]
        for files in (texts, parts):
            before, beside = server.usage(), _cpu_of_database(database)
            client.upload(KB, files)
            client.search(KB, "something")
            used, beside = server.usage() - before, _cpu_of_database(database) - beside
            row.append(f"{used.cpu:.1f} + {beside:.1f} CPU s, {used.wall:.1f} s")
        timed(client, KB, queries[:40])
        rounds = [timed(client, KB, queries) for _ in range(_ROUNDS)]
        best = [min(times) for times in zip(*rounds, strict=True)]
        return [*row, f"{spread(best)} ms", ", ".join(spread(times) for times in rounds), str(client.chunks(KB))]


def _cpu_of_database(database: str) -> float:
    """CPU seconds of the server's processes, those that have ended among them; SQLite's are the service's own."""
    if database != "PostgreSQL":
        return 0.0
    main = psutil.Process(engines.postgres().pid)
    times = [process.cpu_times() for process in (main, *main.children(recursive=True))]
    ended = main.cpu_times()
    return sum(one.user + one.system for one in times) + ended.children_user + ended.children_system


def main() -> None:
    """Print one line for each database."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.databases", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that everything runs, no figures")
    given = parser.parse_args()
    table = Table(
        "database", "large files: service + database", "50 small files", "search p50 / p95", "rounds", "chunks"
    )
    with tempfile.TemporaryDirectory(prefix="zhiku-bench-") as folder:
        bench = Bench(Path(folder), given.quick, Console(stderr=True).print)
        try:
            for database in ("SQLite", "PostgreSQL"):
                table.add_row(*measured(bench, database))
        finally:
            engines.remove_all()
    Console(width=None if sys.stdout.isatty() else 200).print(table)


if __name__ == "__main__":
    main()
