"""A project: a folder with files, settings, keys and prompts of its own, and one knowledge base made of them.

settings.yaml   settings, in place of those in configs/
.env            keys and ZHIKU_… variables; what the environment says goes first
input/          the files
prompts/        prompts to edit, in place of the shipped ones
output/         the data root
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from dotenv import dotenv_values

from configs import Settings
from configs.settings import CONFIG_DIR
from server.db import kbs
from server.errors import ConfigurationError, InvalidName, InvalidRequest
from server.graph.extractor import NLP
from server.knowledge_base.backends.graph import GraphKBService
from server.knowledge_base.factory import KBServiceFactory
from server.names import kb_label
from server.runtime import Runtime

KEY = "ZHIKU_LLM_API_KEY"
"""The environment variable that holds the key of the project's language model."""
_GRAPH_PROMPTS = "graph_*/*.txt"
_NO_MODEL = """\
llm_models: []
#  - name: qwen3
#    base_url: http://127.0.0.1:11434/v1   # any OpenAI-compatible server
#    api_key_env: {key}        # the key itself stands in .env
#    context_size: 32768
#    price_in: 0                           # of a million tokens, for estimates
#    price_out: 0
"""
_MODEL = """\
llm_models:
  - name: {model}
    base_url: {url}
    api_key_env: {key}        # the key itself stands in .env
#    context_size: 32768
#    price_in: 0                           # of a million tokens, for estimates
#    price_out: 0
"""
_SETTINGS = """\
# Settings of this project; docs/settings.md of Zhiku lists all of them. What is left out has its default.

# 语言模型。没有时按规则构建图谱，回答引用原文。
# Language models, the default first. With none the graph is read by rules, and answers are quoted from the files.
{models}
# 图谱 / The graph.
graph_extractor: {extractor}          # who reads the files: nlp (no language model), or the name of a model above
graph_reports: {extractor}            # who writes reports of communities: nlp, a model, or "" for nobody
graph_entity_types: []        # what entities may be; empty = person, organization, location …; prompt-tune fills it in
graph_gleanings: 0            # how often a model is asked for what it missed in a chunk
graph_claims: false           # also ask it for what is asserted of entities (covariates)
# graph_token_budget: 2000000 # tokens that the graph may take; default: any number
# graph_concurrency: 8        # calls at the same time

# 分段与检索 / Chunks and search. After a change of the chunks' size delete output/ and index again.
chunk_size: 250               # tokens of the embedding model
chunk_overlap: 50
top_k: 5                      # passages that an answer rests on
"""
_ENV = """\
# 本项目的密钥与环境变量 / Keys of this project, and settings as ZHIKU_… variables.
{key}=
"""
_ENTITY_TYPES = re.compile(r"^graph_entity_types:[^\n]*(?:\n(?:[ \t]+|-[ \t])[^\n]*)*", re.MULTILINE)


@dataclass(frozen=True)
class Project:
    """A project folder."""

    root: Path

    @classmethod
    def at(cls, root: Path) -> Project:
        """The project in a folder.

        Raises:
            InvalidRequest: there is none.
        """
        found = cls(root.resolve())
        if not found.settings_file.is_file():
            raise InvalidRequest(
                f"{root} 中没有 settings.yaml，请先运行 zhiku init --root {root} / "
                f"there is no settings.yaml in {root}: run zhiku init --root {root} first"
            )
        return found

    @classmethod
    def create(cls, root: Path, *, force: bool = False, model: str = "", base_url: str | None = None) -> Project:
        """Write the files of a new project; with a `model` it reads files for the graph.

        Raises:
            InvalidRequest: a file is there already, and is not to be overwritten.
        """
        project = cls(root.resolve())
        texts = {project.settings_file: _settings_text(model, base_url), project.keys_file: _ENV.format(key=KEY)}
        shipped = CONFIG_DIR / "prompts"
        for path in sorted(shipped.glob(_GRAPH_PROMPTS)):
            texts[project.prompts / path.relative_to(shipped)] = path.read_text(encoding="utf-8")
        taken = [path.relative_to(project.root).as_posix() for path in texts if path.exists()]
        if taken and not force:
            raise InvalidRequest(
                f"已存在 {', '.join(taken[:5])}，--force 会覆盖 / already there: {', '.join(taken[:5])}; "
                f"--force overwrites settings.yaml, .env and prompts"
            )
        project.input.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, text, private=path == project.keys_file)
        return project

    @property
    def settings_file(self) -> Path:
        """Its settings."""
        return self.root / "settings.yaml"

    @property
    def keys_file(self) -> Path:
        """Its keys."""
        return self.root / ".env"

    @property
    def input(self) -> Path:
        """Its files."""
        return self.root / "input"

    @property
    def prompts(self) -> Path:
        """Its prompts."""
        return self.root / "prompts"

    @property
    def output(self) -> Path:
        """Its data root."""
        return self.root / "output"

    @property
    def is_indexed(self) -> bool:
        """Whether indexing has begun before; the knowledge base may not be there yet."""
        return (self.output / "zhiku.db").is_file()

    @property
    def label(self) -> str:
        """The name of its knowledge base when it is made."""
        try:
            return kb_label(self.root.name) or "project"
        except InvalidName:
            return "project"

    @contextmanager
    def opened(self, *, for_a_look: bool = False) -> Iterator[Runtime]:
        """The parts of the service with the settings of the project; `for_a_look` leaves one that was not indexed yet
        as it is."""
        with ExitStack() as stack:
            stack.enter_context(self._environment())
            output = self.output
            if for_a_look and not self.is_indexed:
                output = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            # what a server's environment says of its data is not meant for a project
            runtime = Runtime.build(Settings(data_dir=output, database_url=f"sqlite:///{output / 'zhiku.db'}"))
            stack.callback(runtime.service.context.close)
            stack.callback(runtime.service.extractors.close)
            yield runtime

    @contextmanager
    def _environment(self) -> Iterator[None]:
        """The project's variables, for as long as it is open: keys of models are read when they are first needed."""
        found = dotenv_values(self.keys_file, interpolate=False) if self.keys_file.is_file() else {}
        own = {name: value for name, value in found.items() if value and name not in os.environ}
        own["ZHIKU_CONFIG_DIR"] = str(self.root)
        before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def knowledge_base(self, runtime: Runtime) -> GraphKBService | None:
        """The knowledge base of an open project, whatever the folder was called when it was made; None before that.

        Raises:
            ConfigurationError: it has no graph.
        """
        with runtime.service.context.db.read() as sql:
            known = kbs.list_all(sql)
        service = KBServiceFactory.get_service_of(known[0]) if known else None
        if service is not None and not isinstance(service, GraphKBService):
            raise ConfigurationError(f"{self.output} 中的知识库没有图谱 / the knowledge base in it has no graph")
        return service

    def set_entity_types(self, types: Sequence[str]) -> None:
        """Write what entities may be into the settings; all else there stays as it is.

        Raises:
            ConfigurationError: the settings are written in a way that this cannot change.
        """
        text = self.settings_file.read_text(encoding="utf-8")
        line = f"graph_entity_types: {json.dumps(list(types), ensure_ascii=False)}"
        changed, count = _ENTITY_TYPES.subn(lambda _: line, text)
        if not count:
            changed = f"{text.rstrip()}\n\n{line}\n"
        expected = {**(yaml.safe_load(text) or {}), "graph_entity_types": list(types)}
        if yaml.safe_load(changed) != expected:
            raise ConfigurationError(f"请在 settings.yaml 中写入 / write this into settings.yaml: {line}")
        _write(self.settings_file, changed)


def model_of(settings: Settings, purpose: str) -> str:
    """The language model that reads files.

    Raises:
        ConfigurationError: the settings name none.
    """
    if settings.graph_extractor != NLP:
        return settings.graph_extractor
    if settings.llm_models:
        return settings.llm_models[0].name
    raise ConfigurationError(
        f"{purpose} 需要语言模型：请在 settings.yaml 的 llm_models 中配置（密钥写入 .env 的 {KEY}）/ {purpose} needs a "
        f"language model: name one under llm_models in settings.yaml, and put its key into .env as {KEY}"
    )


def _settings_text(model: str, base_url: str | None) -> str:
    if not model:
        return _SETTINGS.format(models=_NO_MODEL.format(key=KEY), extractor=NLP)
    name, url = json.dumps(model, ensure_ascii=False), json.dumps(base_url)
    return _SETTINGS.format(models=_MODEL.format(model=name, url=url, key=KEY), extractor=name)


def _write(path: Path, text: str, *, private: bool = False) -> None:
    """Write a file whole or not at all; a `private` one only its owner can read, from the first moment on."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644), "wb") as out:
        out.write(text.encode())
    part.replace(path)
