"""Measures what the project promises, and prints one table.

python -m benchmarks [--quick] [--data DIR] [NAME …]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

# The libraries read it when they are imported, which the groups below do.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.console import Console
from rich.table import Table

from benchmarks import ingest, serving, streams, vectors
from benchmarks.bench import Bench, Row, longest_pause

GROUPS: dict[str, Callable[[Bench], list[Row]]] = {
    "startup": serving.startup,
    "memory": serving.memory,
    "ingest": ingest.ingest,
    "search": serving.search,
    "embedding": vectors.embedding,
    "recall": vectors.recall,
    "first": streams.first,
    "streams": streams.streams,
    "uploads": ingest.uploads,
    "parsing": ingest.parsing,
}


def main() -> None:
    """Run the chosen groups."""
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers must not outlive a run that is stopped
    errors = Console(stderr=True)
    folder = given.data or Path(tempfile.mkdtemp(prefix="zhiku-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder.resolve(), given.quick, errors.print)
    try:
        rows = _run(bench, given.names or list(GROUPS), errors)
    finally:
        _clear(folder, keep=given.data is not None)
    Console(width=None if sys.stdout.isatty() else 160).print(_table(rows, quick=given.quick))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"rows to measure: {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that everything runs, no figures")
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep the knowledge bases here for the next run")
    given = parser.parse_args()
    if unknown := set(given.names) - GROUPS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(GROUPS)}")
    return given


def _run(bench: Bench, names: Sequence[str], errors: Console) -> list[Row]:
    rows = []
    for name in names:
        errors.print(f"{name} …")
        started = time.monotonic()
        rows += GROUPS[name](bench)
        errors.print(f"{name}: {time.monotonic() - started:.0f} s")
    return rows


def _clear(folder: Path, *, keep: bool) -> None:
    """Delete what is of no use to another run."""
    kept = ("chunks-", "models") if keep else ()
    for path in folder.iterdir():
        if path.is_dir() and not path.name.startswith(kept):
            shutil.rmtree(path, ignore_errors=True)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)


def _table(rows: Sequence[Row], *, quick: bool) -> Table:
    table = Table("what", "aim", "measured", "numbers", caption=_caption(quick=quick), show_lines=True)
    for row in rows:
        table.add_row(row.what, row.aim, row.measured, row.numbers)
    return table


def _caption(*, quick: bool) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}"
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    load = f"load {os.getloadavg()[0]:.1f}, a busy thread pauses for up to {longest_pause() * 1e3:.0f} ms"
    sizes = "; --quick: sizes too small to mean anything" if quick else ""
    return f"{machine}; Python {platform.python_version()}; {now}; {load}{sizes}"


if __name__ == "__main__":
    main()
