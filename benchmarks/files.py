"""How many files of a collection are read right: a table per format, and each miss with its reason.

python -m benchmarks.files MANIFEST [--seconds N] [--only TEXT]

A manifest is a file of JSON lines next to the files. Each line has `path`, `format`, `expect` (`text`, `error` or
`empty-ok`), `must_contain`, `must_not_contain`, and may have `must_contain_nfkc`, `must_contain_ordered` (pairs),
`page_checks`, `ocr_text`, `may_reject` and `may_accept`. Texts are compared after NFKC, without white space.
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from server.domain import LoadedDocument
from server.errors import LoadError
from server.ingest.loaders.ocr import ocr_installed
from server.ingest.sandbox import Limits, Sandbox
from server.ingest.splitters.base import canonical_text

Row = dict[str, Any]
_SLOW = 5.0


@dataclass(frozen=True)
class Result:
    """What became of one row; `miss` is empty when it is right."""

    row: Row
    miss: str
    seconds: float
    read: bool


def main() -> None:
    """Read every file of the manifest and print the score."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.files", description=__doc__)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--seconds", type=float, default=180, help="wall time that a file may take")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose path holds this text")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.manifest.read_text(encoding="utf-8").splitlines() if line.strip()]
    with Sandbox(workers=1, limits=replace(Limits(), wall_seconds=given.seconds)) as sandbox:
        results = [
            check(sandbox, path, row) for path, row in _files(given.manifest.parent, rows) if given.only in row["path"]
        ]
    _print(results)


def _files(folder: Path, rows: list[Row]) -> Iterator[tuple[Path, Row]]:
    """The rows with their files; a folder that is missing is taken from the tar of its name."""
    with tempfile.TemporaryDirectory() as scratch:
        for row in rows:
            path = folder / row["path"]
            packed = path.parent.with_suffix(".tar")
            if not path.exists() and packed.exists():
                target = Path(scratch) / packed.stem
                if not target.exists():
                    with tarfile.open(packed) as tar:
                        tar.extractall(target, filter="data")
                path = next((found for found in target.rglob("*") if _same(found.name, path.name)), path)
            yield path, row


def _same(one: str, other: str) -> bool:
    return unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other)


def check(sandbox: Sandbox, path: Path, row: Row) -> Result:
    """Load one file as the service does and judge it."""
    started = time.monotonic()
    outcome: LoadedDocument | LoadError
    try:
        outcome = sandbox.load(path, path.name)
    except LoadError as error:
        outcome = error
    return Result(row, judge(outcome, row), time.monotonic() - started, isinstance(outcome, LoadedDocument))


def judge(outcome: LoadedDocument | LoadError, row: Row) -> str:
    """Why the outcome is not what the row expects; empty when it is."""
    if isinstance(outcome, LoadedDocument):
        if row["expect"] == "error" and not row.get("may_accept"):
            return f"read without an error: {canonical_text(outcome)[:80]!r}"
        return "; ".join(_faults(outcome, row))
    allowed = row["expect"] == "error" or row.get("may_reject")
    if row["expect"] == "empty-ok":
        allowed = not (ocr_installed() and row.get("ocr_text"))
    return "" if allowed else f"{type(outcome).__name__}: {outcome.message}"


def _faults(document: LoadedDocument, row: Row) -> Iterator[str]:
    text = _folded(canonical_text(document))
    wanted = [*row["must_contain"], *row.get("must_contain_nfkc", [])]
    yield from (f"lacks {part!r}" for part in wanted if _folded(part) not in text)
    yield from (f"holds {part!r}" for part in row["must_not_contain"] if _folded(part) in text)
    for before, after in row.get("must_contain_ordered", []):
        if not -1 < text.find(_folded(before)) < text.find(_folded(after)):
            yield f"{before!r} is not before {after!r}"
    for place in row.get("page_checks", []):
        on_page = _folded("\n".join(block.text for block in document.blocks if block.page == place["page"]))
        if _folded(place["text"]) not in on_page:
            yield f"{place['text']!r} is not on page {place['page']}"
    if ocr_installed():
        yield from (f"OCR lacks {part!r}" for part in row.get("ocr_text", []) if _folded(part) not in text)


def _folded(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())


def _print(results: list[Result]) -> None:
    table = Table("format", "right", "rows", "read", "seconds", "misses and slow files")
    totals = Counter(result.row["format"] for result in results)
    for kind in [*sorted(totals), "all"]:
        these = [result for result in results if kind in ("all", result.row["format"])]
        right = sum(not result.miss for result in these)
        seconds = sum(result.seconds for result in these)
        read = str(sum(result.read for result in these))
        notes = "" if kind == "all" else "\n".join(_note(r) for r in these if r.miss or r.seconds > _SLOW)
        table.add_row(kind, str(right), str(len(these)), read, f"{seconds:.1f}", notes)
    Console(width=200, markup=False).print(table)


def _note(result: Result) -> str:
    return f"{Path(result.row['path']).name} ({result.seconds:.1f} s): {result.miss or 'slow'}"


if __name__ == "__main__":
    main()
