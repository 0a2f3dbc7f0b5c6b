"""How well the modes that follow a graph find passages, beside text search; no language model.

python -m benchmarks.graph_quality SET… [--queries N] [--half even|odd] [--modes ppr,mix] [--data-dir DIR]

Sets are folders in BEIR's layout, as for `zhiku eval`. "all@5" is the share of questions with all their right passages
among the first five. What is tuned on the questions with even numbers (`--half even`) is to be judged by the others.
With a data directory, a set that was embedded and read in an earlier run is not so again. Milliseconds are the median
of what a search takes beyond the embedding of its question.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from statistics import fmean, median
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from configs import Settings
from server.db import files
from server.db import jobs as job_rows
from server.evaluation import NO_LIMIT, Query, QuestionSet, read_set
from server.graph.search import GRAPH_MODES
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.graph_builds import GRAPH
from server.knowledge_base.service import KBService
from server.retrieval.metrics import mrr_at, recall_at
from server.runtime import Runtime

TEXT = "text"
MODES = (TEXT, *GRAPH_MODES)


def main() -> None:
    """Print a table: a row for each set and mode."""
    given = _arguments()
    table = Table("set", "mode", "recall@5", "recall@10", "all@5", "MRR@10", "ms a query")
    with tempfile.TemporaryDirectory() as folder:
        runtime = Runtime.build(Settings(data_dir=given.data_dir or Path(folder), database_url=None))
        runtime.service.runner.start()
        for place in given.sets:
            questions = read_set(place, given.queries)
            service = built(questions)
            asked = [query for query in questions.queries if query.gold][_HALVES[given.half]]
            model = service.context.embeddings.get(service.embed_model)
            with patch.object(model, "embed_query", cache(model.embed_query)):  # a question is embedded once
                for mode in given.modes:
                    table.add_row(questions.name, mode, *measure(service, asked, mode))
            Console(width=100).print(table)
        runtime.service.runner.stop()
        runtime.service.context.close()


_HALVES = {"even": slice(0, None, 2), "odd": slice(1, None, 2), None: slice(None)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graph_quality", description=__doc__)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("--queries", type=int, default=None)
    parser.add_argument("--half", choices=("even", "odd"))
    parser.add_argument("--modes", type=lambda text: text.split(","), default=MODES)
    parser.add_argument("--data-dir", type=Path)
    return parser.parse_args()


def built(questions: QuestionSet) -> KBService:
    """A knowledge base with a graph of the set's passages, made now or in an earlier run."""
    service = KBServiceFactory.get_service(f"graph {questions.name} {questions.digest[:8]}", "graph")
    if not service.exists():
        service.create_kb()
    kb, context = service.kb(), service.context
    with context.db.read() as sql:
        file = files.find(sql, kb.id, "corpus.jsonl")
    if file is None:
        stored = context.files.put(kb.id, BytesIO(questions.digest.encode()))
        with context.db.write() as sql:
            file = files.put(sql, kb.id, "corpus.jsonl", stored.storage, stored.sha256, stored.size)
    if file.state != "ready":
        for _ in service.add_doc(file, questions.passages):
            pass
        service.catch_up()
        service.settle()
    begun = time.process_time()
    while _is_building(service, kb.id):
        time.sleep(0.2)
    print(f"{service.kb_name}: graph up to date after {time.process_time() - begun:.1f} CPU s")
    return service


def _is_building(service: KBService, kb_id: int) -> bool:
    with service.context.db.read() as sql:
        return bool(job_rows.active(sql, kb_id, GRAPH))


def measure(service: KBService, queries: Sequence[Query], mode: str) -> Sequence[str]:
    """recall@5, recall@10, share of questions with all passages in five, MRR@10, milliseconds."""
    rows, spent = [], []
    model = service.context.embeddings.get(service.embed_model)
    for query in queries:
        model.embed_query(query.text)
        begun = time.perf_counter()
        hits = service.search_docs(query.text, 10, NO_LIMIT, None, None, None if mode == TEXT else mode)
        spent.append(time.perf_counter() - begun)
        ranked = [str(hit.metadata["passage"]) for hit in hits]
        five = recall_at(ranked, query.gold, 5)
        rows.append((five, recall_at(ranked, query.gold, 10), float(five == 1.0), mrr_at(ranked, query.gold, 10)))
    quality = (fmean(column) for column in zip(*rows, strict=True))
    return [*(f"{value:.3f}" for value in quality), f"{1000 * median(spent):.1f}"]


if __name__ == "__main__":
    main()
