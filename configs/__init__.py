"""Typed settings: defaults in code, then `configs/*.yaml`, then the environment (`ZHIKU_…`)."""

from configs.settings import (
    ChatModelSettings,
    EmbeddingModelSettings,
    PromptTemplates,
    RerankerSettings,
    SearchEngineSettings,
    Settings,
)

__all__ = [
    "ChatModelSettings",
    "EmbeddingModelSettings",
    "PromptTemplates",
    "RerankerSettings",
    "SearchEngineSettings",
    "Settings",
]
