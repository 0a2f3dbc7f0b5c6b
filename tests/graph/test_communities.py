"""Communities: a function of the graph alone, that changes where the graph does."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.domain import Extraction, Mention, Relation
from server.graph.communities import Community, communities, community_id
from server.graph.graph import Graph


def says(*names: str, weight: float = 1.0) -> Extraction:
    """A chunk that ties all these names."""
    pairs = itertools.combinations(names, 2)
    return Extraction(tuple(map(Mention, names)), tuple(Relation(a, b, weight=weight) for a, b in pairs))


def town(number: int) -> list[Extraction]:
    people = [f"person{number}x{at}" for at in range(6)]
    return [says(*people), says(people[0], f"person{number + 1}x0", weight=0.1)]


def graph_of(said: list[Extraction]) -> Graph:
    graph = Graph()
    graph.update(enumerate(said, start=1))
    return graph


def widest(found: list[Community]) -> list[Community]:
    return [one for one in found if one.level == 0]


def test_no_graph_has_no_communities() -> None:
    assert communities(Graph()) == []


def test_who_belongs_together_is_together() -> None:
    found = communities(graph_of([one for number in range(4) for one in town(number)]))
    narrow = [set(one.keys) for one in found if not one.children]
    for number in range(4):
        assert any({f"person{number}x{at}" for at in range(6)} <= keys for keys in narrow)


def test_entities_without_relations_are_not_lost() -> None:
    graph = graph_of([*town(0), Extraction((Mention("Loner"),)), Extraction((Mention("Aside"), Mention("person0x0")))])
    found = communities(graph)
    assert sorted(key for one in widest(found) for key in one.keys) == sorted(graph.nodes)
    assert any(one.keys == ("loner",) for one in found)
    assert any({"aside", "person0x0"} <= set(one.keys) for one in found if not one.children)


def check(graph: Graph, found: list[Community], largest: int) -> None:
    by_id = {one.id: one for one in found}
    assert len(by_id) == len(found)
    assert sorted(key for one in widest(found) for key in one.keys) == sorted(graph.nodes)
    for one in found:
        assert one.id == community_id(one.keys)
        assert len(one.children) <= largest
        assert one.children or len(one.keys) <= largest
        assert one.level == (by_id[one.parent].level + 1 if one.parent else 0)
        if one.children:
            assert len(one.children) > 1
            assert sorted(key for child in one.children for key in by_id[child].keys) == sorted(one.keys)
            assert {by_id[child].parent for child in one.children} == {one.id}


names = st.sampled_from([f"n{at}" for at in range(40)])
chunks = st.lists(
    st.builds(says, names, names.map(lambda name: name + "b"), names, weight=st.floats(0.1, 3)), min_size=1, max_size=40
)


@settings(max_examples=60, deadline=None)
@given(chunks, st.integers(2, 6), st.randoms(use_true_random=False))
def test_communities_are_a_tree_that_follows_from_the_graph_alone(
    said: list[Extraction], largest: int, order: random.Random
) -> None:
    graph = graph_of(said)
    found = communities(graph, largest)
    check(graph, found, largest)
    other = Graph()
    numbered = list(enumerate(said, start=1))
    order.shuffle(numbered)
    other.update(numbered)
    other.put(99, says("n1", "nx"))
    other.remove(99)
    assert communities(other, largest) == found


@pytest.mark.parametrize("gone", [0, 18, 64])
def test_what_changes_in_one_place_leaves_the_others_as_they_are(gone: int) -> None:
    said = [one for number in range(120) for one in town(number)]
    before = communities(graph_of(said))
    after = communities(graph_of([one for at, one in enumerate(said) if at != gone]))
    new = {one.id for one in after} - {one.id for one in before}
    assert 0 < len(new) < len(after) / 8
