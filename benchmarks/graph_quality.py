"""How well the modes that follow a graph find passages, beside text search; no language model.

python -m benchmarks.graph_quality SET… [--queries N] [--data-dir DIR]

Sets are folders in BEIR's layout, as for `zhiku eval`. "all@5" is the share of questions with all their right passages
among the first five.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from configs import Settings
from server.db import files
from server.db import jobs as job_rows
from server.evaluation import NO_LIMIT, QuestionSet, read_set
from server.graph.search import GRAPH_MODES
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.graph_builds import GRAPH
from server.knowledge_base.service import KBService
from server.retrieval.metrics import mrr_at, recall_at
from server.runtime import Runtime

MODES = (None, *GRAPH_MODES)


def main() -> None:
    """Print a table: a row for each set and mode."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graph_quality", description=__doc__)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("--queries", type=int, default=None)
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    table = Table("set", "mode", "recall@5", "recall@10", "all@5", "MRR@10", "ms a query")
    with tempfile.TemporaryDirectory() as folder:
        runtime = Runtime.build(Settings(data_dir=given.data_dir or Path(folder), database_url=None))
        for place in given.sets:
            questions = read_set(place, given.queries)
            service = build(runtime, questions)
            for mode in MODES:
                table.add_row(questions.name, mode or "text", *measure(service, questions, mode))
                Console(width=100).print(table)
        runtime.service.context.close()


def build(runtime: Runtime, questions: QuestionSet) -> KBService:
    """A knowledge base with a graph of the set's passages."""
    service = KBServiceFactory.get_service(f"graph {questions.name}", "graph")
    service.create_kb()
    kb, context = service.kb(), service.context
    stored = context.files.put(kb.id, BytesIO(questions.digest.encode()))
    with context.db.write() as sql:
        file = files.put(sql, kb.id, "corpus.jsonl", stored.storage, stored.sha256, stored.size)
    for _ in service.add_doc(file, questions.passages):
        pass
    service.catch_up()
    service.settle()
    begun = time.process_time()
    runner = runtime.service.runner
    runner.start()
    while _is_building(service, kb.id):
        time.sleep(0.2)
    runner.stop()
    print(f"{questions.name}: graph built in {time.process_time() - begun:.1f} CPU s")
    return service


def _is_building(service: KBService, kb_id: int) -> bool:
    with service.context.db.read() as sql:
        return bool(job_rows.active(sql, kb_id, GRAPH))


def measure(service: KBService, questions: QuestionSet, mode: str | None) -> Sequence[str]:
    """recall@5, recall@10, share of questions with all passages in five, MRR@10, milliseconds."""
    rows = []
    for query in (query for query in questions.queries if query.gold):
        begun = time.perf_counter()
        hits = service.search_docs(query.text, 10, NO_LIMIT, None, None, mode)
        spent = time.perf_counter() - begun
        ranked = [str(hit.metadata["passage"]) for hit in hits]
        five = recall_at(ranked, query.gold, 5)
        rows.append(
            (five, recall_at(ranked, query.gold, 10), float(five == 1.0), mrr_at(ranked, query.gold, 10), spent)
        )
    *quality, seconds = (fmean(column) for column in zip(*rows, strict=True))
    return [*(f"{value:.3f}" for value in quality), f"{1000 * seconds:.1f}"]


if __name__ == "__main__":
    main()
