"""A graph as the tables that GraphRAG 3 writes (and 1.x and 2.x, nearly), for notebooks and tools that read those.

Ids are hashes of names, pairs and texts: the same graph has the same ids in every export, and every id that a table
names is in its table. `human_readable_id` is the place in the table.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from server.domain import Report, StoredChunk
from server.errors import MissingDependency
from server.graph.communities import Community, communities
from server.graph.describe import description_between, description_of
from server.graph.graph import Pair
from server.graph.index import GraphIndex
from server.graph.views import find_entities, find_relations
from server.tokens import estimate_tokens

Row = dict[str, Any]

_HEAD = {"id": "text", "human_readable_id": "int"}
_COMMUNITY = {**_HEAD, "community": "int", "level": "int", "parent": "int", "children": "ints", "title": "text"}
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "documents": {
        **_HEAD, "title": "text", "text": "text", "text_unit_ids": "texts", "creation_date": "text", "raw_data": "text",
    },
    "text_units": {
        **_HEAD, "text": "text", "n_tokens": "int", "document_id": "text", "entity_ids": "texts",
        "relationship_ids": "texts", "covariate_ids": "texts",
    },
    "entities": {
        **_HEAD, "title": "text", "type": "text", "description": "text", "text_unit_ids": "texts", "frequency": "int",
        "degree": "int", "x": "float", "y": "float",
    },
    "relationships": {
        **_HEAD, "source": "text", "target": "text", "description": "text", "weight": "float",
        "combined_degree": "int", "text_unit_ids": "texts",
    },
    "communities": {
        **_COMMUNITY, "entity_ids": "texts", "relationship_ids": "texts", "text_unit_ids": "texts", "period": "text",
        "size": "int",
    },
    "community_reports": {
        **_COMMUNITY, "summary": "text", "full_content": "text", "rank": "float", "rating_explanation": "text",
        "findings": "findings", "full_content_json": "text", "period": "text", "size": "int",
    },
    "covariates": {
        **_HEAD, "covariate_type": "text", "type": "text", "description": "text", "subject_id": "text",
        "object_id": "text", "status": "text", "start_date": "text", "end_date": "text", "source_text": "text",
        "text_unit_id": "text",
    },
}  # fmt: skip
"""Tables with their columns, in their order; `x` and `y` are those of GraphRAG up to 2."""
_SHRINK = 0.3
"""Radius of a community's part in the layout, as a share of the community's."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file with its chunks, in reading order; `day` is when it came, as YYYY-MM-DD."""

    name: str
    text: str
    day: str
    chunks: Sequence[StoredChunk] = field(default=())


def rows_of(index: GraphIndex, sources: Sequence[Source], community_size: int) -> dict[str, list[Row]]:
    """The rows of all tables."""
    made = _Tables(index, sources, community_size)
    return {
        "documents": made.documents(),
        "text_units": made.text_units(),
        "entities": made.entities(),
        "relationships": made.relationships(),
        "communities": made.communities(),
        "community_reports": made.community_reports(),
        "covariates": made.covariates(),
    }


class _Tables:
    """What the rows of one export share."""

    def __init__(self, index: GraphIndex, sources: Sequence[Source], community_size: int) -> None:
        self._index = index
        self._graph = index.graph
        self._sources = sources
        self._keys = find_entities(self._graph, "")
        self._pairs = find_relations(self._graph, "")
        self._communities = communities(self._graph, community_size)
        self._period = max((one.day for one in sources), default="")
        self._units = {
            chunk.id: _id("text unit", one.name, str(place), chunk.text)
            for one in sources
            for place, chunk in enumerate(one.chunks)
        }

    def documents(self) -> list[Row]:
        """One for each file."""
        return [
            {
                "id": _id("document", one.name), "human_readable_id": at, "title": one.name, "text": one.text,
                "text_unit_ids": [self._units[chunk.id] for chunk in one.chunks], "creation_date": one.day,
                "raw_data": None,
            }
            for at, one in enumerate(self._sources)
        ]  # fmt: skip

    def text_units(self) -> list[Row]:
        """One for each chunk."""
        chunks = [(chunk, one) for one in self._sources for chunk in one.chunks]
        return [
            {
                "id": self._units[chunk.id], "human_readable_id": at, "text": chunk.text,
                "n_tokens": estimate_tokens(chunk.text), "document_id": _id("document", one.name),
                "entity_ids": [_id("entity", key) for key in sorted(self._graph.entities_in(chunk.id))],
                "relationship_ids": _relation_ids(dict.fromkeys(sorted(self._graph.pairs_in(chunk.id)))),
                "covariate_ids": self._covariate_ids[self._units[chunk.id]],
            }
            for at, (chunk, one) in enumerate(chunks)
        ]  # fmt: skip

    def entities(self) -> list[Row]:
        """One for each entity, the most mentioned first."""
        places = self._layout()
        return [
            {
                "id": _id("entity", key), "human_readable_id": at, "title": self._titles[key],
                "type": self._graph.shown(key).type,
                "description": description_of(self._graph, key, self._index.summaries),
                "text_unit_ids": (units := self._units_of(self._graph.nodes[key].chunks)), "frequency": len(units),
                "degree": len(self._graph.around(key)), "x": places[key][0], "y": places[key][1],
            }
            for at, key in enumerate(self._keys)
        ]  # fmt: skip

    def relationships(self) -> list[Row]:
        """One for each relation, the heaviest first; its label stands where it has no description."""
        rows = []
        for at, pair in enumerate(self._pairs):
            edge = self._graph.edges[pair]
            rows.append({
                "id": _relation_id(pair), "human_readable_id": at, "source": self._titles[pair[0]],
                "target": self._titles[pair[1]], "description": description_between(self._graph, pair) or edge.label,
                "weight": edge.weight, "combined_degree": sum(len(self._graph.around(key)) for key in pair),
                "text_unit_ids": self._units_of(edge.chunks),
            })  # fmt: skip
        return rows

    def covariates(self) -> list[Row]:
        """One for each claim, by their subjects, the most mentioned first."""
        return self._covariates

    @cached_property
    def _covariate_ids(self) -> defaultdict[str, list[str]]:
        """By text unit."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for row in self._covariates:
            found[row["text_unit_id"]].append(row["id"])
        return found

    @cached_property
    def _covariates(self) -> list[Row]:
        claims = [
            (key, chunk_id, claim)
            for key in self._keys
            for chunk_id, claim in self._graph.claims(key)
            if chunk_id in self._units
        ]
        return [
            {
                "id": _id("claim", self._units[chunk_id], *astuple(claim)), "human_readable_id": at,
                "covariate_type": "claim", "type": claim.type, "description": claim.description or claim.quote,
                "subject_id": self._titles[key], "object_id": claim.object or "NONE", "status": claim.status.upper(),
                "start_date": claim.start or None, "end_date": claim.end or None, "source_text": claim.quote,
                "text_unit_id": self._units[chunk_id],
            }
            for at, (key, chunk_id, claim) in enumerate(claims)
        ]  # fmt: skip

    def communities(self) -> list[Row]:
        """One for each community, the widest first."""
        rows = []
        for one in self._communities:
            inside = set(one.keys)
            pairs = {pair for key in one.keys for pair in self._graph.around(key) if inside.issuperset(pair)}
            chunks = {chunk_id for key in one.keys for chunk_id in self._graph.nodes[key].chunks}
            rows.append({
                **self._place(one), "id": _id("community", one.id), "title": f"Community {self._numbers[one.id]}",
                "entity_ids": [_id("entity", key) for key in one.keys],
                "relationship_ids": _relation_ids(sorted(pairs)),
                "text_unit_ids": self._units_of(chunks),
            })  # fmt: skip
        return rows

    def community_reports(self) -> list[Row]:
        """One for each community that has a report."""
        reports = {stored.report.community: stored.report for stored in self._index.reports}
        return [
            {**self._place(one), "id": _id("report", one.id), **_said(reports[one.id])}
            for one in self._communities
            if one.id in reports
        ]

    def _place(self, one: Community) -> Row:
        number = self._numbers[one.id]
        return {
            "human_readable_id": number, "community": number, "level": one.level,
            "parent": self._numbers.get(one.parent, -1), "period": self._period, "size": len(one.keys),
            "children": [self._numbers[part] for part in one.children],
        }  # fmt: skip

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {one.id: at for at, one in enumerate(self._communities)}

    @cached_property
    def _titles(self) -> dict[str, str]:
        """A name for each entity that no other has: homonyms are told apart by their types, or else by their keys."""
        shown = {key: self._graph.shown(key) for key in self._keys}
        names = Counter(one.name for one in shown.values())
        titles = {key: _title(one.name, one.type if names[one.name] > 1 else "") for key, one in shown.items()}
        taken = Counter(titles.values())
        return {key: title if taken[title] == 1 else _title(title, key) for key, title in titles.items()}

    def _units_of(self, chunks: Iterable[int]) -> list[str]:
        return [self._units[chunk_id] for chunk_id in sorted(chunks) if chunk_id in self._units]

    def _layout(self) -> dict[str, tuple[float, float]]:
        """Entities on circles around the middle of their community, whose parts are on circles around its own."""
        parts: defaultdict[str, list[str]] = defaultdict(list)
        for one in self._communities:
            parts[one.parent].append(one.id)
        centres, places = {"": (0.0, 0.0, 1.0)}, {}
        for one in self._communities:  # the widest first
            centres[one.id] = _around(centres[one.parent], parts[one.parent].index(one.id), len(parts[one.parent]))
            for at, key in enumerate(one.keys):
                places[key] = _around(centres[one.id], at, len(one.keys))[:2]
        return places


def _title(name: str, distinction: str) -> str:
    return f"{name} ({distinction})" if distinction else name


def _around(circle: tuple[float, float, float], at: int, count: int) -> tuple[float, float, float]:
    """The middle and the radius of the part number `at` of a circle that has so many."""
    x, y, radius = circle
    angle, away = 2 * math.pi * at / count, radius if count > 1 else 0.0
    return round(x + away * math.cos(angle), 6), round(y + away * math.sin(angle), 6), radius * _SHRINK


def _id(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()


def _relation_id(pair: Pair) -> str:
    return _id("relation", *pair)


def _relation_ids(pairs: Iterable[Pair]) -> list[str]:
    return [_relation_id(pair) for pair in pairs]


def _said(report: Report) -> Row:
    findings = [{"summary": one.summary, "explanation": one.explanation} for one in report.findings]
    whole = {
        "title": report.title, "summary": report.summary, "rating": report.rating,
        "rating_explanation": report.rating_explanation, "findings": findings,
    }  # fmt: skip
    parts = [f"# {report.title}", report.summary]
    parts += [f"## {one.summary}\n\n{one.explanation}" if one.summary else one.explanation for one in report.findings]
    return {
        "title": report.title, "summary": report.summary, "full_content": "\n\n".join(parts), "rank": report.rating,
        "rating_explanation": report.rating_explanation, "findings": findings,
        "full_content_json": json.dumps(whole, ensure_ascii=False),
    }  # fmt: skip


def write_tables(tables: Mapping[str, Sequence[Row]], folder: Path) -> list[Path]:
    """Write the tables as parquet files into a folder, which is made.

    Raises:
        MissingDependency: pyarrow is not installed.
    """
    made = [(folder / f"{name}.parquet", _parquet(name, rows)) for name, rows in tables.items()]
    folder.mkdir(parents=True, exist_ok=True)
    for path, data in made:
        path.write_bytes(data)
    return [path for path, _ in made]


def zipped_tables(tables: Mapping[str, Sequence[Row]]) -> bytes:
    """The same in one zip file, which holds the same bytes for the same tables.

    Raises:
        MissingDependency: pyarrow is not installed.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, rows in tables.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.parquet"), _parquet(name, rows))
    return out.getvalue()


def _parquet(name: str, rows: Sequence[Row]) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise missing_pyarrow() from None
    text = pa.string()
    types = {
        "text": text, "int": pa.int64(), "float": pa.float64(), "texts": pa.list_(text), "ints": pa.list_(pa.int64()),
        "findings": pa.list_(pa.struct([("summary", text), ("explanation", text)])),
    }  # fmt: skip
    schema = pa.schema([(column, types[kind]) for column, kind in COLUMNS[name].items()])
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), out)
    data: bytes = out.getvalue().to_pybytes()
    return data


def missing_pyarrow() -> MissingDependency:
    """The error where there is no pyarrow."""
    return MissingDependency("parquet 需要 pyarrow / parquet needs pyarrow: pip install 'zhiku[tables]'")
