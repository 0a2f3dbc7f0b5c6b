"""What the size of chunks, their overlap and headings in the embedded text do to retrieval.

python -m benchmarks.chunking SET… [--queries N]

A set is a folder with `queries.jsonl` (`text`, `answers`, `metadata.evidence`: sentences as they stand in a document)
and documents: files in `docs/`, or `docs.jsonl`, or passages of `corpus.jsonl` that are joined by their title. All ways
of splitting get the same room: hits count in their order until so many tokens are used.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from configs import Settings
from server.db import files
from server.domain import Chunk, LoadedDocument
from server.ingest.loaders.factory import load_document
from server.ingest.splitters.factory import splitter
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.service import KBService
from server.models.rulers import Ruler
from server.runtime import Runtime

ROOM = (500, 1500)
"""Tokens of hits that are looked at."""


@dataclass(frozen=True)
class Way:
    """One way of splitting; sizes are tokens."""

    size: int
    overlap: int
    headings: bool = False
    splitter: str = "ChineseRecursiveTextSplitter"


WAYS = (
    Way(100, 0), Way(200, 0), Way(300, 0), Way(450, 0), Way(200, 30), Way(300, 50), Way(300, 0, headings=True),
    Way(300, 0, splitter="MarkdownHeaderTextSplitter"), Way(100, 0, splitter="SentenceTextSplitter"),
)  # fmt: skip


def main() -> None:
    """Print a table: the share of questions whose evidence is in the hits."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chunking", description=__doc__)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("--queries", type=int, default=150)
    parser.add_argument("--data-dir", type=Path, help="where the embedding model may lie already")
    given = parser.parse_args()
    table = Table(
        "set", "splitter", "size", "overlap", "headings", "chunks", *(f"evidence in {n} tokens" for n in ROOM)
    )
    with tempfile.TemporaryDirectory() as folder:
        runtime = Runtime.build(Settings(data_dir=given.data_dir or Path(folder), database_url=None))
        for place in given.sets:
            queries = _queries(place, given.queries)
            documents = list(_documents(place, queries))
            for way in WAYS:
                table.add_row(place.name, way.splitter, str(way.size), str(way.overlap), "yes" if way.headings else "",
                              *measure(documents, queries, way))  # fmt: skip
        runtime.service.context.close()
    Console(width=150).print(table)


def measure(documents: list[LoadedDocument], queries: list[dict[str, Any]], way: Way) -> list[str]:
    """Number of chunks, then the share of questions that are served, by room."""
    service = KBServiceFactory.get_default(f"chunking {way}")
    ruler = service.context.embeddings.get(service.embed_model).ruler
    cutter = splitter(way.splitter, way.size, way.overlap, ruler)
    chunks = [_with_headings(chunk) if way.headings else chunk for one in documents for chunk in cutter.split(one)]
    service.create_kb()
    _add(service, chunks)
    served = [_served(service, ruler, query) for query in queries]
    service.drop_kb()
    return [str(len(chunks)), *(f"{sum(column) / len(served):.3f}" for column in zip(*served, strict=True))]


def _add(service: KBService, chunks: list[Chunk]) -> None:
    kb = service.kb()
    stored = service.context.files.put(kb.id, BytesIO(b"x"))
    with service.context.db.write() as sql:
        file = files.put(sql, kb.id, "all.txt", stored.storage, stored.sha256, stored.size)
    for _ in service.add_doc(file, [replace(chunk, start=None, end=None) for chunk in chunks]):
        pass
    service.catch_up()


def _served(service: KBService, ruler: Ruler, query: dict[str, Any]) -> list[bool]:
    wanted = [_folded(text) for text in query["metadata"].get("evidence") or query["answers"]]
    hits = service.search_docs(query["text"], 40, 4.0)
    found = []
    for room in ROOM:
        used, seen = 0, ""
        for hit in hits:
            used += ruler.measure(hit.text)
            if used > room:
                break
            seen += f"\n{_folded(hit.text)}"
        found.append(any(text in seen for text in wanted))
    return found


def _with_headings(chunk: Chunk) -> Chunk:
    return replace(chunk, text=f"{' > '.join(chunk.headings)}\n{chunk.text}") if chunk.headings else chunk


def _queries(place: Path, count: int) -> list[dict[str, Any]]:
    rows = [row for row in _rows(place / "queries.jsonl") if row.get("answerable", True) and row["answers"]]
    step = max(1, len(rows) // count)
    return rows[::step][:count]


def _documents(place: Path, queries: list[dict[str, Any]]) -> Iterator[LoadedDocument]:
    if (place / "docs").is_dir():
        for path in sorted((place / "docs").iterdir()):
            yield load_document(path.read_bytes(), path.name)
    elif (place / "docs.jsonl").is_file():
        asked = {query["metadata"].get("doc") for query in queries}
        for row in _rows(place / "docs.jsonl"):
            if row["_id"] in asked:
                yield load_document(row["text"].encode(), "a.txt")
    else:
        titles = defaultdict(list)
        for row in _rows(place / "corpus.jsonl"):
            titles[row["title"]].append(row["text"])
        for texts in titles.values():
            yield load_document("\n\n".join(texts).encode(), "a.txt")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def _folded(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


if __name__ == "__main__":
    main()
