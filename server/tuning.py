"""Fits the prompts of a graph to what its files are about: samples chunks, asks a model, writes what it says into the
prompts that people can edit."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from server.chat.context import fenced
from server.db import chunks as chunk_rows
from server.db.vectors import unpack
from server.domain import StoredChunk
from server.errors import InvalidRequest, LLMIncomplete
from server.graph.replies import cleaned, read_object
from server.knowledge_base.service import KBService
from server.models.chat import ChatModel, Message
from server.prompts import Prompts

Selection = Literal["random", "top", "all", "auto"]
SELECTIONS: tuple[Selection, ...] = get_args(Selection)
TUNING = "graph_tuning"
TUNED = ("graph_extraction", "graph_summary", "graph_report")
"""Kinds of prompts that are told what the texts are about."""
_MOST_CHARACTERS = 40_000
_CALLED = {"en": "English", "zh": "中文"}
_LONGEST = {"domain": 200, "persona": 1500}
_MOST_TYPES, _LONGEST_TYPE = 20, 40
_ABOUT = {"en": "The texts are about: {}.", "zh": "文本所属领域：{}。"}
_OPEN, _CLOSE = "{# tuned -#}", "{#- /tuned #}"
_BEFORE = re.compile(re.escape(_OPEN) + ".*?" + re.escape(_CLOSE) + r"\n?", re.DOTALL)
_TEMPLATE = re.compile(r"\{(?=[{%#])")
_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["domain", "persona", "entity_types"],
    "properties": {
        **{name: {"type": "string"} for name in ("domain", "persona")},
        "entity_types": {"type": "array", "items": {"type": "string"}},
    },
}


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a model makes of the samples; `language` is that of the prompts that are to be told: en or zh."""

    domain: str
    language: str
    persona: str
    entity_types: tuple[str, ...]


def sampled(service: KBService, selection: Selection, limit: int) -> list[StoredChunk]:
    """Chunks to show to a model, in reading order: `random` ones (the same each time), the first (`top`), `all`, or
    those nearest to the centroid of all vectors (`auto`).

    Raises:
        InvalidRequest: there are none.
    """
    generation = service.generation()
    with service.context.db.read() as sql:
        found = chunk_rows.of_files(sql, generation.id)
        vectors = [row for page in chunk_rows.all_vectors(sql, generation.id) for row in page]
    if not found:
        raise InvalidRequest("没有可用的片段，请先运行 zhiku index / there are no chunks: run zhiku index first")
    if selection == "all":
        return found
    if selection == "top":
        return found[:limit]
    if selection == "random" or not vectors:
        chosen = {chunk.id for chunk in random.Random(0).sample(found, min(limit, len(found)))}
    else:
        chosen = _central(service, vectors, limit)
    return [chunk for chunk in found if chunk.id in chosen]


def _central(service: KBService, rows: Sequence[tuple[int, str, bytes]], limit: int) -> set[int]:
    """Ids of the chunks whose vectors are most like the mean of all."""
    transform = service.indexes.transform(service.generation())
    vectors = transform.apply_passages(unpack([blob for _, _, blob in rows]), [lang for _, lang, _ in rows])
    cosines = vectors @ vectors.mean(axis=0)
    return {rows[at][0] for at in np.argsort(-cosines, kind="stable")[:limit]}


def language_of(chunks: Sequence[StoredChunk]) -> str:
    """The language of most chunks that the prompts have one for."""
    counted = Counter("zh" if chunk.lang == "zh" else "en" for chunk in chunks)
    return counted.most_common(1)[0][0]


async def tune(
    model: ChatModel, prompts: Prompts, chunks: Sequence[StoredChunk], *, domain: str = "", language: str = ""
) -> Tuning:
    """What a model makes of chunks, in one call. Without a `language` it is that of most chunks.

    Raises:
        LLMError: it failed, or did not say what it was asked for.
    """
    lang = language or language_of(chunks)
    prompt = prompts.render(
        TUNING, "default", lang, samples=fenced(_joined(chunks)), domain=domain, written_in=_CALLED[lang]
    )
    reply = await model.reply([Message("user", prompt)], schema=_SCHEMA)
    said = read_object(reply.text)
    persona, about = (cleaned(str(said.get(name) or ""))[: _LONGEST[name]] for name in ("persona", "domain"))
    if not persona:
        raise LLMIncomplete("模型没有给出 persona / the model's reply has no persona")
    return Tuning(cleaned(domain) or about, lang, persona, _types(said))


def _joined(chunks: Sequence[StoredChunk]) -> str:
    """As many of the samples as a prompt should hold."""
    room = _MOST_CHARACTERS
    kept: list[str] = []
    for chunk in chunks:
        room -= len(chunk.text)
        if kept and room < 0:
            break
        kept.append(chunk.text[:_MOST_CHARACTERS])
    return "\n\n---\n\n".join(kept)


def _types(said: Mapping[str, Any]) -> tuple[str, ...]:
    given = said.get("entity_types")
    words = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else []
    kinds = (cleaned(word)[:_LONGEST_TYPE].casefold() for word in words if isinstance(word, str))
    return tuple(dict.fromkeys(kind for kind in kinds if kind))[:_MOST_TYPES]


def tuned(text: str, tuning: Tuning) -> str:
    """A prompt that begins with who reads the texts and what they are about, in place of what an earlier tuning put
    there; what people have changed in the rest stays."""
    about = _ABOUT[tuning.language].format(tuning.domain.rstrip(".。")) if tuning.domain else ""
    head = _TEMPLATE.sub("{ ", " ".join(filter(None, (tuning.persona, about))))
    return f"{_OPEN}\n{head}\n{_CLOSE}\n{_BEFORE.sub('', text)}"
