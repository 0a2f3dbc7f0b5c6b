"""What a graph costs with a language model, and how fast it is searched.

python -m benchmarks.graph --llm URL CORPUS=QUESTIONS…

CORPUS is a folder of text files, QUESTIONS a JSON list of objects with `q` and `gold` (a sentence of the corpus). The
server at URL speaks the OpenAI protocol, also for embeddings; where it has `/stats`, `/reset` and `/config` (for
`latency_ms`) as a stand-in may have, prompts are counted and calls slowed down. CPU seconds and bytes are this
process's alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from configs import Settings
from configs.settings import ChatModelSettings, EmbeddingModelSettings
from server.db import jobs as job_rows
from server.graph.search import GRAPH_MODES
from server.knowledge_base.backends.graph import GraphKBService
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.graph_builds import GRAPH
from server.knowledge_base.operations import Upload
from server.knowledge_base.report_search import REPORT_MODES
from server.runtime import Runtime

SLOW = 200
"""Milliseconds of a slow answer."""
AT_ONCE = (4, 16, 64)


@dataclass(frozen=True)
class Cost:
    """What some work took."""

    wall: float
    cpu: float
    written: int
    calls: int
    prompt: int


def main() -> None:
    """Print tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graph", description=__doc__)
    parser.add_argument("sets", nargs="+", help="CORPUS=QUESTIONS")
    parser.add_argument("--llm", required=True, help="address of the server, with /v1")
    parser.add_argument("--chunk-size", type=int, default=None)
    parser.add_argument("--gleanings", type=int, default=0)
    parser.add_argument("--extractor", choices=("llm", "nlp"), default="llm", help="nlp asks no language model")
    parser.add_argument("--reports", choices=("llm", "nlp", ""), default="", help="who writes reports of communities")
    parser.add_argument("--no-waiting", action="store_true", help="leave out the runs with slow answers")
    given = parser.parse_args()
    bench = Bench(given.llm, given.chunk_size, given.gleanings, given.extractor, given.reports)
    console = Console(width=150)
    index = Table(
        "corpus", "MB", "chunks", "calls", "CPU s", "wall s", "MB written", "prompt/source chars", "entities", "reports"
    )
    search = Table("corpus", "mode", "p50 ms", "CPU ms", "gold in 10 chunks")
    delete = Table("corpus", "work", "wall s", "CPU s", "calls", "reports made anew")
    waits = Table("calls at once", "calls", "wall s", "ideal s", "ratio")
    for pair in given.sets:
        corpus, questions = map(Path, pair.split("="))
        bench.measure(corpus, questions, index, search, delete)
        console.print(index, search, delete)
    if not given.no_waiting:
        corpus = Path(given.sets[0].split("=")[0])
        for at_once in AT_ONCE:
            bench.wait(corpus, at_once, waits)
            console.print(waits)


class Bench:
    """One server, many knowledge bases."""

    def __init__(self, url: str, chunk_size: int | None, gleanings: int, extractor: str, reports: str) -> None:
        self._url = url
        self._base = httpx.Client(base_url=url.removesuffix("/v1"), timeout=30)
        self._chunk_size = chunk_size
        self._gleanings = gleanings
        self._extractor = extractor
        self._reports = reports

    @contextmanager
    def _service(self, at_once: int = 16) -> Iterator[Runtime]:
        with tempfile.TemporaryDirectory() as folder:
            size = {} if self._chunk_size is None else {"chunk_size": self._chunk_size}
            runtime = Runtime.build(
                Settings(
                    data_dir=Path(folder),
                    database_url=None,
                    llm_models=[ChatModelSettings(name="llm", base_url=self._url, concurrency=at_once)],
                    embedding_models=[EmbeddingModelSettings(name="vectors", base_url=self._url, batch_size=64)],
                    default_embed_model="vectors",
                    graph_extractor=self._extractor,
                    graph_reports=self._reports,
                    graph_concurrency=at_once,
                    graph_gleanings=self._gleanings,
                    **size,
                )
            )
            runtime.service.runner.start()
            settle(runtime, add(runtime, {"a.txt": b"Ada met Bo."}, name="warm"))  # imports, connections
            try:
                yield runtime
            finally:
                runtime.stop()

    @contextmanager
    def _cost(self) -> Iterator[list[Cost]]:
        process, found = psutil.Process(), []
        self._post("/reset")
        begun, cpu, written = time.perf_counter(), time.process_time(), process.io_counters().write_bytes
        yield found
        stats = self._get("/stats")
        found.append(
            Cost(
                time.perf_counter() - begun,
                time.process_time() - cpu,
                process.io_counters().write_bytes - written,
                sum(stats.get("calls", {}).values()),
                sum(stats.get("prompt_chars", {}).values()),
            )
        )

    def _post(self, path: str, **body: Any) -> None:
        self._base.post(path, json=body)

    def _get(self, path: str) -> dict[str, Any]:
        answer = self._base.get(path)
        return dict(answer.json()) if answer.status_code == 200 else {}

    def measure(self, corpus: Path, questions: Path, index: Table, search: Table, delete: Table) -> None:
        """Build, search, delete."""
        texts = {path.name: path.read_bytes() for path in sorted(corpus.iterdir())}
        size = sum(map(len, texts.values()))
        self._post("/config", latency_ms=0)
        with self._service() as runtime:
            with self._cost() as cost:
                service = add(runtime, texts)
                settle(runtime, service)
            state, (took,) = service.build_state()[0], cost
            with service.index() as index_of:
                entities, reports = len(index_of.graph.nodes), len(index_of.reports)
            chunks = state.total
            index.add_row(
                corpus.name, f"{size / 1e6:.2f}", str(chunks), str(took.calls), f"{took.cpu:.1f}", f"{took.wall:.1f}",
                f"{took.written / 1e6:.1f}", f"{took.prompt / size:.2f}", str(entities), str(reports),
            )  # fmt: skip
            Console(width=150).print(index)
            asked = json.loads(questions.read_text(encoding="utf-8"))
            for mode in (None, *GRAPH_MODES, *(REPORT_MODES if self._reports else ())):
                search.add_row(corpus.name, mode or "text", *searched(service, asked, mode))
            for name in list(texts)[:5]:
                before = reports_of(service)
                with self._cost() as cost:
                    runtime.service.operations.delete(service, [name], delete_content=True)
                    settle(runtime, service)
                (took,), new = cost, len(reports_of(service) - before)
                figures = (f"{took.wall:.2f}", f"{took.cpu:.2f}", str(took.calls), str(new))
                delete.add_row(corpus.name, f"delete {name}", *figures)

    def wait(self, corpus: Path, at_once: int, table: Table) -> None:
        """Build with slow answers: how near it comes to what the calls alone would take."""
        texts = {path.name: path.read_bytes() for path in sorted(corpus.iterdir())}
        self._post("/config", latency_ms=0)
        with self._service(at_once) as runtime:
            service = add(runtime, texts, extractor="nlp")
            settle(runtime, service)
            self._post("/config", latency_ms=SLOW)
            options = service.options().changed(extractor="llm")
            with self._cost() as cost:
                service.set_options({"extractor": "llm"}, runtime.service.extractors.of(options).recipe)
                settle(runtime, service)
            (took,) = cost
            ideal = took.calls * SLOW / 1000 / at_once
            table.add_row(str(at_once), str(took.calls), f"{took.wall:.1f}", f"{ideal:.1f}", f"{took.wall / ideal:.2f}")


def add(runtime: Runtime, texts: dict[str, bytes], extractor: str | None = None, name: str = "bench") -> GraphKBService:
    """A knowledge base with a graph of these files, as far as text search goes."""
    service = KBServiceFactory.get_service(name, "graph")
    assert isinstance(service, GraphKBService)
    service.create_kb()
    if extractor:
        service.set_options({"extractor": extractor})
    put(runtime, service, texts)
    return service


def put(runtime: Runtime, service: GraphKBService, texts: dict[str, bytes]) -> None:
    """Upload files, and wait until text search finds them."""
    uploads = [Upload(name, BytesIO(text)) for name, text in texts.items()]
    outcome = runtime.service.operations.upload(service, uploads, service.split_options())
    for _ in runtime.service.runner.wait_blocking(outcome.jobs):
        pass


def reports_of(service: GraphKBService) -> set[tuple[str, str]]:
    """(community, digest) of all reports."""
    with service.index() as index:
        return {(one.report.community, one.digest) for one in index.reports}


def settle(runtime: Runtime, service: GraphKBService) -> None:
    """Wait for the graph."""
    runtime.service.runner.notify()
    kb = service.kb()
    while True:
        with runtime.service.context.db.read() as sql:
            if not job_rows.active(sql, kb.id, GRAPH):
                return
        time.sleep(0.1)


def searched(service: GraphKBService, asked: list[dict[str, str]], mode: str | None) -> tuple[str, str, str]:
    """(median milliseconds, CPU milliseconds, share of questions whose sentence is found) when asked for the second
    time, but with their vectors made again."""
    for one in asked:
        service.search_docs(one["q"], 10, 4.0, None, None, mode)
    service.context.embeddings.get(service.embed_model).forget_questions()
    times, found, cpu = [], 0, time.process_time()
    for one in asked:
        begun = time.perf_counter()
        hits = service.search_docs(one["q"], 10, 4.0, None, None, mode)
        times.append(time.perf_counter() - begun)
        wanted = " ".join(one["gold"].split())
        found += any(wanted in " ".join(hit.text.split()) for hit in hits)
    spent = (time.process_time() - cpu) / len(asked)
    return f"{1000 * median(times):.1f}", f"{1000 * spent:.1f}", f"{found / len(asked):.2f}"


if __name__ == "__main__":
    main()
