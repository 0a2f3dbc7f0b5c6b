"""Prompt templates: text files by kind of chat, name and language, with named slots.

`configs/prompts/<kind>/<name>.<language>.txt`, or `<name>.txt` for all languages. The files of the operator's
configuration folder win over the shipped ones, and `prompt_templates` in the settings wins over both. Slots are
jinja2's `{{ question }}`; what fills them is never evaluated, whatever braces it holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from configs import Settings
from configs.settings import CONFIG_DIR
from server.errors import ConfigurationError, InvalidRequest

_ENVIRONMENT = SandboxedEnvironment(undefined=StrictUndefined, autoescape=False)


@lru_cache(maxsize=512)
def _template(text: str) -> Template:
    """Compiled once, not for every question."""
    return _ENVIRONMENT.from_string(text)


class Prompts:
    """The configured templates."""

    def __init__(self, templates: Mapping[str, Mapping[str, str]]) -> None:
        self._templates = templates

    @classmethod
    def load(cls, settings: Settings) -> Prompts:
        """Read all templates.

        Raises:
            ConfigurationError: one is broken.
        """
        folders = dict.fromkeys([CONFIG_DIR, Path(os.environ.get("ZHIKU_CONFIG_DIR", CONFIG_DIR))])
        found: dict[str, dict[str, str]] = {}
        for kind, name, text in _files(folder / "prompts" for folder in folders):
            found.setdefault(kind, {})[name] = text
        for kind, templates in settings.prompt_templates.items():
            found[kind] = _overridden(found.get(kind, {}), templates)
        for kind, templates in found.items():
            for name, text in templates.items():
                _check(kind, name, text)
        return cls(found)

    def names(self, kind: str) -> list[str]:
        """Names of the templates of a kind, each once whatever its languages."""
        return list(dict.fromkeys(name.partition(".")[0] for name in self._templates.get(kind, ())))

    def kinds(self) -> dict[str, dict[str, str]]:
        """All templates, in the language that comes first."""
        return {kind: {name: self.text(kind, name, "zh") for name in self.names(kind)} for kind in self._templates}

    def text(self, kind: str, name: str, language: str) -> str:
        """A template as it is written; the English one where a language has none of its own.

        Raises:
            InvalidRequest: there is no template of that name.
        """
        known = self._templates.get(kind, {})
        for candidate in (f"{name}.{language}", name, f"{name}.en", f"{name}.zh"):
            if candidate in known and "." not in name:
                return known[candidate]
        raise InvalidRequest(
            f"没有提示模板 {name} / there is no prompt template {name}; 可用 / there are: {', '.join(self.names(kind))}"
        )

    def render(self, kind: str, name: str, language: str, **values: str) -> str:
        """A template with its values.

        Raises:
            InvalidRequest: there is no template of that name.
            ConfigurationError: the template asks for something that this kind of chat does not have.
        """
        try:
            return _template(self.text(kind, name, language)).render(**values)
        except TemplateError as error:
            raise ConfigurationError(f"提示模板 {kind}.{name} 有误 / prompt template {kind}.{name}: {error}") from None


def _files(folders: Iterable[Path]) -> Iterable[tuple[str, str, str]]:
    """(kind, name with its language, text) of all template files."""
    for folder in folders:
        for path in sorted(folder.glob("*/*.txt")):
            yield path.parent.name, path.stem, path.read_text(encoding="utf-8").removesuffix("\n")


def _overridden(shipped: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """An operator's template without a language stands for all languages."""
    kept = {name: text for name, text in shipped.items() if name.partition(".")[0] not in own}
    return {**kept, **own}


def _check(kind: str, name: str, text: str) -> None:
    try:
        _template(text)
    except TemplateError as error:
        raise ConfigurationError(f"提示模板有误 / prompt template {kind}.{name}: {error}") from None
