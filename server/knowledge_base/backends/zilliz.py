"""Vectors in Zilliz Cloud, which is Milvus as a service."""

from __future__ import annotations

from pymilvus import MilvusClient
from typing_extensions import override

from configs.settings import MilvusSettings
from server.errors import ConfigurationError
from server.knowledge_base.backends.milvus import MilvusKBService


class ZillizKBService(MilvusKBService):
    """A knowledge base in Zilliz Cloud: Milvus with its own URI and token."""

    @override
    def vs_type(self) -> str:
        return "zilliz"

    @override
    def _settings(self) -> MilvusSettings:
        return self.context.settings.zilliz

    @override
    def _open(self) -> MilvusClient:
        if not self._settings().uri:
            raise ConfigurationError(
                "请按 Zilliz 控制台设置 / set, as the console of Zilliz shows them: zilliz.uri and zilliz.token "
                "(ZHIKU_ZILLIZ__URI, ZHIKU_ZILLIZ__TOKEN)"
            )
        return super()._open()
