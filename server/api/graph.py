"""The graph of a knowledge base: how far it is, what is in it, searches along it, merging what is one."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from server.api.deps import ServiceDep
from server.api.filters import condition_of
from server.api.retrieval import KB, hit_view
from server.api.schemas import BaseResponse, KBName
from server.api.schemas_graph import (
    EntityName,
    EntityPage,
    EntityView,
    FileGraphState,
    GraphData,
    GraphQuery,
    GraphState,
    MergeEntities,
    RelationPage,
    RelationView,
    Subgraph,
)
from server.db.graphs import BuildState
from server.errors import InvalidRequest, NotFound
from server.graph import views
from server.graph.graph import Graph, Pair
from server.graph.search import GRAPH_MODES
from server.knowledge_base.backends.graph import GraphKBService
from server.knowledge_base.operations import service_of
from server.names import kb_label

router = APIRouter(prefix="/graph", tags=["Graph"])

Text = Annotated[str, Query(max_length=200, description="part of a name; default: all")]
Offset = Annotated[int, Query(ge=0, le=2**31, description="how many to leave out")]
Limit = Annotated[int, Query(ge=1, le=1000, description="how many at most")]
_SHOWN = 100


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
        by_file, building = kb.build_state()
        state = BuildState.sum(by_file.values())
        with kb.graph() as graph:
            entities, relations = len(graph.nodes), len(graph.edges)
        return GraphState(
            chunks=state.total,
            done=state.done,
            failed=state.failed,
            building=building,
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


@router.get("/entities", operation_id="list_entities")
async def list_entities(
    service: ServiceDep, knowledge_base_name: KB, query: Text = "", offset: Offset = 0, limit: Limit = 100
) -> EntityPage:
    """Entities whose names hold the query, the most mentioned first."""
    name = kb_label(knowledge_base_name)

    def load() -> EntityPage:
        with _opened(name).graph() as graph:
            keys = views.find_entities(graph, query)
            shown = [_entity(graph, key) for key in keys[offset : offset + limit]]
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
        with _opened(kb_name).graph() as graph:
            keys, pairs = views.neighbourhood(graph, name, depth, limit)
            if not keys:
                raise NotFound(f"图谱中没有 {name} / no such entity: {name}")
            return Subgraph(
                entities=[_entity(graph, key) for key in keys], relations=[_relation(graph, pair) for pair in pairs]
            )

    return await service.gates.run(kb_name, load)


@router.post("/query/data", operation_id="graph_query_data")
async def graph_query_data(body: GraphQuery, request: Request, service: ServiceDep) -> GraphData:
    """The entities, relations and chunks that a question leads to; no language model is asked."""
    name, base = kb_label(body.knowledge_base_name), service.public_url(request)
    mode, where = body.mode or "ppr", condition_of(body.filters)
    if mode not in GRAPH_MODES:
        raise InvalidRequest(f"mode 应为 / mode must be one of: {', '.join(GRAPH_MODES)}")

    def load() -> GraphData:
        kb = _opened(name)
        found, hits = kb.follow(body.query, mode, where)
        with kb.graph() as graph:
            entities = [_entity(graph, key, value) for key, value in found.entities if key in graph.nodes]
            relations = [_relation(graph, pair, value) for pair, value in found.relations if pair in graph.edges]
        chunks = [hit_view(hit, base, visible=True) for hit in hits[: body.top_k or service.settings.top_k]]
        return GraphData(entities=entities, relations=relations, chunks=chunks)

    return await service.gates.run(name, load)


@router.post("/merge", operation_id="merge_entities")
async def merge_entities(body: MergeEntities, service: ServiceDep) -> BaseResponse:
    """Treat several entities as one from now on; `/graph/split` undoes it."""
    name = kb_label(body.knowledge_base_name)
    merged = await service.gates.run(name, lambda: _opened(name).merge(body.names, body.into))
    return BaseResponse(data={"merged": merged})


@router.post("/split", operation_id="split_entity")
async def split_entity(body: EntityName, service: ServiceDep) -> BaseResponse:
    """Undo what was merged into an entity by hand, or the entity's own merging."""
    name = kb_label(body.knowledge_base_name)
    freed = await service.gates.run(name, lambda: _opened(name).split(body.name))
    return BaseResponse(data={"split": freed})


@router.get("/export", operation_id="export_graph", response_class=Response)
async def export_graph(
    service: ServiceDep,
    knowledge_base_name: KB,
    format: Annotated[Literal["jsonl", "graphml"], Query(description="jsonl or graphml")] = "jsonl",
) -> Response:
    """The whole graph as a file."""
    name = kb_label(knowledge_base_name)

    def load() -> bytes:
        with _opened(name).graph() as graph:
            return b"".join(views.as_graphml(graph) if format == "graphml" else views.as_json_lines(graph))

    kind = "application/graphml+xml" if format == "graphml" else "application/jsonl"
    headers = {"content-disposition": f"attachment; filename=graph.{format}", "x-content-type-options": "nosniff"}
    return Response(await service.gates.run(name, load), media_type=kind, headers=headers)


def _entity(graph: Graph, key: str, value: float | None = None) -> EntityView:
    node = graph.nodes[key]
    return EntityView(
        name=node.name,
        type=node.type,
        names=[name for name, _ in sorted(node.names.items(), key=lambda item: (-item[1], item[0]))],
        mentions=node.chunks.total(),
        chunk_ids=[str(chunk_id) for chunk_id in sorted(node.chunks)[:_SHOWN]],
        value=value,
    )


def _relation(graph: Graph, pair: Pair, value: float | None = None) -> RelationView:
    edge = graph.edges[pair]
    return RelationView(
        source=graph.nodes[pair[0]].name,
        target=graph.nodes[pair[1]].name,
        label=edge.label,
        weight=round(edge.weight, 4),
        chunk_ids=[str(chunk_id) for chunk_id in sorted(edge.chunks)[:_SHOWN]],
        value=value,
    )
