"""The chat models that the settings name."""

from __future__ import annotations

from collections.abc import Sequence

from configs import ChatModelSettings
from configs.settings import EXTRACTIVE
from server.errors import ConfigurationError
from server.models.chat import ChatModel
from server.models.langchain_chat import LangChainChat
from server.models.openai_chat import OpenAIChat


class ChatModels:
    """The configured models by name; clients connect when first asked. A model can be stopped until the next start."""

    def __init__(self, configured: Sequence[ChatModelSettings]) -> None:
        self._models: dict[str, ChatModel] = {
            settings.name: (OpenAIChat if settings.provider == "openai" else LangChainChat)(settings)
            for settings in configured
        }
        self._stopped: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The names of all models in use, the default first."""
        return [name for name in self._models if name not in self._stopped]

    @property
    def default(self) -> str:
        """Name of the model that answers when the client names none; the one that quotes when no other is in use."""
        return next(iter(self.names), EXTRACTIVE)

    @property
    def configured(self) -> list[ChatModelSettings]:
        """All models, whether in use or stopped."""
        return [model.settings for model in self._models.values()]

    def get(self, name: str) -> ChatModel:
        """The model of that name.

        Raises:
            ConfigurationError: no such model is configured, or it was stopped.
        """
        if name not in self.names:
            known = ", ".join(self.names) or "无 / none"
            reason = ("已停止", "is stopped") if name in self._stopped else ("未配置", "is not configured")
            raise ConfigurationError(
                f"模型 {name} {reason[0]}，可用：{known}（见 configs/model.yaml）/ "
                f"model {name} {reason[1]}, there are: {known} (see configs/model.yaml)"
            )
        return self._models[name]

    def stop(self, name: str) -> None:
        """Take a model out of use."""
        self.get(name)
        self._stopped.add(name)

    def start(self, name: str) -> None:
        """Take a model into use again, before all others: it is the default now.

        Raises:
            ConfigurationError: no such model is configured.
        """
        if name not in self._models:
            self.get(name)
        self._stopped.discard(name)
        self._models = {name: self._models[name], **self._models}

    def warm(self) -> None:
        """Load what the first question would wait for."""
        for model in self._models.values():
            model.warm()

    async def close(self) -> None:
        """Close all connections."""
        for model in self._models.values():
            await model.close()
