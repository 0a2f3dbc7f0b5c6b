"""What a model is told of entities and relations, beside the passages that bear it out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from server.domain import Claim, Fact
from server.graph.describe import Summaries, description_between, description_of
from server.graph.graph import Graph
from server.graph.search import GraphFound
from server.tokens import estimate_tokens

ENTITY, RELATION, CLAIM = "entity", "relation", "claim"


def entity_facts(
    graph: Graph, summaries: Summaries, found: GraphFound, shown: Collection[int], allowed: Collection[int] | None
) -> Iterator[Fact]:
    """What is said of the entities that a search found, the best first. Only of those that have a description and that
    a `shown` chunk bears out: an answer can cite it then."""
    for key, _ in found.entities:
        if key in graph.nodes and (chunks := _among(graph.nodes[key].chunks, shown)):
            entity = graph.shown(key)
            if said := description_of(graph, key, summaries, allowed):
                kind = f" ({entity.type})" if entity.type else ""
                yield Fact(ENTITY, f"{entity.name}{kind}: {said}", chunks)


def relation_facts(
    graph: Graph, found: GraphFound, shown: Collection[int], allowed: Collection[int] | None
) -> Iterator[Fact]:
    """The same of relations."""
    for pair, _ in found.relations:
        if pair in graph.edges and (chunks := _among(graph.edges[pair].chunks, shown)):
            ends = tuple(graph.shown(key).name for key in pair)
            if said := description_between(graph, pair, allowed):
                yield Fact(RELATION, f"{ends[0]} → {ends[1]}: {said}", chunks)


def claim_facts(
    graph: Graph, found: GraphFound, shown: Collection[int], allowed: Collection[int] | None
) -> Iterator[Fact]:
    """What the `shown` chunks assert of the entities that a search found."""
    for key, _ in found.entities:
        if key in graph.nodes:
            for chunk_id, claim in graph.claims(key, allowed):
                if chunk_id in shown:
                    yield Fact(CLAIM, said_in(claim), frozenset({str(chunk_id)}))


def said_in(claim: Claim) -> str:
    """A claim as a line of text."""
    days = "–".join(day for day in (claim.start, claim.end) if day)
    known = ", ".join(part for part in (claim.type, claim.status, days) if part)
    ends = " → ".join(name for name in (claim.subject, claim.object) if name)
    return f"{ends} ({known}): {claim.description or claim.quote}"


def within(facts: Iterable[Fact], tokens: int) -> list[Fact]:
    """As many, the best first, as fit into a number of tokens; those behind are not even made."""
    kept = []
    for fact in facts:
        tokens -= estimate_tokens(fact.text)
        if tokens < 0:
            break
        kept.append(fact)
    return kept


def _among(chunks: Iterable[int], shown: Collection[int]) -> frozenset[str]:
    return frozenset(str(chunk_id) for chunk_id in chunks if chunk_id in shown)


def as_lines(facts: Sequence[Fact], numbers: dict[str, int]) -> str:
    """A line for each fact that sources bear out, with their numbers; `numbers` are those of the sources by chunk."""
    lines = []
    for fact in facts:
        marks = sorted(numbers[chunk_id] for chunk_id in fact.chunk_ids if chunk_id in numbers)
        if marks:
            lines.append(f"- {' '.join(fact.text.split())} {''.join(f'[{number}]' for number in marks[:_MARKS])}")
    return "\n".join(lines)


_MARKS = 3
