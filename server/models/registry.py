"""The embedding models that the settings name, and the embedded one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from configs import EmbeddingModelSettings, Settings
from configs.settings import EMBEDDED
from server.models.embeddings import EmbeddingModel, EmbeddingModels
from server.models.transform import EmbeddingTransform


def embedding_models(settings: Settings) -> EmbeddingModels:
    """All models by name; nothing is loaded yet."""
    loaders: dict[str, Callable[[], EmbeddingModel]] = {
        EMBEDDED: partial(_embedded, settings.data_dir.resolve() / "models", settings.embed_threads)
    }
    loaders |= {model.name: partial(_configured, model) for model in settings.embedding_models}
    return EmbeddingModels(loaders)


def _embedded(directory: Path, threads: int) -> EmbeddingModel:
    from server.models.e5 import E5Model
    from server.models.pool import LocalEmbedding

    return LocalEmbedding(E5Model(directory), threads)


def _configured(settings: EmbeddingModelSettings) -> EmbeddingModel:
    if settings.provider == "fake":
        from server.models.fake import FakeEmbedding

        options: dict[str, Any] = settings.options
        return FakeEmbedding(settings.name, **options)
    from server.models.remote import LangChainEmbedding, OpenAIEmbedding

    return (OpenAIEmbedding if settings.provider == "openai" else LangChainEmbedding)(settings)


def default_transform(model_name: str) -> EmbeddingTransform:
    """How vectors of a model are compared before a knowledge base has vectors enough of its own."""
    return EmbeddingTransform.shipped() if model_name == EMBEDDED else EmbeddingTransform.identity()
