"""`zhiku`: serve, manage knowledge bases, check and evaluate."""

from __future__ import annotations

import io
import logging
import os
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer
import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from configs import Settings
from server.cli_common import DataDir, opened_runtime, settings_of, working
from server.cli_files import digests, ensure_kb, found, ingest, sync
from server.cli_graph import graph_app
from server.cli_project import project_app
from server.errors import ConfigurationError, ZhikuError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Zhiku 知库: files in, cited answers out.")
kb_app = typer.Typer(no_args_is_help=True, help="Knowledge bases. 知识库管理。")
app.add_typer(kb_app, name="kb")
app.add_typer(graph_app, name="graph")
app.add_typer(project_app)
console = Console()
errors = Console(stderr=True)


def main() -> None:
    """Entry point: expected errors become one line and exit code 1."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows no Chinese must not stop the service
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    sys.argv = [os.fsencode(word).decode("utf-8", "replace") for word in sys.argv]
    try:
        app()
    except ZhikuError as error:
        errors.print(error.message, style="red", markup=False)
        sys.exit(1)
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False):
            place = ".".join(map(str, problem["loc"])) or "settings"
            errors.print(f"configs: {place}: {problem['msg']}", style="red", markup=False)
        sys.exit(2)
    except yaml.YAMLError as error:
        errors.print(f"configs: {error}", style="red", markup=False)
        sys.exit(2)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="address to listen on (default: loopback)")] = None,
    port: Annotated[int | None, typer.Option(help="port to listen on")] = None,
    data_dir: DataDir = None,
    samples: Annotated[bool, typer.Option(help="load the shipped sample knowledge base once")] = False,
) -> None:
    """Start the HTTP service. 启动服务。"""
    import uvicorn

    from server.app import create_app
    from server.runtime import check

    settings = settings_of(data_dir, host=host, port=port)
    check(settings)
    _require_port(settings)
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("alembic", "faiss", "httpx", "httpx2"):  # they tell what only their developers need
        logging.getLogger(noisy).setLevel(logging.ERROR)
    if samples:
        _load_samples(settings)
    _greet(settings)
    # threads that split files give way to those that answer after one millisecond, not five
    sys.setswitchinterval(0.001)
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_level=settings.log_level.lower(),
        access_log=settings.log_level == "DEBUG",
        timeout_graceful_shutdown=5,
        ws="none",
        proxy_headers=False,  # only links need them, and take more of them than uvicorn would
    )


def _require_port(settings: Settings) -> None:
    """Say that the port is taken before anything else is said."""
    with socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            raise ConfigurationError(
                f"无法监听 / cannot listen on {settings.host}:{settings.port} ({error.strerror})，"
                f"请换一个端口 / choose another one: zhiku serve --port 7862, make run PORT=7862"
            ) from None


def _greet(settings: Settings) -> None:
    shown = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    base = f"http://{shown}:{settings.port}"
    example = '{"knowledge_base_name": "samples", "query": "知库怎样删除一个文件？", "stream": true}'
    console.print(
        f"\nZhiku 知库  {base}\n  Swagger UI  {base}/docs\n  ReDoc       {base}/redoc\n\nTry / 试试:\n"
        f"  curl -N {base}/chat/knowledge_base_chat -H 'content-type: application/json' -d '{example}'\n",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _load_samples(settings: Settings) -> None:
    """Make the `samples` knowledge base from the shipped files, unless it was made (or deleted) before."""
    from configs.settings import PROJECT_ROOT
    from server.runtime import Runtime

    mark = settings.data_dir.resolve() / "samples.loaded"
    folder = PROJECT_ROOT / "knowledge_base" / "samples" / "content"
    if mark.exists() or not folder.is_dir():
        return
    runtime = Runtime.build(settings)
    try:
        name = settings.default_knowledge_base
        ensure_kb(name, None, None)
        with working(runtime):
            ingest(runtime, name, found([folder]), override=False)
        mark.touch()
    finally:
        runtime.service.context.close()


@kb_app.command("list")
def kb_list(data_dir: DataDir = None) -> None:
    """All knowledge bases. 列出知识库。"""
    from server.db import kbs

    table = Table("name", "files", "store", "embedding model", "about")
    with opened_runtime(data_dir) as runtime, runtime.service.context.db.read() as sql:
        counts = kbs.count_files(sql)
        for kb in kbs.list_all(sql):
            table.add_row(kb.name, str(counts.get(kb.id, 0)), kb.generation.vs_type, kb.generation.embed_model, kb.info)
    console.print(table)


@kb_app.command("create")
def kb_create(
    name: str,
    vs_type: Annotated[str | None, typer.Option(help="vector store")] = None,
    embed_model: Annotated[str | None, typer.Option(help="embedding model")] = None,
    data_dir: DataDir = None,
) -> None:
    """Make a knowledge base. 新建知识库。"""
    from server.knowledge_base.factory import KBServiceFactory

    with opened_runtime(data_dir) as runtime:
        kind = vs_type or runtime.service.settings.default_vs_type
        kb = KBServiceFactory.get_service(name, kind, embed_model).create_kb()
    console.print(f"已新增知识库 / created: {kb.name}", markup=False)


@kb_app.command("delete")
def kb_delete(
    name: str, yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False, data_dir: DataDir = None
) -> None:
    """Delete a knowledge base with everything in it. 删除知识库。"""
    from server.knowledge_base.operations import service_of

    if not yes:
        typer.confirm(f"删除知识库及其全部文件 / delete {name} with all its files?", abort=True)
    with opened_runtime(data_dir):
        service_of(name).drop_kb()
    console.print(f"成功删除知识库 / deleted: {name}", markup=False)


@kb_app.command("add")
def kb_add(
    name: str,
    paths: Annotated[list[Path], typer.Argument(exists=True, help="files or folders")],
    override: Annotated[bool, typer.Option(help="replace files of the same name")] = False,
    data_dir: DataDir = None,
) -> None:
    """Add files or folders; the knowledge base is made when there is none. 添加文件或文件夹；没有该知识库时会新建。"""
    from server.knowledge_base.manifest import compare
    from server.knowledge_base.operations import service_of

    with opened_runtime(data_dir) as runtime:
        ensure_kb(name, None, None)
        files = dict(found(paths))
        difference = compare(service_of(name), digests(files))
        fresh = [(label, path) for label, path in files.items() if label not in difference.unchanged]
        with working(runtime):
            failed = ingest(runtime, name, fresh, override=override)
    for file, reason in failed.items():
        hint = " (--override 可替换 / replaces it)" if "已存在" in reason else ""
        errors.print(f"{file}: {reason}{hint}", markup=False, style="red")
    there = len(difference.unchanged)
    console.print(f"新增 / added: {len(fresh) - len(failed)}，未变 / unchanged: {there}，失败 / failed: {len(failed)}")
    raise typer.Exit(1 if failed else 0)


@kb_app.command("sync")
def kb_sync(
    name: str,
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="文件夹 / the folder")],
    delete: Annotated[bool, typer.Option("--delete", help="delete what is no longer in the folder")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only tell what would be done")] = False,
    data_dir: DataDir = None,
) -> None:
    """Make a knowledge base hold what a folder holds: new and changed files are read, unchanged ones are not touched.
    让知识库与文件夹一致：只处理新增和改动的文件。"""
    from server.knowledge_base.manifest import compare
    from server.knowledge_base.operations import service_of

    with opened_runtime(data_dir) as runtime:
        ensure_kb(name, None, None)
        files = dict(found([folder]))
        difference = compare(service_of(name), digests(files))
        failed: dict[str, str] = dict(difference.invalid)
        if not dry_run:
            with working(runtime):
                failed |= sync(runtime, name, files, difference, delete=delete)
    for file, reason in failed.items():
        errors.print(f"{file}: {reason}", markup=False, style="red")
    gone = (
        f"删除 / deleted: {len(difference.delete)}" if delete else f"多余 / extra: {len(difference.delete)} (--delete)"
    )
    console.print(
        f"读取 / read: {len(difference.upload)}，未变 / unchanged: {len(difference.unchanged)}，{gone}，"
        f"失败 / failed: {len(failed)}{' (--dry-run)' if dry_run else ''}",
        markup=False,
    )
    raise typer.Exit(1 if failed else 0)


@kb_app.command("remove")
def kb_remove(
    name: Annotated[str, typer.Argument(help="知识库 / the knowledge base")],
    file_names: Annotated[list[str], typer.Argument(help="文件名 / names as kb add gave them")],
    data_dir: DataDir = None,
) -> None:
    """Delete files for good. 彻底删除文件。"""
    from server.knowledge_base.operations import service_of

    with opened_runtime(data_dir) as runtime:
        failed = runtime.service.operations.delete(service_of(name), file_names, delete_content=True)
    for file, reason in failed.items():
        errors.print(f"{file}: {reason}", markup=False, style="red")
    raise typer.Exit(1 if failed else 0)


@kb_app.command("migrate")
def kb_migrate(
    name: Annotated[str, typer.Argument(help="知识库 / the knowledge base")],
    to: Annotated[str | None, typer.Option(help="另一种向量库 / another vector store")] = None,
    embed_model: Annotated[str | None, typer.Option(help="另一个向量模型 / another embedding model")] = None,
    back: Annotated[bool, typer.Option("--back", help="回到上一个模型 / to the model before the last move")] = False,
    data_dir: DataDir = None,
) -> None:
    """Move a knowledge base to another vector store or embedding model while it is searched.
    把知识库迁移到另一种向量库或向量模型，期间照常可搜索。"""
    with opened_runtime(data_dir) as runtime, working(runtime):
        job_id = runtime.service.operations.migrate(name, vs_type=to, embed_model=embed_model, back=back)
        for (job,) in runtime.service.runner.wait_blocking([job_id]):
            errors.print(f"{job.finished} / {job.total}", end="\r", highlight=False)
    if job.state != "done":
        errors.print(job.reason or job.state, markup=False, style="red")
        raise typer.Exit(1)
    console.print(f"迁移完成 / moved: {name}", markup=False)


@kb_app.command("search")
def kb_search(
    name: Annotated[str, typer.Argument(help="知识库 / the knowledge base")],
    query: Annotated[str, typer.Argument(help="问题或关键词 / a question or keywords")],
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="most hits")] = 3,
    search_type: Annotated[str, typer.Option(help="hybrid, similarity or keyword")] = "hybrid",
    data_dir: DataDir = None,
) -> None:
    """Search a knowledge base, without a language model. 搜索知识库（不使用语言模型）。"""
    from server.knowledge_base.operations import service_of

    with opened_runtime(data_dir):
        hits = service_of(name).search_docs(query, top_k, None, search_type)
    for number, hit in enumerate(hits, start=1):
        place = f" p.{hit.page}" if hit.page else ""
        shown = "–" if hit.similarity is None else f"{hit.similarity:.2f}"
        console.print(f"[{number}] {hit.file_name}{place}  ({shown})\n{hit.text}\n", markup=False, highlight=False)
    if not hits:
        console.print("没有找到相关内容 / nothing relevant found")


@app.command()
def doctor(
    repair: Annotated[bool, typer.Option(help="rebuild what is wrong")] = True, data_dir: DataDir = None
) -> None:
    """Check SQL against every index, and repair. 检查并修复索引。"""
    from server.knowledge_base.doctor import examine

    healthy = True
    with opened_runtime(data_dir) as runtime:
        for finding in examine(runtime.service.context, repair=repair):
            healthy = healthy and finding.healthy
            console.print(finding.text, style="" if finding.healthy else "yellow", markup=False, highlight=False)
    raise typer.Exit(0 if healthy or repair else 1)


@app.command("eval")
def evaluate(
    folders: Annotated[list[Path], typer.Argument(exists=True, file_okay=False, help="BEIR-like folders")],
    limit: Annotated[int | None, typer.Option(min=1, help="at most so many queries of each folder")] = None,
    answers: Annotated[bool, typer.Option(help="also ask for answers and look for the gold strings")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="keep the indexes here for the next run")] = None,
) -> None:
    """Recall, MRR and nDCG of keyword, dense and hybrid search on evaluation sets. 评测检索质量。"""
    from server.evaluation import evaluate_folder, table_of

    console.print(table_of([evaluate_folder(folder, data_dir, limit=limit, answers=answers) for folder in folders]))


if __name__ == "__main__":
    main()
