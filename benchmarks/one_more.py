"""What one more document costs a large graph, and what taking it out again does.

python -m benchmarks.one_more PASSAGES [--files 1000] [--reports nlp] [--llm URL]

PASSAGES holds a JSON object with `text` (and perhaps `title`) a line; they become so many files. Without `--llm`
entities are found by rules. Vectors come from a model that costs next to nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.graph import add, put, searched, settle
from configs import Settings
from configs.settings import ChatModelSettings, EmbeddingModelSettings
from server.runtime import Runtime

_SHIP = "The barque Quernmore left Harwich under Captain Ilse Brandt. Ilse Brandt wrote to Tomas Reyl in Vigo.\n"


def main() -> None:
    """Build once, then add and take out a document a few times."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_more", description=__doc__)
    parser.add_argument("passages", type=Path)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--reports", choices=("nlp", ""), default="")
    parser.add_argument("--llm", help="address of a server of language models, with /v1")
    given = parser.parse_args()
    say = Console(soft_wrap=True, markup=False, highlight=False).print
    with tempfile.TemporaryDirectory() as folder:
        runtime = Runtime.build(_settings(given, Path(folder)))
        runtime.service.runner.start()
        begun, cpu = time.perf_counter(), time.process_time()
        service = add(runtime, dict(_files(given.passages, given.files)))
        settle(runtime, service)
        with service.index() as index:
            size = (
                f"{len(index.graph.nodes)} entities, {len(index.graph.edges)} relations, {len(index.reports)} reports"
            )
        say(f"{given.files} files: {size}; {time.perf_counter() - begun:.0f} s, CPU {time.process_time() - cpu:.0f} s")
        for number in range(3):
            begun, cpu = time.perf_counter(), time.process_time()
            put(runtime, service, {"one more.txt": (_SHIP * 20 + f"Voyage {number}.").encode()})
            seen = time.perf_counter() - begun
            settle(runtime, service)
            say(f"one more: searchable after {seen:.2f} s, in the graph after {time.perf_counter() - begun:.2f} s, "
                f"CPU {time.process_time() - cpu:.2f} s")  # fmt: skip
            begun, cpu = time.perf_counter(), time.process_time()
            runtime.service.operations.delete(service, ["one more.txt"], delete_content=True)
            gone = time.perf_counter() - begun
            settle(runtime, service)
            say(f"taken out after {gone:.2f} s, settled after {time.perf_counter() - begun:.2f} s, "
                f"CPU {time.process_time() - cpu:.2f} s")  # fmt: skip
        asked = [{"q": "Who directed the film?", "gold": "x"}, {"q": "Where was the director born?", "gold": "x"}] * 10
        for mode in (None, "local", "ppr", "mix"):
            say(f"{mode or 'text'}: {searched(service, asked, mode)[0]} ms")
        runtime.stop()


def _settings(given: argparse.Namespace, folder: Path) -> Settings:
    vectors = EmbeddingModelSettings(name="vectors", provider="fake", options={"dimension": 384})
    models = [ChatModelSettings(name="llm", base_url=given.llm, concurrency=16)] if given.llm else []
    return Settings(
        data_dir=folder, database_url=None, llm_models=models, embedding_models=[vectors],
        default_embed_model="vectors", graph_extractor="llm" if given.llm else "nlp", graph_reports=given.reports,
        graph_concurrency=16,
    )  # fmt: skip


def _files(passages: Path, count: int) -> Iterator[tuple[str, bytes]]:
    texts: list[list[str]] = [[] for _ in range(count)]
    with passages.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            one = json.loads(line)
            texts[number % count].append(f"{one.get('title', '')}\n{one['text']}".strip())
    yield from ((f"{number}.txt", "\n\n".join(parts).encode()) for number, parts in enumerate(texts) if parts)


if __name__ == "__main__":
    main()
