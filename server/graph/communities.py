"""Communities: which entities belong together, from narrow ones of a few entities to wide ones of communities.

Entities join, one after the other, the community that they are tied to most strongly for its size (the local moving of
Louvain and Leiden with the constant Potts model, whose gains depend on a community and its neighbours alone, Traag et
al. 2011), until none wants to move; then communities do the same, and so on. Communities have a largest size, and
turns go by a hash of the names. So the same graph has the same communities whatever its history, and what changes in
one place leaves the communities of another as they are, which the random turns of Leiden do not: when one chunk of
10,000 went, it changed 7,174 of 8,897 communities, and the first form of this 19 of 7,425.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt

from server.graph.graph import BY_HAND, Graph

LARGEST = 10
"""Entities of a narrowest community, and communities of a wider one, at most."""
_HEAVIEST = 50.0
_LOOSE = 0.1
"""Weight of the tie between an entity without relations and what else its chunk speaks of."""
_SPARSE = 0.005
"""What each member of a community must add to the share of an entity's ties that lead into it."""
_MERGES = 3
"""Rounds in which narrowest communities join while all their entities find room in one."""
_SWEEPS = 20
_DEEPEST = 12

Ties = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Community:
    """Entities that belong together; level 0 is the widest. `parent` is the community that this one is a part of (empty
    at level 0), `children` are its own parts. `id` follows from the entities alone."""

    id: str
    level: int
    keys: tuple[str, ...]
    parent: str = ""
    children: tuple[str, ...] = field(default=())


def communities(graph: Graph, largest: int = LARGEST) -> list[Community]:
    """All communities of a graph, the widest levels first and the larger ones first in each; every entity is in one of
    level 0. An empty graph has none."""
    return communities_of(ties_of(graph), largest)


def communities_of(ties: Ties, largest: int = LARGEST) -> list[Community]:
    """The same of ties that were taken from a graph before, which may go on changing."""
    members: dict[str, tuple[str, ...]] = {key: (key,) for key in ties}
    for _ in range(_MERGES):  # small ones join, as long as all their entities find room
        ties, members, _ = _joined(ties, members, {node: len(keys) for node, keys in members.items()}, largest)
    found = {community_id(keys): Community(community_id(keys), 0, keys) for keys in members.values()}
    if members:
        ties, members = _renamed(ties, members)
    for _ in range(_DEEPEST):
        if len(members) <= largest:
            break
        ties, wider, parts = _joined(ties, members, dict.fromkeys(members, 1), largest)
        if len(wider) == len(members):
            break
        found |= {name: Community(name, 0, wider[name], children=parts[name]) for name in wider if len(parts[name]) > 1}
        members = wider
    return sorted(_levelled(found, members), key=lambda one: (one.level, -len(one.keys), one.id))


_Members = dict[str, tuple[str, ...]]


def _joined(
    ties: Ties, members: _Members, load: Mapping[str, int], largest: int
) -> tuple[Ties, _Members, dict[str, tuple[str, ...]]]:
    """One round: (the ties of the new nodes, their entities, the nodes that each was made of)."""
    groups = _grouped(ties, members, load, largest)
    keys = {group: tuple(sorted(key for one in group for key in members[one])) for group in groups}
    named = {group: group[0] if len(group) == 1 else community_id(keys[group]) for group in groups}
    return _between(ties, named), {named[one]: keys[one] for one in groups}, {named[one]: one for one in groups}


def _renamed(ties: Ties, members: _Members) -> tuple[Ties, _Members]:
    """Entities that stayed alone get the names of communities too."""
    named: dict[tuple[str, ...], str] = {(node,): community_id(keys) for node, keys in members.items()}
    return _between(ties, named), {named[node,]: keys for node, keys in members.items()}


def _levelled(found: Mapping[str, Community], widest: Iterable[str]) -> Iterator[Community]:
    """The communities with their levels and parents, from the widest down."""
    queue = [(name, 0, "") for name in widest]
    while queue:
        name, level, parent = queue.pop()
        yield replace(found[name], level=level, parent=parent)
        queue.extend((child, level + 1, name) for child in found[name].children)


def ties_of(graph: Graph) -> Ties:
    """The weights between entities in both directions; one that has no relation is tied loosely to the entity of its
    chunk that has most."""
    # sums of floats depend on their order, which must not depend on the order in which chunks came
    ties: dict[str, dict[str, float]] = {key: {} for key in sorted(graph.nodes)}
    for (source, target), edge in sorted(graph.edges.items()):
        weight = round(min(_HEAVIEST, edge.weight), 6) + ties[source].get(target, 0.0)
        ties[source][target] = ties[target][source] = weight
    for key in [key for key, others in ties.items() if not others]:
        for chunk_id in graph.nodes[key].chunks:
            near = [one for one in graph.entities_in(chunk_id) if one != key and graph.around(one)]
            if near and chunk_id != BY_HAND:
                hub = min(near, key=lambda one: (-len(graph.around(one)), one))
                ties[key][hub] = ties[hub][key] = _LOOSE
    return ties


def _grouped(
    ties: Ties, members: Mapping[str, tuple[str, ...]], load: Mapping[str, int], largest: int
) -> list[tuple[str, ...]]:
    """The nodes in groups whose `load` is `largest` at most, by local moving."""
    turn = {node: _turn(node) for node in ties}
    order = sorted(ties, key=turn.__getitem__)
    scale = {node: sqrt(len(members[node])) for node in ties}
    strength = {node: sum(weight / scale[other] for other, weight in ties[node].items()) for node in ties}
    home = {node: node for node in ties}
    sizes = dict(load)
    waiting = dict.fromkeys(order)
    for _ in range(_SWEEPS):
        moving, waiting = waiting, {}
        for node in sorted(moving, key=turn.__getitem__):
            pulls: defaultdict[str, float] = defaultdict(float)
            for other, weight in ties[node].items():
                pulls[home[other]] += weight / (strength[node] * scale[other])
            own = home[node]
            best, gain = own, pulls.get(own, 0.0) - _SPARSE * (sizes[own] - load[node])
            for group, pull in pulls.items():
                value = pull - _SPARSE * sizes[group]
                fits = group != own and sizes[group] + load[node] <= largest
                if fits and (value, turn[best]) > (gain + 1e-9, turn[group]):
                    best, gain = group, value
            if best != own:
                sizes[own] -= load[node]
                sizes[best] += load[node]
                home[node] = best
                waiting.update(dict.fromkeys(other for other in ties[node] if home[other] != best))
        if not waiting:
            break
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for node in order:
        groups[home[node]].append(node)
    pieces = [piece for group in groups.values() for piece in _connected(group, ties)]
    alone = [piece[0] for piece in pieces if len(piece) == 1]
    return [piece for piece in pieces if len(piece) > 1] + _gathered(alone, ties, load, home, largest)


def _gathered(
    alone: Sequence[str],
    ties: Ties,
    load: Mapping[str, int],
    home: Mapping[str, str],
    largest: int,
) -> list[tuple[str, ...]]:
    """Nodes that found no place: those that are drawn to the same full community together, and entities that nothing is
    tied to. Where a list is cut depends on what stands there, so that a change does not move the other cuts."""
    drawn: defaultdict[str, list[str]] = defaultdict(list)
    for node in sorted(alone, key=_turn):
        if ties[node]:
            nearest = min(ties[node], key=lambda other: (-ties[node][other], _turn(other)))
            drawn[home[nearest]].append(node)
        else:
            drawn[""].append(node)
    pieces: list[tuple[str, ...]] = []
    for nodes in drawn.values():
        piece: list[str] = []
        for node in nodes:
            if sum(load[one] for one in piece) + load[node] > largest:
                pieces.append(tuple(sorted(piece)))
                piece = []
            piece.append(node)
            if _turn(node)[-1] % largest == 0:
                pieces.append(tuple(sorted(piece)))
                piece = []
        if piece:
            pieces.append(tuple(sorted(piece)))
    return pieces


def _connected(group: Sequence[str], ties: Ties) -> Iterator[tuple[str, ...]]:
    """The parts of a group that hang together; one that lost its middle while it was made falls apart."""
    left = dict.fromkeys(group)
    while left:
        part, queue = [], [left.popitem()[0]]
        while queue:
            part.append(node := queue.pop())
            near = [other for other in left if other in ties[node]]
            for other in near:
                del left[other]
            queue.extend(near)
        yield tuple(sorted(part))


def _between(ties: Ties, named: Mapping[tuple[str, ...], str]) -> Ties:
    """The weights between groups."""
    of = {node: name for group, name in named.items() for node in group}
    between: dict[str, defaultdict[str, float]] = {name: defaultdict(float) for name in of.values()}
    for node, others in ties.items():
        for other, weight in others.items():
            if of[node] != of[other]:
                between[of[node]][of[other]] += weight
    return between


def _turn(node: str) -> bytes:
    return hashlib.blake2b(node.encode(), digest_size=8).digest()


def community_id(keys: Iterable[str]) -> str:
    """Sixteen letters that tell a set of entities."""
    return hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]
