"""Reads what language models send when they are asked for JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from server.domain import Claim, Extraction, Mention, Relation
from server.errors import LLMIncomplete

_FENCE = re.compile(r"```[A-Za-z]*")
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
_DECODER = json.JSONDecoder(strict=False)  # models write line breaks into strings
_LONGEST = {"type": 40, "label": 120, "description": 2000, "start": 40, "end": 40}
_STRONGEST = 10.0

_CLAIM = ("subject", "object", "type", "status", "description", "start", "end", "quote")
_STATUS = {"true": "true", "false": "false", "suspected": "suspected"}
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["entities", "relations"],
    "properties": {
        "entities": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "type", "description", "aliases"],
                "properties": {
                    **{name: {"type": "string"} for name in ("name", "type", "description")},
                    "aliases": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
        "relations": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["source", "target", "label", "description", "strength"],
                "properties": {
                    **{name: {"type": "string"} for name in ("source", "target", "label", "description")},
                    "strength": {"type": "integer"},
                },
            },
        },
    },
}
"""What a reply to the extraction prompt looks like, as JSON schema."""
SCHEMA_WITH_CLAIMS: Mapping[str, Any] = {
    **SCHEMA,
    "required": [*SCHEMA["required"], "claims"],
    "properties": {
        **SCHEMA["properties"],
        "claims": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": list(_CLAIM),
                "properties": {name: {"type": "string"} for name in _CLAIM},
            },
        },
    },
}
"""The same where a model is also asked for claims."""


def read_object(text: str) -> dict[str, Any]:
    """The JSON object in a reply, whatever stands around it; fences, commas too many, doubled braces and line breaks in
    strings are forgiven, a reply that ends before its object does is not.

    Raises:
        LLMIncomplete: there is no whole object.
    """
    plain = _FENCE.sub("", text)
    for candidate in (plain, _TRAILING_COMMA.sub("", plain), _without_doubled_braces(plain)):
        start = candidate.find("{")
        while start >= 0:
            try:
                found, _ = _DECODER.raw_decode(candidate, start)
            except ValueError:
                # an object inside a broken one is a part, and not the reply: only what stands before it is skipped
                break
            if isinstance(found, dict):
                return found
            start = candidate.find("{", start + 1)
    raise LLMIncomplete("模型的回答不是完整的 JSON / the model's reply is not a whole JSON object")


def _without_doubled_braces(text: str) -> str:
    return _TRAILING_COMMA.sub("", text.replace("{{", "{").replace("}}", "}"))


def extraction_of(reply: str, types: Iterable[str]) -> Extraction:
    """What a reply to the extraction prompt says; names of fields that models confuse are understood.

    Raises:
        LLMIncomplete: it is no such reply.
    """
    found = read_object(reply)
    entities = found.get("entities", found.get("nodes"))
    relations: Any = next((found[name] for name in ("relations", "relationships", "edges") if name in found), [])
    if not isinstance(entities, list) or not isinstance(relations, list):
        raise LLMIncomplete("模型的回答没有 entities / the model's reply has no list of entities")
    known = {kind.casefold(): kind for kind in types}
    mentions = [_mention(item, known) for item in entities if isinstance(item, dict)]
    between = [_relation(item) for item in relations if isinstance(item, dict)]
    given = found.get("claims", found.get("covariates"))
    claims = [_claim(item) for item in (given if isinstance(given, list) else []) if isinstance(item, dict)]
    return Extraction(
        tuple(one for one in mentions if one.name),
        tuple(one for one in between if one.source and one.target),
        tuple(one for one in claims if one.subject and (one.description or one.quote)),
    )


def _mention(item: Mapping[str, Any], known: Mapping[str, str]) -> Mention:
    kind = _text(item, "type", "entity_type")
    aliases = item.get("aliases")
    return Mention(
        _text(item, "name", "entity_name", "entity"),
        known.get(kind.casefold(), kind.casefold()),
        _text(item, "description"),
        tuple(cleaned(name) for name in aliases if isinstance(name, str)) if isinstance(aliases, list) else (),
    )


def _relation(item: Mapping[str, Any]) -> Relation:
    strength = item.get("strength", item.get("weight"))
    is_number = isinstance(strength, int | float) and not isinstance(strength, bool) and strength > 0
    return Relation(
        _text(item, "source", "source_entity", "from"),
        _text(item, "target", "target_entity", "to"),
        _text(item, "label", "keywords", "relation", "type"),
        _text(item, "description"),
        min(float(strength), _STRONGEST) / _STRONGEST if is_number else 1.0 / _STRONGEST,
    )


def _claim(item: Mapping[str, Any]) -> Claim:
    return Claim(
        _text(item, "subject", "subject_entity", "subject_id"),
        _text(item, "object", "object_entity", "object_id"),
        _text(item, "type", "claim_type"),
        _STATUS.get(_text(item, "status", "claim_status").casefold(), "suspected"),
        _text(item, "description", "claim_description"),
        _text(item, "start", "start_date"),
        _text(item, "end", "end_date"),
        _text(item, "quote", "source_text"),
    )


def _text(item: Mapping[str, Any], *names: str) -> str:
    value = next((item[name] for name in names if isinstance(item.get(name), str)), "")
    return cleaned(value)[: _LONGEST.get(names[0], 1000)]


def cleaned(text: str) -> str:
    """Without half characters and NUL, which JSON can hold and databases cannot; one space between words."""
    return " ".join(text.replace("\x00", " ").encode("utf-8", "replace").decode().split())
