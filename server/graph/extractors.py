"""The extractors that the settings allow, and the models behind them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass

from configs import Settings
from server.domain import GraphOptions
from server.errors import ZhikuError
from server.graph.extractor import NLP, Extractor, NLPExtractor
from server.graph.llm import LLMExtractor
from server.graph.replies import cleaned
from server.graph.reporter import LLMReporter, Reporter
from server.models.background import Background
from server.models.chat import ChatModel, Message
from server.models.chat_models import ChatModels
from server.prompts import Prompts
from server.retrieval.analysis import language

log = logging.getLogger(__name__)

SUMMARY = "graph_summary"
Wanted = tuple[str, str, Sequence[str]]
"""An entity's key, its name, and what is said of it."""
_WORDS = {"en": 150, "zh": 300}


_TOKENS = {"zh": 0.8, "en": 0.25}
"""Tokens of a character; what models of today make of ordinary text."""
_REPLY = 1.0
"""Tokens of an answer for each token of text."""
_GLEANED = 0.3
"""Of that again, each time that a model is asked for more."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What reading chunks will take; `cost` is None where the model has no price."""

    chunks: int
    characters: int
    calls: int
    tokens_in: int
    tokens_out: int
    cost: float | None


class Extractors:
    """Hands out extractors. Their models are apart from those that answer clients, with slots of their own."""

    def __init__(self, settings: Settings, prompts: Prompts) -> None:
        self._settings = settings
        self._prompts = prompts
        self._models = ChatModels(settings.llm_models)
        self._background = Background()

    def check(self, options: GraphOptions) -> None:
        """Refuse options that cannot work.

        Raises:
            ConfigurationError: no such model is configured.
        """
        for name in (options.extractor, options.reports):
            if name not in (NLP, ""):
                self._models.get(name)

    def of(self, options: GraphOptions) -> Extractor:
        """The extractor of a knowledge base.

        Raises:
            ConfigurationError: no such model is configured.
        """
        if options.extractor == NLP:
            return NLPExtractor()
        model, concurrency = self._models.get(options.extractor), self._settings.graph_concurrency
        return LLMExtractor(model, self._prompts, options, self._background, concurrency)

    def reporter(self, options: GraphOptions) -> Reporter | None:
        """Who writes the reports of a knowledge base's communities; None for nobody.

        Raises:
            ConfigurationError: no such model is configured.
        """
        if not options.reports:
            return None
        if options.reports == NLP:
            return Reporter()
        model, concurrency = self._models.get(options.reports), self._settings.graph_concurrency
        return LLMReporter(model, self._prompts, self._background, concurrency)

    def estimate(self, options: GraphOptions, sizes: tuple[int, int, int]) -> Estimate:
        """What it would take to read so many chunks: (chunks, their characters, the Chinese ones among them)."""
        chunks, characters, chinese = sizes
        extractor = self.of(options)
        if not isinstance(extractor, LLMExtractor):
            return Estimate(chunks, characters, 0, 0, 0, 0.0)
        rounds, settings = 1 + options.gleanings, self._models.get(options.extractor).settings
        text = chinese * _TOKENS["zh"] + (characters - chinese) * _TOKENS["en"]
        reply = _REPLY * text
        lang = "zh" if chinese * 2 > characters else "en"
        instructions = chunks * len(extractor.instructions(lang)) * _TOKENS[lang]
        # what was found before is sent again with each further question
        tokens_in = int(rounds * (instructions + text) + reply * rounds * (rounds - 1) / 2)
        tokens_out = int(reply * (1 + _GLEANED * options.gleanings))
        priced = settings.price_in or settings.price_out
        cost = (tokens_in * settings.price_in + tokens_out * settings.price_out) / 1e6 if priced else None
        return Estimate(chunks, characters, chunks * rounds, tokens_in, tokens_out, cost)

    def summaries(self, options: GraphOptions, wanted: Sequence[Wanted]) -> Iterator[tuple[Wanted, str, int]]:
        """(what was wanted, one text in place of many, tokens that it took), as they come. Where the model fails there
        is none; some of the descriptions are shown then, and the next build asks again."""
        slots = asyncio.Semaphore(self._settings.graph_concurrency)
        asked = {self._background.submit(self._summary(options, one, slots)): one for one in wanted}
        try:
            for answer in as_completed(asked):
                try:
                    text, tokens = answer.result()
                except ZhikuError as error:
                    log.warning("no summary of an entity: %s", error.message)
                else:
                    yield asked[answer], text, tokens
        finally:  # a build that is stopped pays for no more
            for left in asked:
                left.cancel()

    async def _summary(self, options: GraphOptions, wanted: Wanted, slots: asyncio.Semaphore) -> tuple[str, int]:
        model: ChatModel = self._models.get(options.extractor)
        _, name, descriptions = wanted
        lang = "zh" if language("".join(descriptions)[:2000]) == "zh" else "en"
        listed = "\n".join(f"- {text}" for text in descriptions)
        prompt = self._prompts.render(
            SUMMARY, "default", lang, entity=name, words=str(_WORDS[lang]), descriptions=listed
        )
        async with slots:
            reply = await model.reply([Message("user", prompt)])
        return cleaned(reply.text), sum(reply.usage)

    def close(self) -> None:
        """Close the models' connections."""
        self._background.close(self._models.close())
