"""Summaries of long texts: by a language model, part by part and then the whole; or of their own best sentences."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from configs.settings import EXTRACTIVE
from server.chat.context import fenced
from server.models.chat import ChatModel, Message
from server.models.chat_models import ChatModels
from server.prompts import Prompts
from server.retrieval.analysis import language, terms
from server.retrieval.sentences import sentences
from server.tokens import estimate_tokens

NOTICE = {
    "zh": "（以下摘要由原文句子摘录而成，未使用语言模型。）",
    "en": "(This summary is made of the document's own sentences; no language model wrote it.)",
}
_MOST_SENTENCES = 6
_SHARE = 0.5
"""How much of a model's context a part of the document may take."""
_ALIKE = 0.6


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary, and those of the parts that it was made from."""

    text: str
    steps: tuple[str, ...] = ()


class Summarizer:
    """Map-reduce over the parts of a document."""

    def __init__(self, models: ChatModels, prompts: Prompts) -> None:
        self._models = models
        self._prompts = prompts

    async def summarize(
        self, texts: Sequence[str], model_name: str | None, temperature: float, max_tokens: int | None
    ) -> Summary:
        """A summary of texts that follow each other.

        Raises:
            LLMError: the model failed; ConfigurationError: there is no such model.
        """
        name = model_name or self._models.default
        if name == EXTRACTIVE:
            return await asyncio.to_thread(extract, texts)
        return await self._reduced(self._models.get(name), list(texts), temperature, max_tokens)

    async def _reduced(self, model: ChatModel, texts: list[str], temperature: float, max_tokens: int | None) -> Summary:
        code = language(" ".join(texts)[:2000])
        room = int((model.settings.context_size - (max_tokens or model.settings.max_output_tokens)) * _SHARE)

        async def ask(name: str, text: str) -> str:
            prompt = self._prompts.render("summary", name, code, context=fenced(text), question="", input=text)
            return (await model.complete([Message("user", prompt)], temperature, max_tokens)).strip()

        steps = await asyncio.gather(*(ask("map", part) for part in packed(texts, room)))
        parts = list(steps)
        while len(parts) > 1:
            groups = packed(parts, room)
            if len(groups) >= len(parts):  # each fills a prompt by itself: take them two by two all the same
                groups = ["\n\n".join(parts[at : at + 2]) for at in range(0, len(parts), 2)]
            parts = list(await asyncio.gather(*(ask("reduce", group) for group in groups)))
        return Summary(parts[0] if parts else "", tuple(steps))


def packed(texts: Sequence[str], room: int) -> list[str]:
    """The texts joined into as few parts as fit into so many tokens each; a longer text is cut."""
    parts: list[str] = []
    size = room + 1
    for text in texts:
        for piece in _cut(text, room):
            cost = estimate_tokens(piece)
            if size + cost > room:
                parts.append(piece)
                size = cost
            else:
                parts[-1] = f"{parts[-1]}\n\n{piece}"
                size += cost
    return parts


def _cut(text: str, room: int) -> list[str]:
    if estimate_tokens(text) <= room:
        return [text]
    middle = len(text) // 2
    return [*_cut(text[:middle], room), *_cut(text[middle:], room)]


def extract(texts: Sequence[str]) -> Summary:
    """The sentences that say most of what the texts are about, in reading order, each only once.

    A sentence weighs what its terms weigh on average, a term the logarithm of how often it occurs; sentences that
    repeat a chosen one are left out (maximal marginal relevance, Carbonell and Goldstein 1998).
    """
    found = list(dict.fromkeys(text[lo:hi] for text in texts for lo, hi in sentences(text)))
    words = [frozenset(terms(sentence)) for sentence in found]
    counts = Counter(word for held in words for word in held)
    order = sorted(range(len(found)), key=lambda at: -_weight(words[at], counts) * (1.1 if at < 3 else 1.0))
    chosen: list[int] = []
    for at in order:
        if (
            len(chosen) < _MOST_SENTENCES
            and len(words[at]) > 2
            and not any(_alike(words[at], words[it]) for it in chosen)
        ):
            chosen.append(at)
    text = language(" ".join(found)[:2000])
    said = "\n".join(found[at] for at in sorted(chosen or order[:1]))
    return Summary(f"{NOTICE['zh' if text == 'zh' else 'en']}\n{said}", (said,))


def _weight(words: frozenset[str], counts: Counter[str]) -> float:
    return sum(log(1 + counts[word]) for word in words) / (len(words) + 8)


def _alike(one: frozenset[str], other: frozenset[str]) -> bool:
    return len(one & other) > _ALIKE * min(len(one), len(other))
