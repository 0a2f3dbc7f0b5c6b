"""Reports of communities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import orjson
from sqlalchemy import Connection, delete, func, insert, select

from server.db import graphs
from server.db.tables import GraphReportRow
from server.domain import Finding, Report

_IN_LIMIT = 500
_ROW = GraphReportRow


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report; `digest` is that of all that it was made of, `made_of` are the chunks that speak of its entities, and
    `sources` those whose texts it was made from, in their order."""

    report: Report
    digest: str
    made_of: frozenset[int]
    sources: tuple[int, ...] = ()
    calls: int = 0
    tokens: int = 0


def stamp(sql: Connection, generation_id: int) -> tuple[int, int]:
    """Another one whenever the reports of a generation have changed."""
    found = sql.execute(select(func.count(_ROW.id), func.max(_ROW.id)).where(_ROW.generation_id == generation_id)).one()
    return found[0], found[1] or 0


def everything(sql: Connection, generation_id: int) -> list[StoredReport]:
    """All reports of a generation, the widest communities first."""
    columns = select(_ROW.digest, _ROW.data, _ROW.calls, _ROW.tokens)
    rows = sql.execute(columns.where(_ROW.generation_id == generation_id))
    found = [_loaded(data, digest, calls, tokens) for digest, data, calls, tokens in rows]
    return sorted(found, key=lambda one: (one.report.level, -len(one.report.keys), one.report.community))


def spent(sql: Connection, generation_id: int) -> tuple[int, int]:
    """(calls, tokens) that the reports that are there took."""
    sums = select(func.sum(_ROW.calls), func.sum(_ROW.tokens)).where(_ROW.generation_id == generation_id)
    calls, tokens = sql.execute(sums).one()
    return int(calls or 0), int(tokens or 0)


def put(sql: Connection, generation_id: int, reports: Sequence[StoredReport]) -> None:
    """Store reports, in place of the last ones of their communities."""
    drop(sql, generation_id, [one.report.community for one in reports])
    rows = [
        {
            "generation_id": generation_id, "community": one.report.community, "digest": one.digest,
            "calls": one.calls, "tokens": one.tokens,
            "data": orjson.dumps({**asdict(one.report), "made_of": sorted(one.made_of), "sources": one.sources}),
        }
        for one in reports
    ]  # fmt: skip
    if rows:
        sql.execute(insert(_ROW), rows)


def drop(sql: Connection, generation_id: int, communities: Iterable[str]) -> None:
    """Delete the reports of these communities."""
    wanted = list(communities)
    if wanted:
        graphs.bump(sql, generation_id)
    for at in range(0, len(wanted), _IN_LIMIT):
        part = wanted[at : at + _IN_LIMIT]
        sql.execute(delete(_ROW).where(_ROW.generation_id == generation_id, _ROW.community.in_(part)))


def _loaded(data: bytes, digest: str, calls: int, tokens: int) -> StoredReport:
    stored = orjson.loads(data)
    made_of, sources = frozenset(stored.pop("made_of")), tuple(stored.pop("sources"))
    keys, children = tuple(stored.pop("keys")), tuple(stored.pop("children"))
    findings = tuple(Finding(**{**one, "chunk_ids": tuple(one["chunk_ids"])}) for one in stored.pop("findings"))
    report = Report(**stored, keys=keys, children=children, findings=findings)
    return StoredReport(report, digest, made_of, sources, calls, tokens)
