"""Who writes reports of communities: nobody but the program, or a language model, many at a time."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from typing import NamedTuple

from server.domain import Report
from server.errors import LLMIncomplete, ZhikuError
from server.graph.material import Material
from server.graph.reports import SCHEMA, SELECTION, numbered, selected, written
from server.models.background import Background
from server.models.chat import ChatModel, Message
from server.prompts import Prompts
from server.retrieval.analysis import language

log = logging.getLogger(__name__)

REPORT = "graph_report"
_WARMER = 0.3
_WORTH = 3
"""Entities that are worth a call; what there is to say of fewer stands in a sentence or two."""
_REPAIR = {
    "zh": "这不是所要求的 JSON 对象。请只用完整的 JSON 对象重新回答，每个要点都给出来源编号。",
    "en": "That is not the JSON object that was asked for. Reply again with the whole object alone, sources included.",
}


class Written(NamedTuple):
    """A report and what it took."""

    material: Material
    report: Report
    calls: int = 0
    tokens: int = 0


class Reporter:
    """Writes reports without a model. `recipe` names the way; reports of another recipe are written anew."""

    recipe = SELECTION
    together = 100
    """Reports that are stored at a time."""

    def write(self, materials: Sequence[Material], texts: Mapping[int, str]) -> Iterator[Written]:
        """The reports of these communities, as they come."""
        for material in materials:
            yield Written(material, selected(material, texts, _language(material, texts)))


class LLMReporter(Reporter):
    """Writes reports with a model; where it gives none that can be read after one repair, the program writes it."""

    together = 1  # each was paid for

    def __init__(self, model: ChatModel, prompts: Prompts, background: Background, concurrency: int) -> None:
        self._model = model
        self._prompts = prompts
        self._background = background
        self._slots = asyncio.Semaphore(concurrency)
        texts = [prompts.text(REPORT, "default", lang) for lang in ("en", "zh")]
        digest = hashlib.sha256("\n".join([model.settings.model or model.name, *texts]).encode())
        self.recipe = f"llm-{digest.hexdigest()[:40]}"

    def write(self, materials: Sequence[Material], texts: Mapping[int, str]) -> Iterator[Written]:
        """The reports of these communities, as they come."""
        yield from super().write([one for one in materials if len(one.community.keys) < _WORTH], texts)
        worth = [one for one in materials if len(one.community.keys) >= _WORTH]
        asked = {self._background.submit(self._one(one, texts)): one for one in worth}
        try:
            for answer in as_completed(asked):
                yield answer.result()
        finally:  # a build that is stopped pays for no more
            for left in asked:
                left.cancel()

    async def _one(self, material: Material, texts: Mapping[int, str]) -> Written:
        sources, lang = numbered(material, texts), _language(material, texts)
        calls, tokens = 0, 0
        messages = [Message("user", self._prompts.render(REPORT, "default", lang, material=sources.text))]
        async with self._slots:
            for attempt in range(2):
                try:
                    reply = await self._model.reply(messages, _WARMER * attempt, SCHEMA)
                    calls, tokens = calls + 1, tokens + sum(reply.usage)
                    report = written(reply.text, material, sources)
                except LLMIncomplete:
                    messages = [*messages[:1], Message("assistant", "{}"), Message("user", _REPAIR[lang])]
                except ZhikuError as error:
                    log.warning("a report is put together without the language model: %s", error.message)
                    break
                else:
                    return Written(material, report, calls, tokens)
        return Written(material, selected(material, texts, lang, degraded=True), calls, tokens)


def _language(material: Material, texts: Mapping[int, str]) -> str:
    said = "".join(texts.get(chunk_id, "")[:200] for chunk_id in material.sources[:5]) or "".join(
        part.summary for part in material.reports[:3]
    )
    return "zh" if language(said or "".join(material.names)) == "zh" else "en"
