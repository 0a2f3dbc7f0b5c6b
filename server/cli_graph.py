"""`zhiku graph`: build, look at, search and take away the graph of a knowledge base."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from server.cli_common import DataDir, opened_runtime, working
from server.errors import InvalidRequest, ZhikuError

if TYPE_CHECKING:
    from server.knowledge_base.backends.graph import GraphKBService
    from server.runtime import Runtime

graph_app = typer.Typer(no_args_is_help=True, help="Graphs of knowledge bases. 知识图谱。")
console = Console()
errors = Console(stderr=True)
_LOOK_EVERY = 0.3


def graph_of(name: str) -> GraphKBService:
    """A knowledge base with a graph.

    Raises:
        NotFound: there is none of that name; InvalidRequest: it has no graph.
    """
    from server.knowledge_base.backends.graph import GraphKBService
    from server.knowledge_base.operations import service_of

    found = service_of(name)
    if not isinstance(found, GraphKBService):
        raise InvalidRequest(
            f"知识库 {name} 没有图谱，创建时请用 --vs-type graph / this knowledge base has no graph: make one with "
            f"zhiku kb create NAME --vs-type graph"
        )
    return found


@graph_app.command("build")
def build(
    name: str,
    again: Annotated[bool, typer.Option(help="also read what was read in another way")] = False,
    extractor: Annotated[str | None, typer.Option(help="nlp, or the name of a language model")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask what it may cost")] = False,
    data_dir: DataDir = None,
) -> None:
    """Build the graph, or go on with it. 构建图谱。"""
    with opened_runtime(data_dir) as runtime:
        service, extractors = graph_of(name), runtime.service.extractors
        options = service.options().changed(extractor=extractor)
        estimate = extractors.estimate(options, service.sizes(again=again))
        if estimate.calls and not yes:
            cost = "" if estimate.cost is None else f", {estimate.cost:.2f}"
            typer.confirm(
                f"约 {estimate.calls} 次调用、{estimate.tokens_in + estimate.tokens_out} 词元，继续吗 / about "
                f"{estimate.calls} calls, {estimate.tokens_in + estimate.tokens_out} tokens{cost}; go on?",
                abort=True,
            )
        given = {} if extractor is None else {"extractor": extractor}
        service.set_options(given, extractors.of(options).recipe if again else None)
        with working(runtime):
            watch_build(service)
        reason = service.build_state()[3]
        if reason:
            raise ZhikuError(reason)
        print_stats(service)


def watch_build(service: GraphKBService) -> None:
    """Show how far the graph is until nothing is under way."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors) as bar:
        chunks = bar.add_task("片段 chunks", total=None)
        while True:
            state, _, building, _ = service.build_state()
            bar.update(chunks, completed=state.done + state.failed, total=state.total)
            if not building:
                return
            time.sleep(_LOOK_EVERY)


@graph_app.command("stats")
def stats(name: str, data_dir: DataDir = None) -> None:
    """What is in the graph, and what it took. 图谱统计。"""
    with opened_runtime(data_dir):
        print_stats(graph_of(name))


def print_stats(service: GraphKBService) -> None:
    """A table of what is in a graph, and what it took."""
    state = service.build_state()[0]
    with service.graph() as graph:
        rows = {
            "文件 files": service.count_files(),
            "实体 entities": len(graph.nodes), "关系 relations": len(graph.edges), "片段 chunks": state.total,
            "已读 read": state.done, "失败 failed": state.failed, "未被原文证实 dropped": state.dropped,
            "调用 calls": state.calls, "词元 tokens": state.tokens,
        }  # fmt: skip
    table = Table("", service.kb_name)
    for label, value in rows.items():
        table.add_row(label, str(value))
    console.print(table)


@graph_app.command("export")
def export(
    name: str,
    target: Annotated[
        Path | None,
        typer.Argument(
            help=".jsonl, .graphml, or a folder for GraphRAG's parquet tables; default: JSON lines to stdout"
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Write the whole graph into a file, or into tables. 导出图谱。"""
    from server.graph import views

    with opened_runtime(data_dir):
        service = graph_of(name)
        if target is not None and (target.is_dir() or not target.suffix):
            _export_tables(service, target)
            return
        with service.graph() as graph:
            rows = views.as_graphml(graph) if target and target.suffix == ".graphml" else views.as_json_lines(graph)
            with target.open("wb") if target else sys.stdout.buffer as out:
                out.writelines(rows)


def _export_tables(service: GraphKBService, folder: Path) -> None:
    from server.graph.tables import write_tables
    from server.knowledge_base.graph_tables import exported

    tables = exported(service)
    for path, rows in zip(write_tables(tables, folder), tables.values(), strict=True):
        console.print(f"{path}: {len(rows)}", markup=False, highlight=False, soft_wrap=True)


@graph_app.command("import")
def import_graph(
    name: str,
    source: Annotated[
        Path, typer.Argument(exists=True, help="a folder or zip of GraphRAG's parquet tables, .jsonl or .graphml")
    ],
    data_dir: DataDir = None,
) -> None:
    """Add what a file or tables hold to a graph; tables with text units bring files along. 导入图谱。"""
    from server.graph.imports import read_graph

    with opened_runtime(data_dir) as runtime:
        service = graph_of(name)
        if source.is_dir() or source.suffix == ".zip":
            failed = _import_tables(runtime, service, source)
        else:
            service.editor.add_all(*read_graph(source.read_bytes()))
            failed = {}
        print_stats(service)
    for file, reason in failed.items():
        errors.print(f"{file}: {reason}", markup=False, style="red")
    raise typer.Exit(1 if failed else 0)


def _import_tables(runtime: Runtime, service: GraphKBService, source: Path) -> dict[str, str]:
    """Bring files and their graph in; returns the reasons of files that failed."""
    from server.cli_files import watch_files
    from server.graph.tables_import import read_tables
    from server.knowledge_base.graph_tables import bring_in

    brought = read_tables(source if source.is_dir() else source.read_bytes())
    found = bring_in(runtime.service.operations, service, brought)
    with working(runtime):
        failed = watch_files(runtime, found.files)
        watch_build(service)
    return failed


@graph_app.command("query")
def query(
    name: str,
    question: str,
    mode: Annotated[str, typer.Option(help="local, global, hybrid, mix or ppr")] = "ppr",
    top_k: Annotated[int, typer.Option(min=1, max=50, help="passages to show")] = 5,
    data_dir: DataDir = None,
) -> None:
    """The entities, relations and passages that a question leads to. 沿图谱检索。"""
    from server.domain import SearchOptions
    from server.graph.search import GRAPH_MODES

    if mode not in GRAPH_MODES:
        raise InvalidRequest(f"mode 应为 / mode must be one of: {', '.join(GRAPH_MODES)}")
    with opened_runtime(data_dir):
        service = graph_of(name)
        found, hits = service.follow(question, SearchOptions(mode=mode))
        with service.graph() as graph:
            names = [graph.shown(key).name for key, _ in found.entities[:10] if key in graph.nodes]
            pairs = [pair for pair, _ in found.relations[:10] if pair in graph.edges]
            ties = [f"{graph.shown(one).name} — {graph.edges[one, other].label} → {graph.shown(other).name}"
                    for one, other in pairs]  # fmt: skip
    console.print("实体 entities: " + ", ".join(names), markup=False)
    for tie in ties:
        console.print("  " + tie, markup=False)
    for number, hit in enumerate(hits[:top_k], start=1):
        console.print(f"\n[{number}] {hit.file_name}", style="bold", markup=False)
        console.print(hit.text, markup=False)
