"""KBServiceFactory: how to get the service of a knowledge base."""

from __future__ import annotations

from enum import Enum
from importlib import import_module
from typing import ClassVar

from server.db import kbs
from server.domain import Generation, KnowledgeBase
from server.errors import ConfigurationError, InvalidRequest, MissingDependency
from server.knowledge_base.context import KBContext
from server.knowledge_base.service import KBService
from server.names import kb_label


class SupportedVSType(str, Enum):
    """Vector stores by the names that clients send."""

    FAISS = "faiss"
    MILVUS = "milvus"
    ZILLIZ = "zilliz"
    PG = "pg"
    CHROMA = "chroma"
    GRAPH = "graph"


BACKENDS: dict[SupportedVSType, str] = {
    SupportedVSType.FAISS: "server.knowledge_base.backends.faiss:FaissKBService",
    SupportedVSType.MILVUS: "server.knowledge_base.backends.milvus:MilvusKBService",
    SupportedVSType.ZILLIZ: "server.knowledge_base.backends.zilliz:ZillizKBService",
    SupportedVSType.PG: "server.knowledge_base.backends.pg:PgKBService",
    SupportedVSType.CHROMA: "server.knowledge_base.backends.chroma:ChromaKBService",
    SupportedVSType.GRAPH: "server.knowledge_base.backends.graph:GraphKBService",
}
"""Where each backend lives; its driver is imported when it is first used."""


def vs_type_of(name: str | SupportedVSType) -> SupportedVSType:
    """The store that a client means; case does not count, `default` is the default.

    Raises:
        InvalidRequest: there is no such store.
    """
    if isinstance(name, SupportedVSType):
        return name
    try:
        return SupportedVSType(name.strip().lower())
    except ValueError:
        known = ", ".join(member.value for member in SupportedVSType)
        raise InvalidRequest(
            f"不支持的向量库类型 {name}，可用 / unknown vector_store_type, there are: {known}"
        ) from None


class KBServiceFactory:
    """Static: call `bind` once at the start, then ask anywhere."""

    _context: ClassVar[KBContext | None] = None

    @classmethod
    def bind(cls, context: KBContext) -> None:
        """Use these parts for all services from now on."""
        cls._context = context

    @classmethod
    def context(cls) -> KBContext:
        """The parts in use.

        Raises:
            ConfigurationError: `bind` was not called.
        """
        if cls._context is None:
            raise ConfigurationError("KBServiceFactory.bind(context) has to be called first")
        return cls._context

    @staticmethod
    def get_service(
        kb_name: str,
        vector_store_type: str | SupportedVSType,
        embed_model: str | None = None,
        generation: Generation | None = None,
        found: KnowledgeBase | None = None,
    ) -> KBService:
        """A service for a knowledge base that exists or is to be made.

        Raises:
            InvalidName: the name cannot be one.
            InvalidRequest: there is no such store.
            MissingDependency: the store's driver is not installed.
        """
        kind = vs_type_of(vector_store_type)
        module, _, name = BACKENDS[kind].partition(":")
        try:
            backend: type[KBService] = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            raise MissingDependency(
                f"{kind.value} 需要安装驱动 / needs its driver: pip install 'zhiku[{kind.value}]' ({error.name})"
            ) from error
        context = KBServiceFactory.context()
        return backend(kb_name, embed_model, context=context, generation=generation, found=found)

    @staticmethod
    def get_service_by_name(kb_name: str, kind: str = "") -> KBService | None:
        """The service of a knowledge base, None when there is none of that name among those of a kind."""
        with KBServiceFactory.context().db.read() as sql:
            kb = kbs.find(sql, kb_label(kb_name), kind)
        return KBServiceFactory.get_service_of(kb) if kb else None

    @staticmethod
    def get_service_of(kb: KnowledgeBase) -> KBService:
        """The service of a knowledge base whose row was just read."""
        return KBServiceFactory.get_service(kb.name, kb.generation.vs_type, kb.generation.embed_model, found=kb)

    @staticmethod
    def get_service_of_generation(kb_name: str, generation: Generation) -> KBService:
        """The service that works on one generation, whether searchers see it or not."""
        return KBServiceFactory.get_service(kb_name, generation.vs_type, generation.embed_model, generation)

    @staticmethod
    def get_default(kb_name: str) -> KBService:
        """A service in the default store."""
        return KBServiceFactory.get_service(kb_name, KBServiceFactory.context().settings.default_vs_type)
