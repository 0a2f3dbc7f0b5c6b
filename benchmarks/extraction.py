"""What the extractor without a language model finds of entities and relations that people wrote down.

    python -m benchmarks.extraction PATH… [--half tuning] [--misses 20]

A PATH is a folder with `sentences.jsonl` (`text`, `entities`, `triples` of `sub` and `obj`), of which constants were
chosen on the first half and the second is reported, or one with `corpus.jsonl` (`text`) and maybe
`gold_relations.jsonl` (`subject`, `object`, maybe `aliases`: a name with its others), of which whole-corpus recall
and speed are reported.
"""

from __future__ import annotations

import argparse
import json
import time
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.domain import Extraction
from server.graph.nlp import extract
from server.retrieval.analysis import language


@dataclass
class Tally:
    """Counts over texts; a share of nothing is 0."""

    hits: dict[str, int] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    misses: list[str] = field(default_factory=list)

    def add(self, name: str, hit: bool, miss: str = "") -> None:
        self.hits[name] = self.hits.get(name, 0) + hit
        self.totals[name] = self.totals.get(name, 0) + 1
        if miss and not hit:
            self.misses.append(miss)

    def lines(self) -> Iterable[str]:
        return (
            f"{name}: {self.hits[name] / total:.3f} ({self.hits[name]}/{total})" for name, total in self.totals.items()
        )


def plain(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def pairs_of(extraction: Extraction) -> set[frozenset[str]]:
    return {frozenset((plain(one.source), plain(one.target))) for one in extraction.relations}


def connects(pairs: Iterable[frozenset[str]], one: set[str], other: set[str]) -> bool:
    """Whether a pair has a name of either."""
    return any(one & pair and other & pair for pair in pairs)


def loose_pairs(pairs: Iterable[frozenset[str]], one: str, other: str) -> bool:
    """Whether the ends of a pair hold the names, or the other way round."""
    return any(
        near(one, left) and near(other, right)
        for pair in pairs
        if len(pair) == 2
        for left, right in _ways(sorted(pair))
    )


def _ways(pair: Sequence[str]) -> tuple[tuple[str, str], tuple[str, str]]:
    return (pair[0], pair[1]), (pair[1], pair[0])


def near(gold: str, name: str) -> bool:
    return gold in name


def sentences_report(rows: Sequence[dict[str, Any]], tally: Tally) -> None:
    mentions = concepts = 0
    for row in rows:
        found = extract(row["text"], "en")
        names = {plain(one.name) for one in found.mentions}
        mentions += len(names)
        concepts += sum(one.type == "concept" for one in found.mentions)
        pairs = pairs_of(found)
        gold = {plain(entity) for entity in row["entities"]}
        for entity in sorted(gold):
            tally.add("entity recall", entity in names, f"{entity} | {row['text'][:220]} | {sorted(names)}")
            tally.add("entity inside a mention", any(entity in name for name in names))
        for name in sorted(names):
            tally.add("mentions that are gold (proxy of precision)", name in gold)
            tally.add("mentions that touch gold", any(name in entity or entity in name for entity in gold))
        for one, other in sorted({(plain(triple["sub"]), plain(triple["obj"])) for triple in row["triples"]}):
            tally.add("pair recall", connects(pairs, {one}, {other}))
            tally.add("pair inside mentions", loose_pairs(pairs, one, other))
    count = max(1, len(rows))
    print(
        f"{len(rows)} sentences; per sentence {mentions / count:.2f} mentions, {concepts / count:.2f} of them concepts"
    )


def corpus_report(folder: Path, tally: Tally) -> None:
    texts = [row["text"] for row in read(folder / "corpus.jsonl")]
    languages = ["zh" if language(text) == "zh" else "en" for text in texts]
    extract(texts[0], languages[0])  # the dictionary is loaded once
    started = time.process_time()
    found = [extract(text, lang) for text, lang in zip(texts, languages, strict=True)]
    seconds = time.process_time() - started
    size = sum(len(text.encode()) for text in texts)
    mentions, relations = (sum(len(part) for part in parts) for parts in zip(*_parts(found), strict=True))
    print(
        f"{len(texts)} passages; per passage {mentions / len(texts):.1f} mentions, "
        f"{relations / len(texts):.1f} relations"
    )
    print(f"{seconds:.2f} CPU seconds for {size / 1e6:.2f} MB: {seconds / size * 1e6:.2f} per MB")
    if (folder / "gold_relations.jsonl").exists():
        gold_report(read(folder / "gold_relations.jsonl"), found, tally)


def _parts(found: Iterable[Extraction]) -> Iterable[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    return ((one.mentions, one.relations) for one in found)


def gold_report(gold: Sequence[dict[str, Any]], found: Sequence[Extraction], tally: Tally) -> None:
    names = {plain(one.name) for extraction in found for one in extraction.mentions}
    pairs = {pair for extraction in found for pair in pairs_of(extraction)}
    called: dict[str, set[str]] = {}
    for row in gold:
        for name in (row["subject"], row["object"]):
            called[name] = {plain(one) for one in (name, *(row.get("aliases") or {}).get(name, ()))}
    for name, others in called.items():
        tally.add("entity recall", bool(others & names), name)
        tally.add("entity inside a mention", any(one in other for one in others for other in names))
        tally.add("entity by a part of its name", bool({*others, *_parts_of(name)} & names))
    for row in gold:
        one, other = row["subject"], row["object"]
        tally.add("pair recall", connects(pairs, called[one], called[other]), f"{one} - {other}")
        parts = [{*called[name], *_parts_of(name)} for name in (one, other)]
        tally.add("pair by a part of the names", connects(pairs, *parts))


def _parts_of(name: str) -> set[str]:
    """How a text calls somebody for short: "Ann" and "Lee" for "Ann Lee"."""
    return {plain(part) for part in name.split() if len(part) > 2}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--half", choices=("tuning", "held-out"), default="held-out")
    parser.add_argument("--misses", type=int, default=0, help="show so many names that were not found")
    chosen = parser.parse_args()
    for folder in chosen.paths:
        print(f"# {folder.name}")
        tally = Tally()
        if (folder / "sentences.jsonl").exists():
            rows = read(folder / "sentences.jsonl")
            middle = len(rows) // 2
            sentences_report(rows[:middle] if chosen.half == "tuning" else rows[middle:], tally)
        else:
            corpus_report(folder, tally)
        print("\n".join([*tally.lines(), *tally.misses[: chosen.misses]]))


if __name__ == "__main__":
    main()
