"""Reads graphs that were written into files: our own JSON lines, GraphML from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from server.domain import Mention, Relation
from server.errors import InvalidRequest, LoadError
from server.graph.identity import LONGEST_NAME

_LONGEST = {"type": 40, "label": 120, "description": 2000}
_MOST_WEIGHT = 100.0


def read_graph(data: bytes) -> tuple[list[Mention], list[Relation]]:
    """The entities and relations in a file; what its bytes look like decides how it is read.

    Raises:
        InvalidRequest: it is neither, it is broken, or a line is wrong.
    """
    if not data.strip():
        raise InvalidRequest("文件是空的 / the file is empty")
    plain = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    return _graphml(plain) if plain[:1] == b"<" else _json_lines(plain)


def _json_lines(data: bytes) -> tuple[list[Mention], list[Relation]]:
    entities: list[Mention] = []
    relations: list[Relation] = []
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found = orjson.loads(line)
            if found["kind"] == "entity":
                entities.append(_entity(found))
            else:
                relations.append(_relation(found))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            raise InvalidRequest(
                f"第 {number} 行既不是实体也不是关系 / line {number} is neither an entity nor a relation: "
                '{"kind": "entity", "name": …} or {"kind": "relation", "source": …, "target": …}'
            ) from None
    return entities, relations


def _entity(found: Mapping[str, Any]) -> Mention:
    return Mention(_name(found["name"]), _text(found, "type"), _text(found, "description"))


def _relation(found: Mapping[str, Any]) -> Relation:
    weight = float(found.get("weight") or 1.0)
    if not 0 < weight < float("inf"):
        raise ValueError("weight")
    relation = Relation(_name(found["source"]), _name(found["target"]), _text(found, "label"))
    return replace(relation, description=_text(found, "description"), weight=min(_MOST_WEIGHT, weight))


def _name(given: Any) -> str:
    name = str(given).replace("\0", "").strip()
    if not name or len(name) > LONGEST_NAME:
        raise ValueError("name")
    return name


def _text(found: Mapping[str, Any], name: str) -> str:
    return str(found.get(name) or "").replace("\0", "")[: _LONGEST[name]]


def _graphml(data: bytes) -> tuple[list[Mention], list[Relation]]:
    from server.ingest.loaders.xml import parse_xml  # brings in lxml

    try:
        root = parse_xml(data)
    except LoadError as error:
        raise InvalidRequest(error.message) from None
    keys = {key.get("id"): key.get("attr.name") for key in root.iterfind(".//{*}key")}
    names: dict[str, str] = {}
    entities, relations = [], []
    try:
        for node in root.iterfind(".//{*}node"):
            said = _said(node, keys)
            names[node.get("id")] = said.get("name") or said.get("label") or said.get("title") or node.get("id")
            entities.append(_entity({**said, "name": names[node.get("id")]}))
        for edge in root.iterfind(".//{*}edge"):
            ends = {"source": names[edge.get("source")], "target": names[edge.get("target")]}
            relations.append(_relation({**_said(edge, keys), **ends}))
    except (KeyError, TypeError, ValueError):
        raise InvalidRequest("GraphML 中有无效的节点或边 / the GraphML has an invalid node or edge") from None
    return entities, relations


def _said(element: Any, keys: Mapping[str, str]) -> dict[str, str]:
    return {keys.get(data.get("key"), data.get("key")): data.text or "" for data in element.iterfind("{*}data")}
