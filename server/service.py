"""The parts of the running service, for whatever serves them: HTTP or the command line."""

from __future__ import annotations

from dataclasses import dataclass

from configs import Settings
from server.chat.agent import Agent
from server.chat.keywords import KeywordWriter
from server.chat.service import ChatService
from server.chat.summary import Summarizer
from server.graph.extractors import Extractors
from server.ingest.jobs import JobRunner
from server.knowledge_base.context import KBContext
from server.knowledge_base.gates import Gates
from server.knowledge_base.operations import Operations
from server.knowledge_base.search import Searcher
from server.knowledge_base.summaries import Summaries
from server.knowledge_base.temporary import TemporaryKBs
from server.knowledge_base.vector_stores import VectorStores
from server.web.search import WebSearch


@dataclass(frozen=True)
class Service:
    """All parts of the running service."""

    settings: Settings
    context: KBContext
    operations: Operations
    runner: JobRunner
    gates: Gates
    searcher: Searcher
    chat: ChatService
    agent: Agent
    web: WebSearch
    temp: TemporaryKBs
    summarizer: Summarizer
    summaries: Summaries
    vector_stores: VectorStores
    extractors: Extractors
    keywords: KeywordWriter
