"""The extractors that the settings allow, and the models behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from configs import Settings
from server.domain import GraphOptions
from server.graph.extractor import NLP, Extractor, NLPExtractor
from server.graph.llm import LLMExtractor
from server.models.background import Background
from server.models.chat import ChatModel, Message
from server.models.chat_models import ChatModels
from server.prompts import Prompts

SUMMARY = "graph_summary"
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
        if options.extractor != NLP:
            self._models.get(options.extractor)

    def of(self, options: GraphOptions) -> Extractor:
        """The extractor of a knowledge base.

        Raises:
            ConfigurationError: no such model is configured.
        """
        if options.extractor == NLP:
            return NLPExtractor()
        model, concurrency = self._models.get(options.extractor), self._settings.graph_concurrency
        return LLMExtractor(model, self._prompts, options, self._background, concurrency)

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

    def summary(self, options: GraphOptions, name: str, descriptions: Sequence[str], lang: str) -> tuple[str, int]:
        """(one text in place of many, tokens that it took).

        Raises:
            LLMError: the model failed.
        """
        model: ChatModel = self._models.get(options.extractor)
        listed = "\n".join(f"- {text}" for text in descriptions)
        prompt = self._prompts.render(
            SUMMARY, "default", lang, entity=name, words=str(_WORDS[lang]), descriptions=listed
        )
        reply = self._background.submit(model.reply([Message("user", prompt)])).result()
        return reply.text.strip(), sum(reply.usage)

    def close(self) -> None:
        """Close the models' connections."""
        self._background.close(self._models.close())
