"""What large files cost from their bytes to searchable chunks: seconds, memory of the service and of the worker that
reads them, and how steadily progress comes.

python -m benchmarks.big_files [--rows N] [--pages N] [--megabytes N] [--seconds N]

Each file goes through reading, splitting, storing and embedding, with an embedding model that costs next to nothing,
in a fresh process. What is not done after `--seconds` is stopped; the row tells how far it was.
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
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil
from rich.console import Console

from configs import EmbeddingModelSettings, Settings
from server.db import files
from server.domain import StoredFile
from server.errors import LoadError
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.service import KBService
from server.runtime import Runtime

_MB = 1 << 20
_ENGLISH = "Line {n}: the harbour master notes the tide and closes the northern gate at dusk. "
_CHINESE = "第 {n} 行：港务长记录当天的潮位，并在黄昏之前关闭北侧的闸门。"
_COLUMNS = (
    "file", "MB", "chunks", "embedded", "ended after, s", "reports of progress",
    "longest time between two, s", "service grows by, MB", "worker at most, MB",
)  # fmt: skip


def main() -> None:
    """Make each file, ingest it in a fresh process, and print a row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.big_files", description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000, help="rows of the csv file")
    parser.add_argument("--pages", type=int, default=2_000, help="pages of the PDF")
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the text file")
    parser.add_argument("--seconds", type=float, default=3600, help="when to stop with a file")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        sys.stdout.write(" | ".join(measure(given.measure, given.seconds)))
        return
    say = Console(soft_wrap=True, markup=False, highlight=False).print
    say(f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}")
    with tempfile.TemporaryDirectory() as folder:
        for path in _files(Path(folder), given):
            command = [sys.executable, "-m", "benchmarks.big_files", "--measure", str(path)]
            command += ["--seconds", str(given.seconds)]
            found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            say(f"| {path.name} | {path.stat().st_size // _MB} | {found} |")
            path.unlink()


@dataclass
class _Course:
    """How the ingestion of a file went: seconds since its beginning."""

    chunks: int = 0
    embedded: int = 0
    ended: float = 0.0
    reports: int = 0
    gap: float = 0.0
    reason: str = ""


def measure(path: Path, seconds: float) -> list[str]:
    """Ingest one file; returns the cells of its row after the first two."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fake = EmbeddingModelSettings(name="fake", provider="fake", options={"dimension": 384})
        settings = Settings(
            data_dir=Path(folder), database_url=None, embedding_models=[fake], default_embed_model="fake",
            max_upload_mb=max(200, path.stat().st_size // _MB + 1),
        )  # fmt: skip
        runtime = Runtime.build(settings)
        service = KBServiceFactory.get_default("big")
        service.create_kb()
        small = path.with_suffix(".small")
        small.write_text("<p>so that the worker runs and everything is loaded")
        _ingest(service, _put(service, small, "a.html"), seconds)
        before = psutil.Process().memory_info().rss
        file = _put(service, path, path.name)
        with _Peaks() as peaks:
            course = _ingest(service, file, seconds)
        runtime.service.context.close()
    gc.collect()
    figures = (course.embedded, f"{course.ended:.0f}", course.reports, f"{course.gap:.1f}")
    memory = ((peaks.own - before) // _MB, peaks.worker // _MB)
    return [course.reason or str(course.chunks), *map(str, figures + memory)]


def _put(service: KBService, path: Path, name: str) -> StoredFile:
    context, kb = service.context, service.kb()
    with path.open("rb") as stream:
        stored = context.files.put(kb.id, stream)
    with context.db.write() as sql:
        return files.put(sql, kb.id, name, stored.storage, stored.sha256, stored.size)


def _ingest(service: KBService, file: StoredFile, seconds: float) -> _Course:
    course, began = _Course(), time.monotonic()
    last = began
    try:
        for step in service.add_doc(file):
            now = time.monotonic()
            course.gap, last = max(course.gap, now - last), now
            course.chunks, course.embedded, course.reports = step.total, step.finished, course.reports + 1
            if now - began > seconds:
                break
    except LoadError as error:
        course.reason = error.message
    course.ended = time.monotonic() - began
    return course


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
        while not self._done.wait(0.2):
            self.own = max(self.own, process.memory_info().rss)
            with suppress(psutil.NoSuchProcess):
                self.worker = max([self.worker, *(child.memory_info().rss for child in process.children())])


def _files(folder: Path, given: argparse.Namespace) -> Iterator[Path]:
    yield csv(folder / "rows.csv", given.rows)
    yield pdf(folder / "pages.pdf", given.pages)
    yield _text(folder / "words.txt", given.megabytes * _MB)


def csv(path: Path, rows: int) -> Path:
    """A table of ships."""
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


def pdf(path: Path, pages: int) -> Path:
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
