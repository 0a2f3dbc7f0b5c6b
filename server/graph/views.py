"""What is shown of a graph: lists, neighbourhoods, files to take away."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from xml.sax.saxutils import escape, quoteattr

import orjson

from server.graph.describe import description_between, description_of
from server.graph.graph import BY_HAND, Graph, Pair
from server.graph.identity import entity_key


def find_entities(graph: Graph, query: str) -> list[str]:
    """Keys of the entities one of whose names holds the query (all for an empty one), the most mentioned first."""
    wanted = entity_key(query)
    keys = [key for key, node in graph.nodes.items() if not wanted or _holds(key, node.names, wanted)]
    return sorted(keys, key=lambda key: (-graph.nodes[key].chunks.total(), key))


def _holds(key: str, names: Iterable[str], wanted: str) -> bool:
    return wanted in key or any(wanted in entity_key(name) for name in names)


def find_relations(graph: Graph, query: str) -> list[Pair]:
    """Relations of the entities that `find_entities` finds, the heaviest first."""
    keys = set(find_entities(graph, query))
    pairs = [pair for pair in graph.edges if keys.intersection(pair)]
    return sorted(pairs, key=lambda pair: (-graph.edges[pair].weight, pair))


def neighbourhood(graph: Graph, name: str, depth: int, limit: int) -> tuple[list[str], list[Pair]]:
    """Entities at most `depth` relations away, nearest and heaviest first, at most `limit`; and the relations between
    them."""
    distance = dict.fromkeys(graph.keys_of(name), 0)
    queue = deque(distance)
    while queue and len(distance) < limit:
        key = queue.popleft()
        if distance[key] == depth:
            continue
        for pair in graph.around(key):
            other = pair[1] if pair[0] == key else pair[0]
            if other not in distance and len(distance) < limit:
                distance[other] = distance[key] + 1
                queue.append(other)
    pairs = {pair for key in distance for pair in graph.around(key) if pair[0] in distance and pair[1] in distance}
    return list(distance), sorted(pairs, key=lambda pair: (-graph.edges[pair].weight, pair))


def as_json_lines(graph: Graph) -> Iterator[bytes]:
    """One entity or relation a line."""
    for key in find_entities(graph, ""):
        shown, chunks = graph.shown(key), _chunks(graph.nodes[key].chunks)
        entity = {"kind": "entity", "id": key, "name": shown.name, "type": shown.type, "names": shown.aliases}
        said = {"description": description_of(graph, key, {}), "chunk_ids": chunks}
        yield orjson.dumps({**entity, **said}) + b"\n"
    for pair in find_relations(graph, ""):
        edge, ends = graph.edges[pair], (graph.shown(pair[0]).name, graph.shown(pair[1]).name)
        relation = {"kind": "relation", "source": ends[0], "target": ends[1], "label": edge.label}
        said = {"description": description_between(graph, pair), "chunk_ids": _chunks(edge.chunks)}
        yield orjson.dumps({**relation, "weight": round(edge.weight, 4), **said}) + b"\n"


def _chunks(chunks: Iterable[int]) -> list[int]:
    return sorted(chunk_id for chunk_id in chunks if chunk_id != BY_HAND)


def as_graphml(graph: Graph) -> Iterator[bytes]:
    """The graph for Gephi, yEd, NetworkX: GraphML with what is known of each as attributes."""
    yield b'<?xml version="1.0" encoding="UTF-8"?>\n<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n'
    for of, name, kind in (
        ("node", "name", "string"), ("node", "type", "string"), ("node", "description", "string"),
        ("node", "mentions", "int"),
        ("edge", "label", "string"), ("edge", "weight", "double"),
    ):  # fmt: skip
        yield f'<key id="{name}" for="{of}" attr.name="{name}" attr.type="{kind}"/>\n'.encode()
    yield b'<graph edgedefault="directed">\n'
    for key in find_entities(graph, ""):
        shown, mentions = graph.shown(key), graph.nodes[key].chunks.total()
        said = description_of(graph, key, {})
        data = _data({"name": shown.name, "type": shown.type, "description": said, "mentions": str(mentions)})
        yield f"<node id={quoteattr(key)}>{data}</node>\n".encode()
    for source, target in find_relations(graph, ""):
        edge = graph.edges[source, target]
        data = _data({"label": edge.label, "weight": f"{edge.weight:.4f}"})
        yield f"<edge source={quoteattr(source)} target={quoteattr(target)}>{data}</edge>\n".encode()
    yield b"</graph>\n</graphml>\n"


_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def _data(values: Mapping[str, str]) -> str:
    cleaned = ((key, _NOT_XML.sub(" ", value)) for key, value in values.items() if value)
    return "".join(f'<data key="{key}">{escape(value)}</data>' for key, value in cleaned)
