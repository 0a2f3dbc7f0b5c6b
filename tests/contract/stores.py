"""The stores that the conformance suite runs over, each on its real engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs import Settings
from server.knowledge_base.factory import SupportedVSType
from tests import engines
from tests.conftest import fake_settings

STORES = ("faiss", "graph", "chroma", "chroma-http", "pg", "milvus", "milvus-lite", "zilliz")
WITH_SERVER = ("chroma-http", "pg", "milvus")


@dataclass(frozen=True)
class Store:
    """A store under test: what clients call it, the settings that lead to it, and its server if it has one."""

    vs_type: SupportedVSType
    changes: dict[str, Any] = field(default_factory=dict)
    engine: engines.Engine | None = None

    def settings(self, folder: Path, **more: Any) -> Settings:
        return fake_settings(folder, **{"default_vs_type": self.vs_type.value, **self.changes, **more})


def store_of(name: str) -> Store:
    """A store by its name in STORES; skips the test when something is missing."""
    kind = SupportedVSType(name.split("-")[0])
    if name == "pg":
        return Store(kind, {"pg": {"url": engines.postgres_url()}}, engines.postgres())
    if name == "chroma-http":
        return Store(kind, {"chroma": {"url": engines.chroma().url}}, engines.chroma())
    if name == "milvus":
        return Store(kind, {"milvus": {"uri": engines.milvus().uri}}, engines.milvus())
    if name == "zilliz":  # what Zilliz Cloud offers is Milvus; its token is not looked at here
        return Store(kind, {"zilliz": {"uri": engines.milvus().uri, "token": "root:Milvus"}}, engines.milvus())
    engines.need(name, *{"chroma": ["chromadb"], "milvus-lite": ["pymilvus", "milvus_lite"]}.get(name, []))
    return Store(kind)
