"""Chat models of all providers that LangChain knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from configs import ChatModelSettings
from server.errors import ConfigurationError, LLMError, MissingDependency
from server.models.chat import ChatModel, Message, Token
from server.models.community import COMMUNITY, community_class

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


class LangChainChat(ChatModel):
    """Any provider that LangChain's `init_chat_model` knows, by configuration."""

    def __init__(self, settings: ChatModelSettings) -> None:
        super().__init__(settings)
        self._model: BaseChatModel | None = None

    def langchain(self) -> BaseChatModel:
        """The model, made when it is first asked for."""
        if self._model is None:
            self._model = langchain_model(self.settings)
        return self._model

    async def tokens(
        self, messages: Sequence[Message], temperature: float, max_tokens: int | None, options: Mapping[str, Any]
    ) -> AsyncGenerator[Token]:
        """Parts of the reply."""
        limit = max_tokens or self.settings.max_output_tokens
        made = await asyncio.to_thread(self.langchain)  # the provider's package takes long to import
        model = made.bind(temperature=temperature, max_tokens=limit, **options)
        turns: list[Any] = [(message.role, message.content) for message in messages]
        try:
            async for chunk in model.astream(turns):
                meta = chunk.response_metadata
                thinking = chunk.additional_kwargs.get("reasoning_content") or ""
                yield Token(str(chunk.text), thinking, meta.get("finish_reason") or meta.get("stop_reason"))
        except Exception as error:
            # every provider's package has exceptions of its own
            raise LLMError(f"模型 {self.name} 出错 / {self.name} failed: {type(error).__name__}") from error
        yield Token(finish="stop")


def langchain_model(settings: ChatModelSettings) -> BaseChatModel:
    """A provider's class in LangChain, by configuration.

    Raises:
        MissingDependency: its package is not installed; ConfigurationError: it refuses the settings.
    """
    from langchain.chat_models import init_chat_model

    name, options = settings.model or settings.name, settings.arguments()
    try:
        if settings.provider.startswith(COMMUNITY):
            made: BaseChatModel = community_class("chat_models", settings.provider)(model=name, **options)
            return made
        retries, timeout = settings.max_retries, settings.timeout
        if settings.provider == "openai":
            options.setdefault("api_key", "none")
        found: BaseChatModel = init_chat_model(
            name, model_provider=settings.provider, max_retries=retries, timeout=timeout, **options
        )
        return found
    except ImportError as error:
        raise MissingDependency(f"{settings.provider} 需要安装 / needs a package: {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"模型 {settings.name} 的配置有误 / model {settings.name}: {error}") from error
