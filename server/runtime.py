"""The one place that knows every concrete class: builds the parts, opens them, closes them."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from configs import Settings
from server.chat.agent import Agent
from server.chat.history import History
from server.chat.keywords import KeywordWriter
from server.chat.service import ChatService
from server.chat.summary import Summarizer
from server.chat.tools import Toolbox
from server.db import files, graphs, kbs
from server.db.session import Database
from server.domain import Hit, SearchOptions
from server.errors import ConfigurationError, ZhikuError
from server.graph.extractors import Extractors
from server.ingest.jobs import Handler, JobRunner
from server.ingest.splitters.factory import splitter
from server.knowledge_base.context import KBContext
from server.knowledge_base.expiry import drop_doomed, drop_expired
from server.knowledge_base.factory import KBServiceFactory, vs_type_of
from server.knowledge_base.gates import Gates
from server.knowledge_base.graph_builds import GRAPH, INGEST, GraphHandler, queue_build
from server.knowledge_base.moving import MOVE, MoveHandler
from server.knowledge_base.operations import IngestHandler, Operations, service_of
from server.knowledge_base.rebuild import REBUILD, RebuildHandler, drop_orphans
from server.knowledge_base.search import Searcher
from server.knowledge_base.summaries import Summaries
from server.knowledge_base.temporary import TemporaryKBs
from server.knowledge_base.vector_stores import VectorStores
from server.models.chat_models import ChatModels
from server.models.registry import default_transform, embedding_models
from server.prompts import Prompts
from server.retrieval.rerank import reranker_of
from server.service import Service
from server.web.search import WebSearch

log = logging.getLogger(__name__)

_CLEAN_EVERY = 300.0
"""Seconds between two looks for knowledge bases whose time is over."""


@dataclass(frozen=True)
class Runtime:
    """All parts, wired."""

    service: Service
    models: ChatModels

    @classmethod
    def build(cls, settings: Settings) -> Runtime:
        """Wire the parts and bring the database up to date; no worker runs yet."""
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        check(settings)
        db = Database(settings.sql_url, settings.database_connections)
        db.migrate()
        context = KBContext.build(settings, db, embedding_models(settings), default_transform)
        KBServiceFactory.bind(context)
        prompts = Prompts.load(settings)
        extractors = Extractors(settings, prompts)
        handlers: dict[str, Handler] = {
            INGEST: IngestHandler(context),
            REBUILD: RebuildHandler(context),
            MOVE: MoveHandler(context),
            GRAPH: GraphHandler(context, extractors),
        }
        runner = JobRunner(db, handlers, settings.ingest_workers)
        models = ChatModels(settings.llm_models)
        gates, web = Gates(), WebSearch(settings.search_engines)
        reranker = reranker_of(settings.reranker)
        searcher = Searcher(gates, settings.top_k, reranker, settings.rerank_candidates)
        operations = Operations(context, runner)
        near = context.closeness if context.closeness.calibrated else None
        chat = ChatService(settings, models, prompts, History(db), near)
        service = Service(
            settings=settings,
            context=context,
            operations=operations,
            runner=runner,
            gates=gates,
            searcher=searcher,
            chat=chat,
            agent=Agent(settings, chat, _toolbox(context, searcher, gates, web)),
            web=web,
            temp=TemporaryKBs(context),
            summarizer=Summarizer(models, prompts),
            summaries=Summaries(context, operations),
            vector_stores=VectorStores(context, operations),
            extractors=extractors,
            keywords=KeywordWriter(settings, models, prompts),
        )
        return cls(service, models)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings) -> AsyncIterator[Runtime]:
        """The running service."""
        runtime = await asyncio.to_thread(cls.build, settings)
        cleaner = None
        try:
            await asyncio.to_thread(runtime.start)
            cleaner = asyncio.create_task(runtime.clean())
            yield runtime
        finally:
            if cleaner is not None:
                cleaner.cancel()
            await runtime.models.close()
            await runtime.service.web.close()
            await runtime.service.searcher.close()
            await asyncio.to_thread(runtime.stop)

    def start(self) -> None:
        """Clear away what a crash left, and let the workers begin."""
        drop_expired(self.service.context)
        sweep(self.service.context)
        resume_builds(self.service.context)
        self.service.runner.start()
        threading.Thread(target=self.models.warm, name="warm", daemon=True).start()

    async def clean(self) -> None:
        """Delete from time to time what is kept for a while only."""
        while True:
            await asyncio.sleep(_CLEAN_EVERY)
            try:
                await asyncio.to_thread(drop_expired, self.service.context)
                await asyncio.to_thread(drop_doomed, self.service.context)
                await asyncio.to_thread(resume_builds, self.service.context)
                self.service.runner.notify()
            except (SQLAlchemyError, OSError, ZhikuError):
                log.exception("cannot delete what is over; trying again later")

    def stop(self) -> None:
        """Stop the workers, save the indexes, close the database."""
        self.service.chat.history.close()
        self.service.runner.stop()
        self.service.extractors.close()
        self.service.context.close()


def _toolbox(context: KBContext, searcher: Searcher, gates: Gates, web: WebSearch) -> Toolbox:
    """The agent's tools over this service."""

    async def search(name: str, query: str) -> list[Hit]:
        opened = await gates.run_free(lambda: service_of(name))
        return (await searcher.search([opened], query, SearchOptions())).hits

    def known() -> list[tuple[str, str]]:
        with context.db.read() as sql:
            return [(kb.name, kb.info) for kb in kbs.list_all(sql)]

    settings, engine = context.settings, context.settings.default_search_engine
    if not (settings.agent_web_search and web.is_usable(engine)):
        return Toolbox(search, known, None)
    find = web.finder(engine, settings.search_engine_top_k)

    async def on_the_web(query: str) -> list[Hit]:
        return (await find(query)).hits

    return Toolbox(search, known, on_the_web)


def check(settings: Settings) -> None:
    """Refuse settings that cannot work, and a data root that cannot be written to, before anything starts.

    Raises:
        ConfigurationError, InvalidRequest: the words say which setting.
    """
    vs_type_of(settings.default_vs_type)
    reranker_of(settings.reranker)
    splitter(settings.text_splitter, settings.chunk_size, settings.chunk_overlap)
    Prompts.load(settings)
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"无法创建数据目录 / cannot make the data root {settings.data_dir}: {error}") from None
    if not os.access(settings.data_dir, os.W_OK):
        raise ConfigurationError(f"数据目录不可写 / the data root cannot be written to: {settings.data_dir}")


def sweep(context: KBContext) -> None:
    """Delete what no row names: index folders, blobs and generations that a crash left behind."""
    folders = [path for root in (context.index_dir, context.files.root) if root.is_dir() for path in root.iterdir()]
    with context.db.read() as sql:  # after the look at the folders: one that is new has its row already
        present = kbs.list_all(sql, kind=None)
        known = {kb.id: {file.storage or "" for file in files.list_all(sql, kb.id)} for kb in present}
    for path in folders:
        number = path.name.removeprefix("kb")
        if not (number.isdigit() and int(number) in known):
            log.info("removing %s: its knowledge base is gone", path.name)
            shutil.rmtree(path, ignore_errors=True)
    for kb in present:
        context.files.sweep(kb.id, known[kb.id])
        drop_orphans(context, kb.id)
        _sweep_generations(context, kb.id)


def resume_builds(context: KBContext) -> None:
    """Go on with graphs that are not complete: the process may have died, or a language model been out of reach."""
    with context.db.read() as sql:
        behind = [kb for kb in kbs.list_all(sql, kind=None)
                  if kb.generation.has_graph and graphs.is_behind(sql, kb.generation.id)]  # fmt: skip
    for kb in behind:
        with context.db.write() as sql:
            queue_build(sql, context, kb)


def _sweep_generations(context: KBContext, kb_id: int) -> None:
    folder = context.directory(kb_id)
    present = list(folder.iterdir()) if folder.is_dir() else []
    with context.db.read() as sql:  # after the look at the folders, as above
        known = {context.directory(kb_id, number) for number in kbs.list_generation_ids(sql, kb_id)}
    for path in present:
        if path not in known:
            shutil.rmtree(path, ignore_errors=True)
