"""What large files cost: seconds, and memory of the service and of the worker that reads them.

python -m benchmarks.big_files [--rows N] [--pages N] [--megabytes N]
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from server.errors import LoadError
from server.ingest.sandbox import Sandbox

_MB = 1 << 20
_ENGLISH = "Line {n}: the harbour master notes the tide and closes the northern gate at dusk. "
_CHINESE = "第 {n} 行：港务长记录当天的潮位，并在黄昏之前关闭北侧的闸门。"


def main() -> None:
    """Make each file, read it in a fresh process, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.big_files", description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000, help="rows of the csv file")
    parser.add_argument("--pages", type=int, default=2_000, help="pages of the PDF")
    parser.add_argument("--megabytes", type=int, default=300, help="size of the text file")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        sys.stdout.write("\t".join(measure(given.measure)))
        return
    table = Table("file", "MB", "blocks", "seconds", "service grows by, MB", "worker at most, MB")
    with tempfile.TemporaryDirectory() as folder:
        for path in _files(Path(folder), given):
            command = [sys.executable, "-m", "benchmarks.big_files", "--measure", str(path)]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            table.add_row(path.name, str(path.stat().st_size // _MB), *found.split("\t"))
            path.unlink()
    Console(width=120).print(table)


def measure(path: Path) -> list[str]:
    """Read one file; returns blocks, seconds, growth of this process, and peak of the worker."""
    with Sandbox(workers=1) as sandbox:
        small = path.with_suffix(".small")
        small.write_text("<p>so that the worker runs")
        sandbox.load(small, "a.html")
        before = psutil.Process().memory_info().rss
        began = time.monotonic()
        with _Peaks() as peaks:
            try:
                blocks = str(len(sandbox.load(path, path.name).blocks))
            except LoadError as error:
                blocks = error.message
        seconds = time.monotonic() - began
    gc.collect()
    return [blocks, f"{seconds:.1f}", str((peaks.own - before) // _MB), str(peaks.worker // _MB)]


class _Peaks:
    """The largest memory of this process and of its child while the block runs."""

    def __init__(self) -> None:
        self.own = self.worker = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> _Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        process = psutil.Process()
        children = process.children()
        while not self._done.wait(0.05):
            self.own = max(self.own, process.memory_info().rss)
            self.worker = max([self.worker, *(child.memory_info().rss for child in children if child.is_running())])


def _files(folder: Path, given: argparse.Namespace) -> Iterator[Path]:
    yield _csv(folder / "rows.csv", given.rows)
    yield _pdf(folder / "pages.pdf", given.pages)
    yield _text(folder / "words.txt", given.megabytes * _MB)


def _csv(path: Path, rows: int) -> Path:
    with path.open("w", encoding="utf-8") as out:
        out.write("编号,船名,吨位,备注,日期\n")
        out.writelines(f'{n},Tern {n},{n * 7 % 9973},"靠泊, {n} 号码头",2026-03-{n % 28 + 1:02}\n' for n in range(rows))
    return path


def _text(path: Path, size: int) -> Path:
    with path.open("w", encoding="utf-8") as out:
        for paragraph in count():
            if paragraph % 1000 == 0 and out.tell() >= size:
                break
            line = _CHINESE if paragraph % 2 else _ENGLISH
            out.write("\n".join(line.format(n=paragraph * 8 + n) for n in range(8)) + "\n\n")
    return path


def _pdf(path: Path, pages: int) -> Path:
    """A PDF of text pages, written object by object."""
    offsets: list[int] = []

    with path.open("wb") as out:

        def add(body: bytes) -> None:
            offsets.append(out.tell())
            out.write(b"%d 0 obj\n%s\nendobj\n" % (len(offsets), body))

        out.write(b"%PDF-1.4\n")
        add(b"<< /Type /Catalog /Pages 2 0 R >>")
        kids = b" ".join(b"%d 0 R" % (4 + 2 * index) for index in range(pages))
        add(b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, pages))
        add(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
        for page in range(pages):
            lines = b" T* ".join(b"(Page %d line %d: the gate is closed at dusk.) Tj" % (page, n) for n in range(45))
            stream = b"BT /F1 10 Tf 14 TL 50 780 Td %s ET" % lines
            add(
                b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R "
                b"/Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * page)
            )
            add(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
        start = out.tell()
        out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(offsets) + 1))
        out.writelines(b"%010d 00000 n \n" % offset for offset in offsets)
        out.write(b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(offsets) + 1, start))
    return path


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
