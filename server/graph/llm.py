"""Entities and relations of chunks by a language model: many chunks at a time, each answer handed out as it comes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from queue import Empty, SimpleQueue
from typing import NamedTuple

import orjson

from server.db.graphs import MOST_ATTEMPTS, Extracted, Unread
from server.domain import Extraction, GraphOptions
from server.errors import LLMError, LLMIncomplete
from server.graph.extractor import Extractor, ModelDown
from server.graph.identity import entity_key, grounded
from server.graph.replies import SCHEMA, SCHEMA_WITH_CLAIMS, extraction_of
from server.models.background import Background
from server.models.chat import ChatModel, Message
from server.prompts import Prompts

log = logging.getLogger(__name__)

TYPES = {
    "en": ("person", "organization", "location", "event", "work", "product", "concept"),
    "zh": ("人物", "组织", "地点", "事件", "作品", "产品", "概念"),
}
"""What entities may be where a knowledge base has no types of its own."""
EXTRACTION, GLEANING, CLAIMS = "graph_extraction", "graph_gleaning", "graph_claims"
_AHEAD = 4
"""Chunks under way for each call that may run: none waits for the database."""
_TOGETHER, _PAUSE = 0.1, 0.05
"""Seconds in which answers are stored together while they keep coming, and after which they have stopped."""
_SIGN_OF_LIFE = 0.5
_HOPELESS = 8
"""So many refusals one after the other mean that the server is at fault, not the chunks."""
_WARMER = 0.3
"""What a failed chunk adds to the temperature: the same question would get the same answer."""


class LLMExtractor(Extractor):
    """Reads chunks with one model, `concurrency` calls at a time."""

    def __init__(
        self, model: ChatModel, prompts: Prompts, options: GraphOptions, background: Background, concurrency: int
    ) -> None:
        self._model = model
        self._prompts = prompts
        self._options = options
        self._background = background
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._told = {lang: self.instructions(lang) for lang in TYPES}
        self._asked_again = {lang: prompts.text(GLEANING, "default", lang) for lang in TYPES}
        self.recipe = self._named()

    def _named(self) -> str:
        """Model and prompts make the recipe."""
        prompts = [self._told, self._asked_again]
        digest = hashlib.sha256(orjson.dumps([self._model.settings.model or self._model.name, *prompts]))
        return f"llm-{digest.hexdigest()[:40]}"

    def instructions(self, lang: str) -> str:
        """What a model is told before a text of a language."""
        types = self._options.entity_types or TYPES[lang]
        told = self._prompts.render(EXTRACTION, "default", lang, types=", ".join(types))
        return f"{told}\n{self._prompts.text(CLAIMS, 'default', lang)}" if self._options.claims else told

    def read(self, chunks: Iterator[Unread]) -> Iterator[list[Extracted]]:
        """Each answer as it arrives; new chunks are begun before the last ones are stored."""
        arrived: SimpleQueue[Arrived] = SimpleQueue()
        tasks: set[Future[None]] = set()
        refusals, under_way = _Refusals(self._model.name), 0
        try:
            while True:
                for chunk in islice(chunks, _AHEAD * self._concurrency - under_way):
                    tasks.add(task := self._background.submit(self._chunk(chunk, arrived)))
                    task.add_done_callback(tasks.discard)
                    under_way += 1
                if not under_way:
                    break
                items = _drained(arrived)
                under_way -= sum(not one.item.open for one in items)
                yield refusals.sorted_out(items)
            yield refusals.rest()
        finally:
            for task in list(tasks):
                task.cancel()

    async def _chunk(self, chunk: Unread, arrived: SimpleQueue[Arrived]) -> None:
        """Ask about a chunk until nothing more is to be had; the last thing that arrives is not open."""
        now = Extracted(chunk.chunk_id, chunk.text_hash, chunk.found or Extraction(), rounds=chunk.rounds, open=True)
        try:
            while now.open:
                now = await self._round(chunk, now)
                arrived.put(Arrived(now))
        except LLMIncomplete as error:
            arrived.put(Arrived(replace(_failed(chunk, now, error.message), calls=1)))
        except LLMError as error:
            arrived.put(Arrived(_failed(chunk, now, error.message), refused=True))
        except Exception as error:
            log.exception("chunk %s cannot be read for the graph", chunk.chunk_id)
            arrived.put(Arrived(_failed(chunk, now, type(error).__name__)))

    async def _round(self, chunk: Unread, now: Extracted) -> Extracted:
        """One more answer, added to what the chunk has given until now."""
        before = now.found or Extraction()
        lang = "zh" if chunk.lang == "zh" else "en"
        messages = [Message("system", self._told[lang]), Message("user", f"<text>\n{chunk.text}\n</text>")]
        if now.rounds:
            messages += [Message("assistant", _as_reply(before)), Message("user", self._asked_again[lang])]
        async with self._slots:
            schema = SCHEMA_WITH_CLAIMS if self._options.claims else SCHEMA
            reply = await self._model.reply(messages, min(1.0, _WARMER * chunk.attempts), schema)
        tokens = sum(reply.usage)
        try:
            said = extraction_of(reply.text, self._options.entity_types or TYPES[lang])
        except LLMIncomplete as error:
            return replace(_failed(chunk, now, error.message), calls=1, tokens=tokens)
        known = {mention.name for mention in before.mentions}
        new = [mention for mention in said.mentions if mention.name not in known]
        # relations may tie what is new to what was found before
        claims = said.claims if self._options.claims else ()
        fresh, dropped = grounded(Extraction((*before.mentions, *new), said.relations, claims), chunk.text)
        found, rounds = _joined(before, fresh), now.rounds + 1
        more = rounds <= self._options.gleanings and (rounds == 1 or found != before)
        return replace(now, found=found, dropped=dropped, calls=1, tokens=tokens, rounds=rounds, open=more)


class Arrived(NamedTuple):
    """What became of a chunk; `refused` when the server would not even answer."""

    item: Extracted
    refused: bool = False


class _Refusals:
    """Tells chunks that a server refuses from a server that refuses all."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._held: list[Extracted] = []
        self._answered = False

    def sorted_out(self, items: Iterable[Arrived]) -> list[Extracted]:
        """What can be stored now: a refusal only after an answer, which shows that the server is well.

        Raises:
            ModelDown: only refusals for a while.
        """
        kept: list[Extracted] = []
        for item, refused in items:
            if refused:
                self._held.append(item)
            else:
                self._answered = True
                kept += [*self._held, item]
                self._held = []
        if len(self._held) >= _HOPELESS and not kept:  # what has come is stored first
            raise self._down()
        return kept

    def rest(self) -> list[Extracted]:
        """The last refusals, if there was an answer at all."""
        if self._held and not self._answered:
            raise self._down()
        return self._held

    def _down(self) -> ModelDown:
        return ModelDown(
            f"语言模型 {self._model} 无法使用，图谱构建暂停，稍后自动继续 / the build of the graph waits for the "
            f"language model {self._model}: {self._held[-1].reason}"
        )


def _failed(chunk: Unread, now: Extracted, reason: str) -> Extracted:
    """A chunk that gave no usable answer. What it gave before stays; when asking for more fails for the last time, that
    is all."""
    enough = now.rounds > 0 and chunk.attempts + 1 >= MOST_ATTEMPTS
    return replace(now, dropped=0, calls=0, tokens=0, open=False, reason="" if enough else reason)


def _drained(arrived: SimpleQueue[Arrived]) -> list[Arrived]:
    """What has arrived, and what comes with it: one transaction for each answer would cost more than the answer.
    Nothing after a while without."""
    items: list[Arrived] = []
    with suppress(Empty):
        items.append(arrived.get(timeout=_SIGN_OF_LIFE))
        until = time.monotonic() + _TOGETHER
        while True:
            items.append(arrived.get(timeout=max(0.0, min(_PAUSE, until - time.monotonic()))))
    return items


def _joined(before: Extraction, fresh: Extraction) -> Extraction:
    """Both, what was known already only once."""
    names = {entity_key(mention.name): mention.name for mention in (*fresh.mentions, *before.mentions)}
    known = {entity_key(mention.name) for mention in before.mentions}
    ends = {(one.source, one.target) for one in before.relations}
    mentions = [mention for mention in fresh.mentions if entity_key(mention.name) not in known]
    moved = [
        replace(one, source=names[entity_key(one.source)], target=names[entity_key(one.target)])
        for one in fresh.relations
    ]
    relations = [one for one in moved if (one.source, one.target) not in ends]
    claims = [
        replace(one, subject=names[entity_key(one.subject)], object=names.get(entity_key(one.object), ""))
        for one in fresh.claims
    ]
    quoted = {one.quote for one in before.claims}
    new = [one for one in claims if one.quote not in quoted]
    return Extraction((*before.mentions, *mentions), (*before.relations, *relations), (*before.claims, *new))


def _as_reply(found: Extraction) -> str:
    """What was found, as the model would have written it."""
    entities = [{"name": one.name, "type": one.type, "description": one.description} for one in found.mentions]
    relations = [{"source": one.source, "target": one.target, "label": one.label} for one in found.relations]
    return orjson.dumps({"entities": entities, "relations": relations}).decode()
