"""`zhiku init | index | update | query | prompt-tune`: a graph over the files of a folder, without a running server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from server.cli_common import DataDir, opened_runtime, working
from server.cli_files import digests, ensure_kb, found, sync
from server.cli_graph import print_stats, watch_build
from server.errors import InvalidRequest

if TYPE_CHECKING:
    from configs import Settings
    from server.chat.parts import Asked, Begun, Done
    from server.chat.service import Finder
    from server.domain import Found, GraphOptions, SearchOptions
    from server.knowledge_base.backends.graph import GraphKBService
    from server.knowledge_base.manifest import Difference
    from server.knowledge_base.service import KBService
    from server.project import Project
    from server.prompts import Prompts
    from server.runtime import Runtime
    from server.service import Service
    from server.tuning import Tuning

project_app = typer.Typer()
console = Console()
errors = Console(stderr=True)

Root = Annotated[Path, typer.Option("--root", "-r", help="the project's folder", file_okay=False)]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="also tell what is done step by step")]

METHODS = {"basic": "naive", "local": "graphrag_local", "global": "graphrag_global", "drift": "drift"}
"""GraphRAG's names of the ways to answer, and ours."""


class Method(str, Enum):
    """How files are read for the graph."""

    STANDARD = "standard"
    FAST = "fast"


class Selection(str, Enum):
    """Which chunks a model is shown."""

    RANDOM = "random"
    TOP = "top"
    ALL = "all"
    AUTO = "auto"


class Language(str, Enum):
    """Languages that there are prompts in."""

    ZH = "zh"
    EN = "en"


Reading = Annotated[
    Method | None,
    typer.Option("--method", "-m", help="standard: with the language model of settings.yaml; fast: by rules, without "
                 "one; default: as graph_extractor in settings.yaml says"),
]  # fmt: skip


@project_app.command("init")
def init(
    root: Root = Path(),
    force: Annotated[bool, typer.Option("--force", "-f", help="overwrite settings.yaml, .env and prompts")] = False,
    model: Annotated[str, typer.Option("--model", "-m", help="a language model; default: none")] = "",
    base_url: Annotated[str | None, typer.Option(help="its OpenAI-compatible server")] = None,
) -> None:
    """Make a project: settings.yaml, .env, prompts/ and input/. 新建项目。"""
    from server.project import KEY, Project

    project = Project.create(root, force=force, model=model, base_url=base_url)
    key = f"，密钥写入 / put the key of {model} into {project.keys_file} ({KEY})" if model else ""
    console.print(
        f"已新建项目 / made a project in {project.root}{key}\n"
        f"文件放入 / put files into {project.input}\n"
        f"然后 / then: zhiku index --root {root}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


@project_app.command("index")
def index(
    root: Root = Path(),
    method: Reading = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only tell what would be done, and what it costs")] = False,
    verbose: Verbose = False,
) -> None:
    """Read the files in input/ and build their graph; what was done before is not done again. 构建索引与图谱。"""
    from server.project import Project

    project = Project.at(root)
    if dry_run:
        with project.opened(for_a_look=True) as runtime:
            _print_plan(runtime, project, method)
        return
    _index(project, method, verbose=verbose)


@project_app.command("update")
def update(root: Root = Path(), method: Reading = None, verbose: Verbose = False) -> None:
    """Follow what is new, changed or gone in input/ of a project that was indexed before. 更新索引与图谱。"""
    from server.project import Project

    _index(_indexed(Project.at(root)), method, verbose=verbose)


def _indexed(project: Project) -> Project:
    if not project.is_indexed:
        raise _not_indexed(project)
    return project


def _not_indexed(project: Project) -> InvalidRequest:
    return InvalidRequest(
        f"项目尚未索引，请先运行 zhiku index --root {project.root} / "
        f"this project was not indexed yet: run zhiku index --root {project.root} first"
    )


def _index(project: Project, method: Method | None, *, verbose: bool) -> None:
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with project.opened() as runtime:
        given = _reading(runtime.service.settings, method)
        if project.knowledge_base(runtime) is None:
            ensure_kb(project.label, "graph", None)
        service = _opened(project, runtime)
        failed = _follow(runtime, service, project, given)
        reasons = [f"{file}: {reason}" for file, reason in failed.items()]
        problems = [*reasons, *_problems(service)]
        print_stats(service)
    for problem in problems:
        errors.print(problem, style="red", markup=False)
    raise typer.Exit(1 if problems else 0)


def _reading(settings: Settings, method: Method | None) -> dict[str, Any]:
    """The graph options that a method stands for.

    Raises:
        ConfigurationError: it needs a language model, and there is none.
    """
    from server.graph.extractor import NLP
    from server.project import model_of

    if method is None:
        return {"extractor": settings.graph_extractor, "reports": settings.graph_reports}
    reader = NLP if method is Method.FAST else model_of(settings, "--method standard")
    return {"extractor": reader, "reports": reader}


def _opened(project: Project, runtime: Runtime) -> GraphKBService:
    service = project.knowledge_base(runtime)
    if service is None:
        raise _not_indexed(project)
    return service


def _follow(runtime: Runtime, service: GraphKBService, project: Project, given: Mapping[str, Any]) -> dict[str, str]:
    """Let the knowledge base hold what the folder holds, and build the graph; returns the reasons of files that
    failed."""
    from server.db import graphs
    from server.knowledge_base.graph_builds import queue_build
    from server.knowledge_base.manifest import compare

    extractors, context = runtime.service.extractors, runtime.service.context
    options = service.options().changed(**given)
    extractors.check(options)
    recipe = extractors.of(options).recipe
    with context.db.read() as sql:
        again = graphs.is_read_otherwise(sql, service.generation().id, recipe)
    service.set_options(given, recipe if again else None)
    service.retry_build()
    files = dict(found([project.input]))
    difference = compare(service, digests(files))
    with working(runtime):
        failed = {**difference.invalid, **sync(runtime, service.kb_name, files, difference, delete=True)}
        with context.db.write() as sql:  # also where all is read already: what follows from it may be missing
            queue_build(sql, context, service.kb(), again=True)
        runtime.service.runner.notify()
        watch_build(service)
    return failed


def _problems(service: GraphKBService) -> Iterator[str]:
    """Why the graph is not complete."""
    from server.db import graphs

    state, _, _, reason = service.build_state()
    if reason:
        yield reason
    if state.failed:
        with service.context.db.read() as sql:
            why = graphs.reasons(sql, service.generation().id, 3)
        yield (
            f"{state.failed} 个片段未能读入图谱，可再次运行 / {state.failed} chunks could not be read for the graph, "
            f"run it again to try once more: {'; '.join(why)}"
        )


def _print_plan(runtime: Runtime, project: Project, method: Method | None) -> None:
    """What indexing would do, and what the language model would cost."""
    from server.graph.extractor import NLP
    from server.knowledge_base.manifest import Difference, compare

    service, files = project.knowledge_base(runtime), dict(found([project.input]))
    difference = compare(service, digests(files)) if service else Difference(upload=list(files))
    given = _reading(runtime.service.settings, method)
    options = _options(runtime, service).changed(**given)
    runtime.service.extractors.check(options)
    fresh, failed = _fresh_sizes(runtime, service, files, difference)
    waiting = _waiting_sizes(runtime, service, options)
    sizes = (fresh[0] + waiting[0], fresh[1] + waiting[1], fresh[2] + waiting[2])
    estimate = runtime.service.extractors.estimate(options, sizes)
    table = Table("", f"{project.label} (--dry-run)")
    for label, value in {
        "步骤 steps": "读取 read → 切分 split → 向量 embed → 图谱 graph → 删除 delete",
        "图谱由谁读取 read by": options.extractor,
        "社区报告 reports by": options.reports or "–",
        "读取的文件 files to read": len(difference.upload) - len(failed),
        "未变的文件 unchanged files": len(difference.unchanged),
        "删除的文件 files to delete": len(difference.delete),
        "读入图谱的片段 chunks for the graph": estimate.chunks,
        "字符 characters": estimate.characters,
        "调用 calls": estimate.calls,
        "输入词元 tokens in": estimate.tokens_in,
        "输出词元 tokens out": estimate.tokens_out,
        "费用 cost": "未知（模型未设价格）unknown, set price_in and price_out" if estimate.cost is None
                     else f"{estimate.cost:.4f}",
    }.items():  # fmt: skip
        table.add_row(label, str(value))
    console.print(table)
    if options.reports not in ("", NLP):
        console.print("社区报告另计，每个社区约一次调用 / reports come on top, about a call for each community")
    for name, reason in {**difference.invalid, **failed}.items():
        errors.print(f"{name}: {reason}", style="red", markup=False)


def _options(runtime: Runtime, service: GraphKBService | None) -> GraphOptions:
    from server.domain import GraphOptions

    if service is not None:
        return service.options()
    settings = runtime.service.settings
    return GraphOptions(
        settings.graph_extractor, tuple(settings.graph_entity_types), settings.graph_gleanings,
        claims=settings.graph_claims,
    )  # fmt: skip


def _fresh_sizes(
    runtime: Runtime, service: GraphKBService | None, files: Mapping[str, Path], difference: Difference
) -> tuple[tuple[int, int, int], dict[str, str]]:
    """((chunks, characters, Chinese characters) of files that are to be read, the reasons of those that cannot be)."""
    from server.errors import LoadError
    from server.retrieval.analysis import language

    context = runtime.service.context
    options = service.split_options() if service else context.split_options
    model = service.generation().embed_model if service else runtime.service.settings.default_embed_model
    chunks = characters = chinese = 0
    failed: dict[str, str] = {}
    for name in difference.upload:
        try:
            for chunk in context.pipeline.preview(files[name], name, options, model):
                chunks, characters = chunks + 1, characters + len(chunk.text)
                chinese += len(chunk.text) if language(chunk.text) == "zh" else 0
        except LoadError as error:
            failed[name] = error.message
    return (chunks, characters, chinese), failed


def _waiting_sizes(runtime: Runtime, service: GraphKBService | None, options: GraphOptions) -> tuple[int, int, int]:
    """The same of chunks that are there and not in the graph yet, or not in the way that is wanted."""
    from server.db import graphs

    if service is None:
        return 0, 0, 0
    recipe = runtime.service.extractors.of(options).recipe
    with runtime.service.context.db.read() as sql:
        again = graphs.is_read_otherwise(sql, service.generation().id, recipe)
    return service.sizes(again=again)


@project_app.command("query")
def query(
    question: Annotated[str, typer.Argument(help="问题 / the question")],
    root: Root = Path(),
    method: Annotated[
        str,
        typer.Option("--method", "-m", help="local (entities), global (reports of communities), drift (both, step by "
                     "step), basic (text search), or ppr, hybrid, mix"),
    ] = "local",
    community_level: Annotated[
        int, typer.Option(min=0, help="with global and drift: the level of communities, 0 = the widest")
    ] = 2,
    dynamic: Annotated[
        bool, typer.Option("--dynamic-community-selection/--no-dynamic-selection", help="with global: let the language "
                           "model choose reports, from the widest down to that level")
    ] = False,
    response_type: Annotated[
        str, typer.Option(help="what the answer should look like (\"a list of three points\"); told to the language "
                          "model, without effect where answers are quoted")
    ] = "",
    streaming: Annotated[bool, typer.Option("--streaming/--no-streaming", help="show the answer as it comes")] = True,
    kb: Annotated[str | None, typer.Option("--kb", help="ask this knowledge base of a server in place of a "
                                           "project")] = None,
    data_dir: DataDir = None,
) -> None:  # fmt: skip
    """Answer a question from a project, with sources; without a language model by quoting. 提问。"""
    from server.chat.parts import Asked
    from server.domain import SearchOptions
    from server.models.chat import Message

    if data_dir is not None and kb is None:
        raise InvalidRequest("--data-dir 需要与 --kb 一起使用 / --data-dir goes with --kb")
    options = SearchOptions(mode=_mode_of(method), community_level=community_level, dynamic_selection=dynamic)
    told = [Message("system", f"回答的形式 / form of the answer: {response_type}")] if response_type else []
    asked = Asked(question, history=told)
    with _asked_of(root, kb, data_dir) as (runtime, service):
        runtime.service.chat.check(asked)
        asyncio.run(_answer(runtime, service, asked, options, streaming=streaming))


def _mode_of(method: str) -> str:
    from server.graph.search import GRAPH_MODES

    mode = METHODS.get(method, method)
    if mode not in (*METHODS.values(), *GRAPH_MODES):
        known = dict.fromkeys([*METHODS, *GRAPH_MODES])
        raise InvalidRequest(f"--method 应为 / --method must be one of: {', '.join(known)}")
    return mode


@contextmanager
def _asked_of(root: Path, kb: str | None, data_dir: Path | None) -> Iterator[tuple[Runtime, KBService]]:
    """The knowledge base of a project, or one of a server's data root by its name."""
    if kb is not None:
        from server.knowledge_base.operations import service_of

        with opened_runtime(data_dir) as runtime:
            yield runtime, service_of(kb)
        return
    from server.project import Project

    project = _indexed(Project.at(root))
    with project.opened() as runtime:
        yield runtime, _opened(project, runtime)


async def _answer(
    runtime: Runtime, service: KBService, asked: Asked, options: SearchOptions, *, streaming: bool
) -> None:
    from server.chat.parts import Begun, Done, Said, Step

    parts, begun = runtime.service, None
    try:
        async for part in parts.chat.answer(asked, _finder(parts, service, asked, options), service.closeness):
            if isinstance(part, Begun):
                begun = part
            elif isinstance(part, Step):
                shown = f"{part.name} {part.done}/{part.total} {'; '.join(part.asked)}"
                errors.print(shown, style="dim", markup=False)
            elif isinstance(part, Said) and streaming:
                typer.echo(part.text, nl=False)
            elif isinstance(part, Done):
                typer.echo("" if streaming else part.text)
                _print_sources(begun, part)
    finally:
        await runtime.models.close()
        await parts.web.close()
        await parts.searcher.close()
        parts.chat.history.close()


def _finder(parts: Service, service: KBService, asked: Asked, options: SearchOptions) -> Finder:
    """Finds passages in a knowledge base; where a mode asks a language model on the way, the one that answers."""
    from server.chat.deep import DEEP_MODES, DeepSearch, Tell
    from server.knowledge_base.backends.graph import GraphKBService

    model = parts.chat.model_of(asked) if options.mode in DEEP_MODES else None

    async def find(question: str, tell: Tell) -> Found:
        with_words = await parts.keywords.added(options, question)
        if model is not None and isinstance(service, GraphKBService):
            return await DeepSearch(service, model, parts.chat.prompts, parts.gates, tell).find(question, with_words)
        return await parts.searcher.search([service], question, with_words)

    return find


def _print_sources(begun: Begun | None, done: Done) -> None:
    """Where the answer is from: the sources that it names, or all where it names none. A source is marked whose text
    does not bear out what is said with its number."""
    cited = {citation.number for citation in done.citations}
    doubtful = {citation.number for citation in done.citations if not citation.verified}
    numbered = list(enumerate(begun.sources if begun else (), start=1))
    if numbered:
        typer.echo("\n来源 / sources:")
    for number, hit in numbered:
        if not cited or number in cited:
            place = [hit.file_name, f"p.{hit.page}" if hit.page else "", " › ".join(hit.headings)]
            mark = "(未证实 / not borne out)" if number in doubtful else ""
            typer.echo(f"[{number}] {'  '.join(filter(None, [*place, mark]))}")


@project_app.command("prompt-tune")
def prompt_tune(
    root: Root = Path(),
    selection_method: Annotated[
        Selection, typer.Option(help="chunks to show to the model: random, the first (top), all, or the most typical "
                                "ones (auto)")
    ] = Selection.RANDOM,
    limit: Annotated[int, typer.Option(min=1, help="so many chunks, where not all are shown")] = 15,
    domain: Annotated[str, typer.Option(help="what the files are about; default: the model says it")] = "",
    language: Annotated[
        Language | None, typer.Option(help="the language whose prompts are fitted; default: that of most chunks")
    ] = None,
    discover_entity_types: Annotated[
        bool, typer.Option(help="also let the model name what entities may be")
    ] = True,
    output: Annotated[
        Path | None, typer.Option(help="write the prompts here; default: prompts/ of the project, which the next "
                                  "index reads")
    ] = None,
) -> None:  # fmt: skip
    """Fit the prompts of the graph to what the files are about, with one call of the model. 调整提示词。"""
    from server.project import Project, model_of
    from server.prompts import Prompts
    from server.tuning import sampled, tune

    project = _indexed(Project.at(root))
    with project.opened() as runtime:
        settings = runtime.service.settings
        model = runtime.models.get(model_of(settings, "prompt-tune"))
        chunks = sampled(_opened(project, runtime), selection_method.value, limit)
        prompts = Prompts.load(settings)

        async def ask() -> Tuning:
            try:
                return await tune(model, prompts, chunks, domain=domain, language=language.value if language else "")
            finally:
                await runtime.models.close()

        tuning = asyncio.run(ask())
        _write_prompts(prompts, tuning, output or project.prompts)
    for label, value in {"领域 domain": tuning.domain, "语言 language": tuning.language, "角色 persona": tuning.persona,
                         "实体类型 entity types": ", ".join(tuning.entity_types)}.items():  # fmt: skip
        console.print(f"{label}: {value}", markup=False, highlight=False)
    if discover_entity_types and tuning.entity_types and output is None:
        project.set_entity_types(tuning.entity_types)


def _write_prompts(prompts: Prompts, tuning: Tuning, folder: Path) -> None:
    from server.tuning import TUNED, tuned

    for kind in TUNED:
        if prompts.names(kind):
            path = folder / kind / f"default.{tuning.language}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(tuned(prompts.text(kind, "default", tuning.language), tuning) + "\n", encoding="utf-8")
            console.print(str(path), markup=False, highlight=False, soft_wrap=True)
