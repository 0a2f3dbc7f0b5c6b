"""What the size of chunks, their overlap and the headings above them do to retrieval.

python -m benchmarks.chunking SET… [--tokens N] [--queries N]

A set is a folder with `queries.jsonl` (`_id`, `text`, `answers`, `metadata`), `corpus.jsonl` (passages: `_id`, `title`,
`text`), `qrels.tsv` (question, passage) and documents: files in `docs/`, or `docs.jsonl`, or else the passages joined
by their titles. Documents that questions are about are taken until there are `--tokens` of them, then others.

A question is served when a hit holds its evidence: the sentences that the set names, or an answer with the words
around it as they stand in its passage. All ways get the same room: hits count in their order until so many tokens are
used.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from rich.console import Console

from configs import Settings
from server.db import files
from server.domain import Chunk, LoadedDocument
from server.errors import EmptyDocument
from server.ingest.loaders.factory import load_document
from server.ingest.splitters.base import canonical_text
from server.ingest.splitters.factory import DEFAULT_SPLITTER, splitter
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.service import KBService
from server.models.rulers import Ruler
from server.runtime import Runtime

ROOM = (500, 1500)
"""Tokens of hits that are looked at."""
_HITS = 60
_AROUND = 12
"""Characters on either side of an answer that tell its place from others where the same words stand."""


@dataclass(frozen=True)
class Way:
    """One way of splitting; sizes are tokens."""

    size: int
    overlap: int
    headings: bool = False
    splitter: str = DEFAULT_SPLITTER


@dataclass(frozen=True)
class Question:
    """A question, and folded texts one of which a hit must hold."""

    text: str
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """The part of a set that is measured."""

    name: str
    documents: list[LoadedDocument]
    questions: list[Question]


WAYS = (
    Way(250, 50), Way(250, 50, headings=True), Way(100, 0), Way(200, 0), Way(250, 0), Way(300, 0), Way(450, 0),
    Way(200, 30), Way(250, 30), Way(300, 50), Way(250, 50, splitter="MarkdownHeaderTextSplitter"),
    Way(100, 0, splitter="SentenceTextSplitter"),
)  # fmt: skip


def main() -> None:
    """Print the share of questions whose evidence is in the hits: for each set and way, then the means of the sets."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chunking", description=__doc__)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=40_000, help="size of the corpus that is embedded for each way")
    parser.add_argument("--queries", type=int, default=300)
    given = parser.parse_args()
    say = Console(soft_wrap=True, markup=False, highlight=False).print
    shares: dict[Way, list[list[float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        runtime = Runtime.build(Settings(data_dir=Path(folder), database_url=None))
        say(_row("set", "splitter", "size", "overlap", "headings", "chunks", *(f"in {n} tokens" for n in ROOM)))
        say(_row(*["---"] * (6 + len(ROOM))))
        for place in given.sets:
            sample = _sample(place, given.tokens, given.queries)
            for way in WAYS:
                chunks, found = measure(sample, way)
                shares[way].append(found)
                say(_way_row(f"{sample.name} ({len(sample.questions)} questions)", way, str(chunks), found))
        for way, rows in shares.items():
            say(_way_row("mean", way, "", [sum(column) / len(rows) for column in zip(*rows, strict=True)]))
        runtime.service.context.close()


def measure(sample: Sample, way: Way) -> tuple[int, list[float]]:
    """Number of chunks, and the share of questions that are served in each room."""
    service = KBServiceFactory.get_default("chunking")
    ruler = service.context.embeddings.get(service.embed_model).ruler
    cutter = splitter(way.splitter, way.size, way.overlap, ruler)
    chunks = [_prepared(chunk, way) for one in sample.documents for chunk in cutter.split(one)]
    service.create_kb()
    _add(service, chunks)
    served = [_served(service, ruler, question) for question in sample.questions]
    service.drop_kb()
    return len(chunks), [sum(column) / len(served) for column in zip(*served, strict=True)]


def _prepared(chunk: Chunk, way: Way) -> Chunk:
    """The chunk as a client would supply it, with the headings above it in front of its text if the way asks for it."""
    above = " > ".join(title for title in chunk.headings if title not in chunk.text) if way.headings else ""
    return replace(chunk, text=f"{above}\n{chunk.text}" if above else chunk.text, start=None, end=None)


def _add(service: KBService, chunks: Sequence[Chunk]) -> None:
    kb = service.kb()
    stored = service.context.files.put(kb.id, BytesIO(b"x"))
    with service.context.db.write() as sql:
        file = files.put(sql, kb.id, "all.txt", stored.storage, stored.sha256, stored.size)
    for _ in service.add_doc(file, chunks):
        pass
    service.catch_up()


def _served(service: KBService, ruler: Ruler, question: Question) -> list[bool]:
    hits = service.search_docs(question.text, _HITS, 4.0)
    found = []
    for room in ROOM:
        used, seen = 0, ""
        for hit in hits:
            used += ruler.measure(hit.text)
            if used > room:
                break
            seen += f"\n{_folded(hit.text)}"
        found.append(any(text in seen for text in question.evidence))
    return found


# reading a set


def _sample(place: Path, tokens: int, queries: int) -> Sample:
    gold = _gold(place)
    asked = defaultdict(list)
    for row in _rows(place / "queries.jsonl"):
        if row.get("answerable", True) and row["answers"]:
            asked[_document_of(row, gold[row["_id"]])].append(_question(row, gold[row["_id"]]))
    chosen = _chosen(dict(_documents(place)), asked, tokens)
    questions = [question for name, these in asked.items() if name in chosen for question in these]
    step = max(1, len(questions) // queries)
    return Sample(place.name, list(chosen.values()), questions[::step][:queries])


def _chosen(texts: Mapping[str, bytes], asked: Mapping[str, Any], tokens: int) -> dict[str, LoadedDocument]:
    service = KBServiceFactory.get_default("chunking")
    ruler = service.context.embeddings.get(service.embed_model).ruler
    chosen, used = {}, 0
    for name in sorted(texts, key=lambda name: name not in asked):
        if used > tokens:
            break
        try:
            chosen[name] = load_document(texts[name], name if "." in name[-5:] else "a.txt")
        except EmptyDocument:
            continue
        used += ruler.measure(canonical_text(chosen[name]))
    return chosen


def _documents(place: Path) -> Iterator[tuple[str, bytes]]:
    if (place / "docs").is_dir():
        yield from ((path.name, path.read_bytes()) for path in sorted((place / "docs").iterdir()))
    elif (place / "docs.jsonl").is_file():
        yield from ((row["_id"], row["text"].encode()) for row in _rows(place / "docs.jsonl"))
    else:
        titles = defaultdict(list)
        for row in _rows(place / "corpus.jsonl"):
            titles[row["title"]].append(row["text"])
        yield from ((title, "\n\n".join(texts).encode()) for title, texts in titles.items())


def _gold(place: Path) -> dict[str, list[dict[str, Any]]]:
    """The passages that answer each question, by its id."""
    passages = {row["_id"]: row for row in _rows(place / "corpus.jsonl")}
    gold = defaultdict(list)
    for line in (place / "qrels.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        question, passage, _ = line.split("\t")
        gold[question].append(passages[passage])
    return gold


def _document_of(row: Mapping[str, Any], gold: Sequence[Mapping[str, Any]]) -> str:
    return str(row["metadata"].get("doc") or next((passage["title"] for passage in gold), ""))


def _question(row: Mapping[str, Any], gold: Sequence[Mapping[str, Any]]) -> Question:
    answers = [_folded(text) for text in row["answers"]]
    named = [_folded(text) for text in row["metadata"].get("evidence", ())]
    places = [place for passage in gold for answer in answers for place in _places(_folded(passage["text"]), answer)]
    return Question(row["text"], tuple(named or places or answers))


def _places(text: str, answer: str) -> Iterator[str]:
    """An answer wherever it stands in a text, with the characters around it."""
    at = text.find(answer)
    while at >= 0:
        yield text[max(0, at - _AROUND) : at + len(answer) + _AROUND]
        at = text.find(answer, at + 1)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def _folded(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


# showing


def _way_row(name: str, way: Way, chunks: str, shares: Sequence[float]) -> str:
    headings = "yes" if way.headings else "no"
    figures = [f"{share:.3f}" for share in shares]
    return _row(name, way.splitter, str(way.size), str(way.overlap), headings, chunks, *figures)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
