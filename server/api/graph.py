"""The graph of a knowledge base: how far it is, what is in it, searches along it, merging what is one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, islice
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, File, Form, Query, Request, UploadFile
from fastapi.responses import Response

from server.api.deps import ServiceDep
from server.api.filters import condition_of
from server.api.proxies import public_url
from server.api.retrieval import KB, hit_view
from server.api.schemas import BaseResponse, KBName
from server.api.schemas_graph import (
    BuildGraph,
    ClaimView,
    CommunityPage,
    CommunityView,
    CreateEntity,
    EditEntity,
    EntityName,
    EntityPage,
    EntityView,
    FileGraphState,
    FindingView,
    GraphData,
    GraphEstimate,
    GraphQuery,
    GraphSettings,
    GraphState,
    MergeEntities,
    PutRelation,
    RelationEnds,
    RelationPage,
    RelationView,
    Subgraph,
)
from server.api.text import clean_text
from server.chat.context import fit_sources
from server.domain import Claim, Condition, Keywords, Mention, Relation, Report, SearchOptions
from server.errors import InvalidRequest, NotFound
from server.graph import views
from server.graph.describe import description_between, description_of
from server.graph.graph import BY_HAND, Graph, Pair
from server.graph.imports import read_graph
from server.graph.index import GraphIndex
from server.graph.search import GRAPH_MODES
from server.graph.tables import zipped_tables
from server.graph.tables_import import looks_zipped, read_tables
from server.knowledge_base.backends.graph import GraphKBService
from server.knowledge_base.graph_edits import GraphEditor
from server.knowledge_base.graph_tables import bring_in, exported
from server.knowledge_base.operations import service_of
from server.knowledge_base.report_search import REPORT_MODES, ReportSearch
from server.names import kb_label
from server.service import Service
from server.tokens import estimate_tokens

router = APIRouter(prefix="/graph", tags=["Graph"])

Text = Annotated[str, Query(max_length=200, description="part of a name; default: all")]
Offset = Annotated[int, Query(ge=0, le=2**31, description="how many to leave out")]
Limit = Annotated[int, Query(ge=1, le=1000, description="how many at most")]
_SHOWN = 100
_REPORTS_SHOWN = 10


def _opened(name: str) -> GraphKBService:
    found = service_of(name)
    if not isinstance(found, GraphKBService):
        raise InvalidRequest(
            f"知识库 {name} 没有图谱，创建时请用 vector_store_type graph / "
            f"this knowledge base has no graph: make one with vector_store_type graph, or rebuild it with "
            f"recreate_vector_store and vs_type graph"
        )
    return found


@router.get("/state", operation_id="graph_state")
async def graph_state(service: ServiceDep, knowledge_base_name: KB) -> GraphState:
    """How far the graph is, in all and file by file. Files are searchable before it is there."""
    name = kb_label(knowledge_base_name)

    def load() -> GraphState:
        kb = _opened(name)
        state, by_file, building, reason = kb.build_state()
        with kb.graph() as graph:
            entities, relations = len(graph.nodes), len(graph.edges)
        return GraphState(
            chunks=state.total,
            done=state.done,
            failed=state.failed,
            building=building,
            reason="" if building else reason,
            extractor=kb.options().extractor,
            entities=entities,
            relations=relations,
            dropped=state.dropped,
            calls=state.calls,
            tokens=state.tokens,
            files=[
                FileGraphState(file_name=name, chunks=one.total, done=one.done, failed=one.failed)
                for name, one in by_file.items()
            ],
        )

    return await service.gates.run(name, load)


@router.post("/retry", operation_id="graph_retry")
async def graph_retry(body: KBName, service: ServiceDep) -> BaseResponse:
    """Try the chunks again that could not be read."""
    name = kb_label(body.knowledge_base_name)
    count = await service.gates.run(name, lambda: _opened(name).retry_build())
    service.runner.notify()
    return BaseResponse(data={"chunks": count})


@router.post("/build", operation_id="build_graph")
async def build_graph(body: BuildGraph, service: ServiceDep) -> BaseResponse:
    """Go on with a graph that is not complete, or read again what was read in another way. New files need no call."""
    name = kb_label(body.knowledge_base_name)

    def build() -> None:
        kb = _opened(name)
        kb.set_options({}, service.extractors.of(kb.options()).recipe if body.again else None)

    await service.gates.run(name, build)
    service.runner.notify()
    return BaseResponse(msg="已开始构建图谱 / the graph is being built")


@router.post("/settings", operation_id="graph_settings")
async def graph_settings(body: GraphSettings, service: ServiceDep) -> BaseResponse:
    """Change how chunks are read from now on; `/graph/build` with `again` reads those that are there so."""
    name = kb_label(body.knowledge_base_name)

    def change() -> dict[str, Any]:
        kb = _opened(name)
        values = {
            "extractor": body.extractor,
            "entity_types": body.entity_types and [clean_text(one) for one in body.entity_types],
            "gleanings": body.gleanings,
            "reports": body.reports,
            "claims": body.claims,
        }
        given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
        if body.token_budget is not None:
            given["budget"] = body.token_budget or None
        service.extractors.check(kb.options().changed(**given))
        return kb.set_options(given).as_dict()

    data = await service.gates.run(name, change)
    service.runner.notify()
    return BaseResponse(data=data)


@router.get("/estimate", operation_id="graph_estimate")
async def graph_estimate(
    service: ServiceDep,
    knowledge_base_name: KB,
    extractor: Annotated[str | None, Query(description="nlp or a language model; default: as set")] = None,
    again: Annotated[bool, Query(description="as if all chunks were to be read")] = False,
) -> GraphEstimate:
    """Chunks, calls, tokens and cost of what is left to do, before anything is spent."""
    name = kb_label(knowledge_base_name)

    def load() -> GraphEstimate:
        kb = _opened(name)
        options = kb.options().changed(extractor=extractor)
        found = service.extractors.estimate(options, kb.sizes(again=again))
        return GraphEstimate(**asdict(found))

    return await service.gates.run(name, load)


@router.get("/entities", operation_id="list_entities")
async def list_entities(
    service: ServiceDep, knowledge_base_name: KB, query: Text = "", offset: Offset = 0, limit: Limit = 100
) -> EntityPage:
    """Entities whose names hold the query, the most mentioned first."""
    name = kb_label(knowledge_base_name)

    def load() -> EntityPage:
        with _opened(name).index() as index:
            keys = views.find_entities(index.graph, query)
            shown = [_entity(index, key) for key in keys[offset : offset + limit]]
            return EntityPage(total=len(keys), offset=offset, entities=shown)

    return await service.gates.run(name, load)


@router.get("/relations", operation_id="list_relations")
async def list_relations(
    service: ServiceDep, knowledge_base_name: KB, query: Text = "", offset: Offset = 0, limit: Limit = 100
) -> RelationPage:
    """Relations of entities whose names hold the query, the heaviest first."""
    name = kb_label(knowledge_base_name)

    def load() -> RelationPage:
        with _opened(name).graph() as graph:
            pairs = views.find_relations(graph, query)
            shown = [_relation(graph, pair) for pair in pairs[offset : offset + limit]]
            return RelationPage(total=len(pairs), offset=offset, relations=shown)

    return await service.gates.run(name, load)


@router.get("/communities", operation_id="list_communities")
async def list_communities(
    service: ServiceDep,
    knowledge_base_name: KB,
    query: Text = "",
    level: Annotated[int | None, Query(ge=0, le=20, description="only of this level; default: of all")] = None,
    offset: Offset = 0,
    limit: Limit = 100,
) -> CommunityPage:
    """Communities and their reports, the widest first; those of which an entity's name or the title holds the query."""
    name = kb_label(knowledge_base_name)

    def load() -> CommunityPage:
        with _opened(name).index() as index:
            wanted = set(views.find_entities(index.graph, query)) if query else None
            found = [
                one.report for one in index.reports
                if (level is None or one.report.level == level)
                and (wanted is None or query in one.report.title or wanted.intersection(one.report.keys))
            ]  # fmt: skip
            shown = [_community(index, one) for one in found[offset : offset + limit]]
            return CommunityPage(total=len(found), offset=offset, communities=shown)

    return await service.gates.run(name, load)


@router.get("/neighbourhood", operation_id="graph_neighbourhood")
async def graph_neighbourhood(
    service: ServiceDep,
    knowledge_base_name: KB,
    name: Annotated[str, Query(max_length=200, description="a name of the entity in the middle")],
    depth: Annotated[int, Query(ge=1, le=5, description="relations to follow")] = 1,
    limit: Annotated[int, Query(ge=1, le=1000, description="most entities")] = 50,
) -> Subgraph:
    """The entities around one, and the relations between them."""
    kb_name = kb_label(knowledge_base_name)

    def load() -> Subgraph:
        with _opened(kb_name).index() as index:
            keys, pairs = views.neighbourhood(index.graph, name, depth, limit)
            if not keys:
                raise NotFound(f"图谱中没有 {name} / no such entity: {name}")
            relations = [_relation(index.graph, pair) for pair in pairs]
            return Subgraph(entities=[_entity(index, key) for key in keys], relations=relations)

    return await service.gates.run(kb_name, load)


@router.post("/query/data", operation_id="graph_query_data")
async def graph_query_data(body: GraphQuery, request: Request, service: ServiceDep) -> GraphData:
    """The entities, relations and chunks that a question leads to; no language model is asked."""
    name, base = kb_label(body.knowledge_base_name), public_url(request, service.settings)
    mode, where = body.mode or "ppr", condition_of(body.filters)
    if mode not in (*GRAPH_MODES, *REPORT_MODES):
        raise InvalidRequest(f"mode 应为 / mode must be one of: {', '.join((*GRAPH_MODES, *REPORT_MODES))}")
    given = Keywords(tuple(body.ll_keywords), tuple(body.hl_keywords))
    options = await service.keywords.added(_graph_options(body, mode, where, given), body.query)
    room = body.max_total_tokens

    def load() -> GraphData:
        kb = _opened(name)
        if mode in REPORT_MODES:
            return _by_reports(kb, body.query, options, base, body.max_total_tokens)
        found, hits = kb.follow(body.query, options)
        allowed = kb.allowed(where)
        with kb.index() as index:
            nodes, edges = index.graph.nodes, index.graph.edges
            entities = [_entity(index, key, value, allowed) for key, value in found.entities if key in nodes]
            relations = [
                _relation(index.graph, pair, value, allowed) for pair, value in found.relations if pair in edges
            ]
        entities = _within(entities, body.max_entity_tokens)
        relations = _within(relations, body.max_relation_tokens)
        kept = hits[: body.top_k or service.settings.top_k]
        if room is not None:
            left = room - sum(map(_tokens_of, entities)) - sum(map(_tokens_of, relations))
            kept = fit_sources(kept, left)
        chunks = [hit_view(hit, base, visible=True) for hit in kept]
        return GraphData(
            low=list(options.keywords.low), high=list(options.keywords.high),
            entities=entities, relations=relations, chunks=chunks,
        )  # fmt: skip

    return await service.gates.run(name, load)


def _graph_options(body: GraphQuery, mode: str, where: Condition | None, keywords: Keywords) -> SearchOptions:
    return SearchOptions(
        body.top_k, where=where, mode=mode, keywords=keywords, community_level=body.community_level
    )  # fmt: skip


def _by_reports(kb: GraphKBService, query: str, options: SearchOptions, base: str, room: int | None) -> GraphData:
    """Reports, and the chunks that they or what they lead to cite."""
    search = ReportSearch(kb)
    hits, reports = search.find(query, options).hits, search.reports(query, options)[:_REPORTS_SHOWN]
    with kb.index() as index:
        shown = [_community(index, report, value) for report, value in reports]
    kept = hits if room is None else fit_sources(hits, room)
    chunks = [hit_view(hit, base, visible=True) for hit in kept]
    low, high = list(options.keywords.low), list(options.keywords.high)
    return GraphData(entities=[], relations=[], chunks=chunks, reports=shown, low=low, high=high)


def _community(index: GraphIndex, report: Report, value: float | None = None) -> CommunityView:
    graph = index.graph
    return CommunityView(
        id=report.community,
        level=report.level,
        parent=report.parent,
        children=list(report.children),
        size=len(report.keys),
        entities=[graph.shown(key).name for key in report.keys[:_SHOWN] if key in graph.nodes],
        title=report.title,
        summary=report.summary,
        rating=report.rating,
        rating_explanation=report.rating_explanation,
        findings=[
            FindingView(summary=one.summary, explanation=one.explanation, chunk_ids=list(map(str, one.chunk_ids)))
            for one in report.findings
        ],
        degraded=report.degraded,
        value=value,
    )


_Shown = TypeVar("_Shown", EntityView, RelationView)


def _tokens_of(shown: EntityView | RelationView) -> int:
    names = shown.name if isinstance(shown, EntityView) else f"{shown.source} {shown.label} {shown.target}"
    return estimate_tokens(f"{names} {shown.description}")


def _within(shown: Sequence[_Shown], tokens: int | None) -> list[_Shown]:
    """The first ones that fit into a number of tokens."""
    if tokens is None:
        return list(shown)
    totals = accumulate(map(_tokens_of, shown))
    return [one for one, total in zip(shown, totals, strict=True) if total <= tokens]


async def _edited(service: Service, kb_name: str, edit: Callable[[GraphEditor], Any]) -> BaseResponse:
    name = kb_label(kb_name)
    done = await service.gates.run(name, lambda: edit(_opened(name).editor))
    service.runner.notify()  # what follows from the graph is made anew
    return BaseResponse(data=done)


@router.post("/entity/create", operation_id="create_entity")
async def create_entity(body: CreateEntity, service: ServiceDep) -> BaseResponse:
    """Add an entity that no file names; one that was deleted comes back."""
    entity = Mention(clean_text(body.name).strip(), clean_text(body.type), clean_text(body.description))
    return await _edited(service, body.knowledge_base_name, lambda editor: editor.create_entity(entity))


@router.post("/entity/edit", operation_id="edit_entity")
async def edit_entity(body: EditEntity, service: ServiceDep) -> BaseResponse:
    """Show an entity with another name, type or description. Files that come and go do not change that."""
    entity = Mention(clean_text(body.new_name).strip(), clean_text(body.type), clean_text(body.description))
    return await _edited(service, body.knowledge_base_name, lambda editor: editor.edit_entity(body.name, entity))


@router.post("/entity/delete", operation_id="delete_entity")
async def delete_entity(body: EntityName, service: ServiceDep) -> BaseResponse:
    """Leave an entity and its relations out of the graph; `/graph/entity/create` brings it back."""
    return await _edited(service, body.knowledge_base_name, lambda editor: editor.delete_entity(body.name))


@router.post("/relation/create", operation_id="create_relation")
async def create_relation(body: PutRelation, service: ServiceDep) -> BaseResponse:
    """Connect two entities; a relation that was deleted comes back."""
    return await _edited(service, body.knowledge_base_name, lambda editor: editor.put_relation(_said(body), new=True))


@router.post("/relation/edit", operation_id="edit_relation")
async def edit_relation(body: PutRelation, service: ServiceDep) -> BaseResponse:
    """Add to what is said of a relation: label, description, weight."""
    return await _edited(service, body.knowledge_base_name, lambda editor: editor.put_relation(_said(body), new=False))


@router.post("/relation/delete", operation_id="delete_relation")
async def delete_relation(body: RelationEnds, service: ServiceDep) -> BaseResponse:
    """Leave a relation out of the graph; `/graph/relation/create` brings it back."""
    return await _edited(
        service, body.knowledge_base_name, lambda editor: editor.delete_relation(body.source, body.target)
    )


def _said(body: PutRelation) -> Relation:
    return Relation(body.source, body.target, clean_text(body.label), clean_text(body.description), body.weight)


@router.post("/merge", operation_id="merge_entities")
async def merge_entities(body: MergeEntities, service: ServiceDep) -> BaseResponse:
    """Treat several entities as one from now on; `/graph/split` undoes it."""
    return await _edited(
        service, body.knowledge_base_name, lambda editor: {"merged": editor.merge(body.names, body.into)}
    )


@router.post("/split", operation_id="split_entity")
async def split_entity(body: EntityName, service: ServiceDep) -> BaseResponse:
    """Undo what was merged into an entity, or the entity's own merging, whether people did it or it came by itself."""
    return await _edited(service, body.knowledge_base_name, lambda editor: {"split": editor.split(body.name)})


@router.get("/export", operation_id="export_graph", response_class=Response)
async def export_graph(
    service: ServiceDep,
    knowledge_base_name: KB,
    format: Annotated[
        Literal["jsonl", "graphml", "parquet"],
        Query(description="jsonl, graphml, or parquet: a zip of the tables that GraphRAG writes"),
    ] = "jsonl",
) -> Response:
    """The whole graph as a file."""
    name = kb_label(knowledge_base_name)

    def load() -> bytes:
        if format == "parquet":
            return zipped_tables(exported(_opened(name)))
        with _opened(name).graph() as graph:
            return b"".join(views.as_graphml(graph) if format == "graphml" else views.as_json_lines(graph))

    kind, ending = _FORMATS[format]
    headers = {"content-disposition": f"attachment; filename=graph.{ending}", "x-content-type-options": "nosniff"}
    return Response(await service.gates.run(name, load), media_type=kind, headers=headers)


_FORMATS = {
    "jsonl": ("application/jsonl", "jsonl"),
    "graphml": ("application/graphml+xml", "graphml"),
    "parquet": ("application/zip", "zip"),
}


@router.post("/import", operation_id="import_graph")
async def import_graph(
    service: ServiceDep,
    file: Annotated[
        UploadFile, File(description="what /graph/export writes, GraphML, or a zip of GraphRAG's parquet tables")
    ],
    knowledge_base_name: Annotated[str, Form(description="a knowledge base with a graph")],
) -> BaseResponse:
    """Add the entities and relations of a file to the graph, as if people had added them one by one. What is there
    stays as it is; `data` counts what was new. Tables with text units bring files along: their chunks are the text
    units, and say for the graph what names them; they are searchable when they are in, as after an upload."""
    name, limit = kb_label(knowledge_base_name), service.settings.max_upload_mb
    data = await file.read((limit << 20) + 1)
    if len(data) > limit << 20:
        raise InvalidRequest(f"文件超过 {limit} MiB 的上限 / the file exceeds the limit of {limit} MiB")

    def load() -> Mapping[str, Any]:
        kb = _opened(name)
        if looks_zipped(data):
            return bring_in(service.operations, kb, read_tables(data)).as_dict()
        entities, relations = read_graph(data)
        return kb.editor.add_all(entities, relations)

    counts = await service.gates.run(name, load)
    service.runner.notify()
    return BaseResponse(data=counts)


def _entity(
    index: GraphIndex, key: str, value: float | None = None, allowed: Collection[int] | None = None
) -> EntityView:
    graph, shown = index.graph, index.graph.shown(key)
    chunks = _usable(graph.nodes[key].chunks, allowed)
    return EntityView(
        id=key,
        name=shown.name,
        type=shown.type,
        names=list(shown.aliases),
        description=description_of(graph, key, index.summaries, allowed),
        mentions=sum(graph.nodes[key].chunks[chunk_id] for chunk_id in chunks),
        chunk_ids=[str(chunk_id) for chunk_id in chunks[:_SHOWN]],
        claims=[_claim(chunk_id, one) for chunk_id, one in islice(graph.claims(key, allowed), _SHOWN)],
        value=value,
    )


def _claim(chunk_id: int, one: Claim) -> ClaimView:
    return ClaimView(
        object=one.object, type=one.type, status=one.status, description=one.description, start=one.start, end=one.end,
        quote=one.quote, chunk_id=str(chunk_id),
    )  # fmt: skip


def _relation(
    graph: Graph, pair: Pair, value: float | None = None, allowed: Collection[int] | None = None
) -> RelationView:
    edge = graph.edges[pair]
    return RelationView(
        source=graph.shown(pair[0]).name,
        target=graph.shown(pair[1]).name,
        label=edge.label,
        description=description_between(graph, pair, allowed),
        weight=round(edge.weight, 4),
        chunk_ids=[str(chunk_id) for chunk_id in _usable(edge.chunks, allowed)[:_SHOWN]],
        value=value,
    )


def _usable(chunks: Iterable[int], allowed: Collection[int] | None) -> list[int]:
    return sorted(one for one in chunks if one != BY_HAND and (allowed is None or one in allowed))
