"""Providers that only langchain-community has, among them several Chinese vendors: `provider: community:ChatTongyi`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from server.errors import ConfigurationError, MissingDependency

COMMUNITY = "community:"
"""Prefix of provider names that name a class of langchain-community."""


def community_class(kind: str, provider: str) -> Any:
    """The class that a provider names, from `langchain_community.<kind>`.

    Raises:
        MissingDependency: the package is not installed.
        ConfigurationError: it has no class of that name.
    """
    name = provider.removeprefix(COMMUNITY)
    try:
        module = import_module(f"langchain_community.{kind}")
    except ModuleNotFoundError as error:
        raise MissingDependency(f"{provider} 需要安装 / needs: pip install 'zhiku[community]'") from error
    if not name.isidentifier() or name.startswith("_") or not hasattr(module, name):
        raise ConfigurationError(f"langchain_community.{kind} 中没有 {name} / has no class {name}")
    return getattr(module, name)
