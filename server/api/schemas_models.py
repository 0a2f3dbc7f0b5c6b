"""Bodies of the routes for models and tools."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from server.api.schemas import Body
from server.api.schemas_chat import ChatFields


class ModelName(Body):
    """A model."""

    model_name: str = Field(description="its name")


class ChangeModel(ModelName):
    """One model for another."""

    new_model_name: str = Field(description="the model to use from now on")


class ListConfigModels(Body):
    """Types of models."""

    types: list[str] = Field(default_factory=lambda: ["local", "online"], description="local, online")


class Completion(ChatFields):
    """A text to continue."""

    echo: bool = Field(default=False, description="repeat the text before its continuation")
    max_tokens: int | None = Field(default=1024, description="longest continuation; 0 or less = as configured")


class EmbedTexts(Body):
    """Texts to embed."""

    texts: list[str] = Field(max_length=2048, description="the texts")
    embed_model: str | None = Field(default=None, description="a configured embedding model; default as configured")
    to_query: bool = Field(default=False, description="embed them as questions, not as passages")


class ToolCall(Body):
    """A call of a tool."""

    name: str = Field(description="a name as GET /tools shows it", examples=["calculate"])
    tool_input: dict[str, Any] = Field(default_factory=dict, description="what it takes")
