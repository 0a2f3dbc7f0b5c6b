"""The graph in memory is a sum over chunks; names that mean the same are one; what a text does not say stays out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.db.graphs import dump, load
from server.domain import Claim, Edits, Extraction, Mention, Relation
from server.graph import views
from server.graph.graph import Graph
from server.graph.identity import candidate_names, entity_key, grounded
from server.graph.search import GRAPH_MODES, GraphMode, GraphSearch
from server.graph.texts import Texts

SAID = ("", "wrote letters", "kept a lamp", "写信")
NAMES = ("Ada", "ada", "Bo Li", "李白", "Corp", "D-1")


def say(*names: str, relations: tuple[tuple[str, str], ...] = (), kind: str = "") -> Extraction:
    return Extraction(tuple(Mention(n, kind) for n in names), tuple(Relation(a, b, "knows") for a, b in relations))


@st.composite
def mentions(draw: st.DrawFn) -> Mention:
    kind = draw(st.sampled_from(("", "person", "place", "concept")))
    said = draw(st.sampled_from(SAID))
    return Mention(draw(st.sampled_from(NAMES)), kind, said, tuple(draw(st.lists(st.sampled_from(NAMES), max_size=1))))


@st.composite
def extractions(draw: st.DrawFn) -> Extraction:
    found = draw(st.lists(mentions(), unique_by=lambda one: one.name, max_size=5))
    names = [one.name for one in found]
    pairs = [(a, b) for a in names for b in names if entity_key(a) != entity_key(b)]
    relations = draw(st.lists(st.sampled_from(pairs), max_size=4)) if pairs else []
    said = st.sampled_from(SAID)
    return Extraction(
        tuple(found),
        tuple(Relation(a, b, "knows", draw(said)) for a, b in relations),
        tuple(Claim(name, description=draw(said), quote="x") for name in names[:1]),
    )


EDITS = (
    Edits(),
    Edits(merged={"d1": "corp"}),
    Edits(merged={"ada#person": "boli"}, apart=frozenset({"corp"})),
    Edits(hidden=frozenset({"boli"}), hidden_pairs=frozenset({("ada", "corp")})),
    Edits(entities={"new": Mention("New", "person")}, relations={("new", "ada"): Relation("New", "Ada", "made")}),
)


def told(graph: Graph, texts: Texts) -> tuple[Any, ...]:
    """All that is shown of a graph."""
    return (
        {key: (graph.shown(key), graph.descriptions(key), list(graph.claims(key))) for key in graph.nodes},
        {pair: graph.descriptions_of(pair) for pair in graph.edges},
        dict(texts.of(graph, {}, ())),
    )


@given(st.lists(st.tuples(st.integers(1, 6), st.none() | extractions()), max_size=25), st.sampled_from(EDITS))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_history_gives_the_graph_of_what_is_left(
    history: list[tuple[int, Extraction | None]], edits: Edits
) -> None:
    graph, texts = Graph(edits), Texts()
    left: dict[int, Extraction] = {}
    for chunk_id, found in history:
        if found is None:
            graph.remove(chunk_id)
            left.pop(chunk_id, None)
        else:
            graph.put(chunk_id, found)
            left[chunk_id] = found
        told(graph, texts)  # what is kept of it must go with what it was made of
    fresh = Graph(edits)
    fresh.update(left.items())
    assert (graph.nodes, graph.edges) == (fresh.nodes, fresh.edges)
    assert all(graph.around(key) == fresh.around(key) for key in fresh.nodes)
    assert told(graph, texts) == told(fresh, Texts())


def test_names_that_chunks_give_one_entity_are_one() -> None:
    graph = Graph()
    graph.put(1, Extraction((Mention("刘备", "人物", "", ("玄德", "丞相")),)))
    graph.put(2, say("玄德", kind="人物"))
    graph.put(3, Extraction((Mention("曹操", "人物", "", ("丞相",)),)))
    assert len(graph.nodes) == 2  # 丞相 is what two are called, and tells nothing
    assert set(graph.nodes[graph.keys_of("玄德")[0]].chunks) == {1, 2}
    graph.remove(1)
    assert set(graph.nodes[graph.keys_of("玄德")[0]].chunks) == {2}


def test_things_of_different_kinds_are_not_one() -> None:
    graph = Graph()
    graph.put(1, say("Washington", "Mount Vernon", relations=(("Washington", "Mount Vernon"),), kind="person"))
    graph.put(2, say("Washington", "Seattle", relations=(("Washington", "Seattle"),), kind="location"))
    graph.put(3, say("Washington"))
    person, place = sorted(graph.keys_of("washington"), key=lambda key: graph.nodes[key].type, reverse=True)
    assert {1} <= set(graph.nodes[person].chunks) < {1, 2, 3}
    assert ("washington#location", "seattle") in graph.edges
    assert graph.keys_of(place) == [place]
    graph.put(2, say("Washington", "Seattle", kind="person"))
    assert graph.keys_of("Washington") == ["washington"]
    for chunk_id in range(4, 12):
        graph.put(chunk_id, say("Washington", kind="person"))
    graph.put(2, say("Washington", "Seattle", kind="location"))
    assert graph.keys_of("Washington") == ["washington"]  # one in so many is a mistake


@pytest.mark.parametrize(
    "same",
    [
        ("System Admin", "system admin", "SystemAdmin", "SYSTEM-ADMIN", "the System Admin", "“System Admin”"),
        ("Acme Corp", "ACME Corp.", "Acme Corporation", "Acme, Inc."),
        ("华为", "华为有限公司", "华为股份有限公司", "「华为」"),
        ("Ｆｕｌｌ Ｗｉｄｔｈ", "full width"),
        ("Scrooge", "Scrooge's"),
    ],
)
def test_names_of_one_entity_have_one_key(same: tuple[str, ...]) -> None:
    assert len({entity_key(name) for name in same}) == 1
    assert entity_key(same[0])


def test_names_of_different_entities_have_different_keys() -> None:
    names = ("Washington", "Washington DC", "Boeing 747", "Boeing 737", "有限公司", "C", "C++ builder")
    assert len({entity_key(name) for name in names}) == len(names)


def test_only_what_the_text_says_stays() -> None:
    found = say(
        "Noah Carter", "<entity_name>", "ACME corp", "Berlin", "", "x" * 200,
        relations=(("ACME corp", "Berlin"), ("Berlin", "Berlin"), ("Noah Carter", "Berlin")),
    )  # fmt: skip
    kept, dropped = grounded(found, "Acme Corporation moved to BERLIN; write <entity_name> here.")
    assert [mention.name for mention in kept.mentions] == ["ACME corp", "Berlin"]
    assert [(one.source, one.target) for one in kept.relations] == [("ACME corp", "Berlin")]
    assert dropped == 6
    kept, _ = grounded(say("ACME Corp", "Berlin", relations=(("acme corp.", "BERLIN"),)), "Acme Corp is in Berlin.")
    assert load(dump(kept)).relations == (Relation("ACME Corp", "Berlin", "knows"),)


def test_a_question_names_entities_in_both_languages() -> None:
    keys = {entity_key(name) for name in candidate_names("Who is Ebenezer Scrooge's partner?")}
    assert {"ebenezerscrooge", "scrooge"} <= keys
    assert "eben" not in keys
    assert {"刘备", "关羽"} <= set(candidate_names("刘备和关羽是什么关系？"))


def harbour() -> Graph:
    """Ada runs the harbour (1); the harbour lies in Lisbon (2); Lisbon's mayor is Bo (3); nothing leads to Cy (4)."""
    graph = Graph()
    graph.put(1, say("Ada", "Harbour", relations=(("Ada", "Harbour"),)))
    graph.put(2, say("Harbour", "Lisbon", relations=(("Harbour", "Lisbon"),)))
    graph.put(3, say("Lisbon", "Bo", relations=(("Lisbon", "Bo"),)))
    graph.put(4, say("Cy", "Dee", relations=(("Cy", "Dee"),)))
    return graph


@pytest.mark.parametrize("mode", GRAPH_MODES)
def test_a_search_follows_the_graph(mode: GraphMode) -> None:
    found = GraphSearch(harbour(), "Where is the Harbour of Ada?", [(1, 1.0)], None).run(mode)
    assert [chunk_id for chunk_id, _ in found.chunks][:2] == [1, 2]
    assert 4 not in [chunk_id for chunk_id, _ in found.chunks]
    assert [key for key, _ in found.entities[:2]] in (["ada", "harbour"], ["harbour", "ada"])
    assert ("ada", "harbour") in [pair for pair, _ in found.relations]


@pytest.mark.parametrize("mode", GRAPH_MODES)
def test_nothing_comes_from_chunks_that_are_not_allowed(mode: GraphMode) -> None:
    found = GraphSearch(harbour(), "Ada, Harbour, Lisbon?", [(1, 1.0), (2, 0.9), (3, 0.5)], {1}).run(mode)
    assert [chunk_id for chunk_id, _ in found.chunks] == [1]
    assert {key for key, _ in found.entities} <= {"ada", "harbour"}
    assert {pair for pair, _ in found.relations} <= {("ada", "harbour")}


@pytest.mark.parametrize("mode", GRAPH_MODES)
def test_an_empty_graph_is_no_error(mode: GraphMode) -> None:
    assert GraphSearch(Graph(), "Ada?", [], None).run(mode).entities == []


def test_pagerank_is_a_probability_that_leans_to_its_beginnings() -> None:
    matrix = harbour().matrix
    reset = np.zeros(matrix.size)
    reset[matrix.number["ada"]] = 2.0
    rank = matrix.pagerank(reset)
    assert rank.sum() == pytest.approx(1.0)
    assert rank[matrix.number["ada"]] > rank[matrix.number["harbour"]] > rank[matrix.number["lisbon"]] > 0
    assert rank[matrix.number["cy"]] == 0


def test_neighbourhoods_are_bounded() -> None:
    graph = harbour()
    assert views.neighbourhood(graph, "ADA", 1, 50)[0] == ["ada", "harbour"]
    keys, pairs = views.neighbourhood(graph, "Ada", 5, 3)
    assert keys == ["ada", "harbour", "lisbon"]
    assert pairs == [("ada", "harbour"), ("harbour", "lisbon")]
    assert views.neighbourhood(graph, "Zed", 1, 5) == ([], [])


def test_names_in_an_export_are_text() -> None:
    import xml.etree.ElementTree as ET

    graph = Graph()
    graph.put(1, say('A<b>&"c', "D", relations=(('A<b>&"c', "D"),)))
    root = ET.fromstring(b"".join(views.as_graphml(graph)))
    assert 'A<b>&"c' in [data.text for data in root.iter("{http://graphml.graphdrawing.org/xmlns}data")]
    assert len(b"".join(views.as_json_lines(graph)).splitlines()) == 3
