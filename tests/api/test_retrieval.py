"""Search without a model: places, ranks, filters, several knowledge bases; chunks; the text that citations link to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Api

PUMPS = "# Pumps\n\nThe pump P-204 stands in hall three.\n\n## Care\n\nChange its oil every May."
ZH = "# 泵房\n\n泵房压力表每周校准一次。\n\n值守人负责记录。"


def retrieve(api: Api, query: str, *names: str, **more: Any) -> list[dict[str, Any]]:
    values = {"knowledge_base_names": list(names or ("kb",)), "score_threshold": 4, "top_k": 50, **more}
    return list(api.post("/retrieval/search", query=query, **values)["hits"])


@pytest.fixture
def kb(api: Api) -> Api:
    api.create("kb")
    api.upload("kb", {"pumps.md": PUMPS, "泵房.md": ZH}, chunk_size=40, chunk_overlap=0)
    return api


def test_a_hit_tells_its_place_and_how_it_was_found(kb: Api) -> None:
    hit = next(hit for hit in retrieve(kb, "change oil May") if "oil" in hit["text"])
    assert hit["file_name"] == "pumps.md"
    assert hit["knowledge_base_name"] == "kb"
    assert hit["headings"] == ["Pumps", "Care"]
    assert 0 <= hit["similarity"] <= 1
    assert 0 <= hit["score"] <= 4
    assert hit["ranks"]["keyword"] == 1
    assert {"fused", "dense"} <= hit["ranks"].keys()
    shown = kb.http.get(hit["url"].removeprefix("http://testserver"))
    assert f'<mark id="mark">{hit["text"]}</mark>' in shown.text
    place = {"knowledge_base_name": "kb", "file_name": "pumps.md", "start": hit["start"], "end": hit["end"]}
    assert kb.http.get("/knowledge_base/view_doc", params={**place, "plain": True}).text == hit["text"]


def test_chinese_too(kb: Api) -> None:
    first = retrieve(kb, "压力表多久校准")[0]
    assert "校准" in first["text"]
    assert first["headings"] == ["泵房"]


def test_several_knowledge_bases_at_once(kb: Api) -> None:
    kb.create("other")
    kb.upload("other", {"pumps.md": "The pump P-9 is spare.", "x.txt": "nothing of the kind"})
    hits = retrieve(kb, "pump", "kb", "other", "kb")
    assert {(hit["knowledge_base_name"], hit["file_name"]) for hit in hits} >= {
        ("kb", "pumps.md"),
        ("other", "pumps.md"),
    }
    assert len({(hit["knowledge_base_name"], hit["id"]) for hit in hits}) == len(hits)
    relevances = [hit["relevance"] for hit in hits]
    assert relevances == sorted(relevances, reverse=True)
    assert len(retrieve(kb, "pump", "kb", "other", top_k=2)) == 2
    assert kb.post("/retrieval/search", query="x", knowledge_base_names=["kb", "ghost"])["code"] == 404
    assert kb.post("/retrieval/search", query="x")["code"] == 422


# ---- filters

ROWS: list[dict[str, Any]] = [
    {"year": 2023, "kind": "a", "draft": True},
    {"year": 2024, "kind": "b", "draft": False},
    {"year": 2024.5, "kind": "a"},
    {"year": "2024", "kind": None},
    {"kind": 'it\'s "quoted" %_'},
    {},
]
OPERATIONS: dict[str, Any] = {
    "gt": lambda a, b: a > b, "gte": lambda a, b: a >= b, "lt": lambda a, b: a < b, "lte": lambda a, b: a <= b,
}  # fmt: skip


def fits(row: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """What a filter means, in plain Python."""
    kind = wanted["type"]
    if kind == "and":
        return all(fits(row, part) for part in wanted["filters"])
    if kind == "or":
        return any(fits(row, part) for part in wanted["filters"])
    if kind == "not":
        return not all(fits(row, part) for part in wanted["filters"])
    value: Any = row.get(wanted["key"])
    if kind in ("in", "nin"):
        return bool(any(same(value, one) for one in wanted["value"]) == (kind == "in"))
    if kind in ("eq", "ne"):
        return bool(same(value, wanted["value"]) == (kind == "eq"))
    if value is None or isinstance(value, bool) or isinstance(value, str) != isinstance(wanted["value"], str):
        return False
    return bool(OPERATIONS[kind](value, wanted["value"]))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


VALUES = st.sampled_from([2023, 2024, 2024.5, "2024", "a", "b", True, False, None, 'it\'s "quoted" %_'])
ORDERED = st.sampled_from([2023, 2024.2, "2024", "a"])
KEYS = st.sampled_from(["year", "kind", "draft", "nowhere"])
LEAVES = st.one_of(
    st.fixed_dictionaries({"type": st.sampled_from(["eq", "ne"]), "key": KEYS, "value": VALUES}),
    st.fixed_dictionaries({"type": st.sampled_from(list(OPERATIONS)), "key": KEYS, "value": ORDERED}),
    st.fixed_dictionaries({"type": st.sampled_from(["in", "nin"]), "key": KEYS, "value": st.lists(VALUES, max_size=3)}),
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.fixed_dictionaries(
        {"type": st.sampled_from(["and", "or", "not"]), "filters": st.lists(inner, min_size=1, max_size=3)}
    ),
    max_leaves=6,
)


@pytest.fixture
def rows(api: Api) -> Api:
    api.create("kb")
    docs = {"rows.txt": [{"page_content": f"row {n} entry", "metadata": row} for n, row in enumerate(ROWS)]}
    api.upload("kb", {"rows.txt": "x"}, docs=json.dumps(docs))
    return api


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=FILTERS)
def test_filters_mean_the_same_in_sql_as_in_plain_python(rows: Api, wanted: dict[str, Any]) -> None:
    expected = {f"row {n} entry" for n, row in enumerate(ROWS) if fits(row, wanted)}
    for kind in ("hybrid", "similarity", "keyword"):
        hits = retrieve(rows, "row entry", filters=wanted, search_type=kind)
        assert {hit["text"] for hit in hits} == expected, kind


def test_a_filter_is_applied_before_candidates_are_chosen(api: Api) -> None:
    api.create("kb")
    docs = [{"page_content": f"same words here {n}", "metadata": {"n": n}} for n in range(300)]
    api.upload("kb", {"f.txt": "x"}, docs=json.dumps({"f.txt": docs}))
    hits = retrieve(api, "same words here", filters={"type": "gte", "key": "n", "value": 297}, top_k=10)
    assert {hit["metadata"]["n"] for hit in hits} == {297, 298, 299}


def test_files_and_pages_can_be_filtered_by(kb: Api) -> None:
    wanted = {"type": "eq", "key": "file_name", "value": "泵房.md"}
    assert {hit["file_name"] for hit in retrieve(kb, "pump 泵房", filters=wanted)} == {"泵房.md"}
    inverse = {"type": "not", "filter": wanted}
    assert {hit["file_name"] for hit in retrieve(kb, "pump 泵房", filters=inverse)} == {"pumps.md"}
    language = {"type": "in", "key": "language", "value": ["zh"]}
    assert {hit["file_name"] for hit in retrieve(kb, "pump 泵房", filters=language)} == {"泵房.md"}


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "like", "key": "a", "value": "b"},
        {"type": "eq", "key": 'a"b', "value": 1},
        {"type": "eq", "value": 1},
        {"type": "gt", "key": "a", "value": True},
        {"type": "gt", "key": "a", "value": None},
        {"type": "eq", "key": "a", "value": {"b": 1}},
        {"type": "in", "key": "a", "value": 1},
        {"type": "and", "filters": []},
        {"type": "and", "filters": [{}]},
        {"type": "and", "filters": "x"},
        {"key": "a", "value": 1},
    ],
)
def test_a_filter_without_sense_is_refused_with_the_reason(kb: Api, bad: dict[str, Any]) -> None:
    answer = kb.post("/retrieval/search", query="x", knowledge_base_names=["kb"], filters=bad)
    assert answer["code"] == 422
    assert "过滤条件" in answer["msg"]


# ---- chunks


def chunks(api: Api, **params: Any) -> dict[str, Any]:
    response = api.http.get("/knowledge_base/chunks", params={"knowledge_base_name": "kb", **params})
    return dict(response.json())


def patch(api: Api, chunk_id: str, **body: Any) -> dict[str, Any]:
    response = api.http.patch(f"/knowledge_base/chunks/{chunk_id}", params={"knowledge_base_name": "kb"}, json=body)
    return dict(response.json())


def test_chunks_are_listed_in_reading_order_page_by_page(kb: Api) -> None:
    whole = chunks(kb, file_name="pumps.md")
    assert whole["total"] == len(whole["chunks"]) > 1
    starts = [chunk["start"] for chunk in whole["chunks"]]
    assert starts == sorted(starts)
    second = chunks(kb, file_name="pumps.md", offset=1, limit=1)
    assert second["chunks"] == whole["chunks"][1:2]
    assert chunks(kb)["total"] > whole["total"]


def test_a_chunk_can_be_edited_disabled_and_deleted(kb: Api) -> None:
    first, *others = chunks(kb, file_name="pumps.md")["chunks"]
    edited = patch(kb, first["id"], text="The zeppelin hangar is empty.", metadata={"by": "me", "page": 7})
    assert edited["text"] == "The zeppelin hangar is empty."
    assert edited["metadata"] == {"by": "me"}
    assert edited["start"] is None
    assert [hit["id"] for hit in retrieve(kb, "zeppelin hangar", search_type="keyword")] == [first["id"]]
    assert chunks(kb, file_name="pumps.md")["chunks"][1:] == others

    assert patch(kb, first["id"], enabled=False)["enabled"] is False
    assert retrieve(kb, "zeppelin hangar", search_type="keyword") == []
    assert first["id"] not in [hit["id"] for hit in retrieve(kb, "zeppelin hangar")]
    assert [chunk["enabled"] for chunk in chunks(kb, file_name="pumps.md")["chunks"]][0] is False
    kb.recreate("kb")
    listed = chunks(kb, file_name="pumps.md")["chunks"]
    assert [(chunk["text"], chunk["enabled"]) for chunk in listed][0] == ("The zeppelin hangar is empty.", False)
    assert [chunk["start"] for chunk in listed][1:] == [chunk["start"] for chunk in others]
    assert retrieve(kb, "zeppelin hangar", search_type="keyword") == []
    patch(kb, listed[0]["id"], enabled=True)
    assert len(retrieve(kb, "zeppelin hangar", search_type="keyword")) == 1

    deleted = kb.post("/knowledge_base/chunks/delete", knowledge_base_name="kb", ids=[int(listed[0]["id"])])
    assert deleted["data"] == {"deleted": 1}
    assert retrieve(kb, "zeppelin hangar", search_type="keyword") == []
    assert len(chunks(kb, file_name="pumps.md")["chunks"]) == len(others)


def test_an_edit_of_metadata_alone_keeps_place_and_vector(kb: Api) -> None:
    first = chunks(kb, file_name="pumps.md")["chunks"][0]
    edited = patch(kb, first["id"], metadata={"owner": "ops"})
    assert edited == {**first, "metadata": {"owner": "ops"}}
    wanted = {"type": "eq", "key": "owner", "value": "ops"}
    assert [hit["id"] for hit in retrieve(kb, "pump", filters=wanted)] == [first["id"]]


def test_unknown_chunks_and_texts_are_404(kb: Api) -> None:
    assert patch(kb, "999999", text="x")["code"] == 404
    missing = kb.http.get("/knowledge_base/chunks/999999", params={"knowledge_base_name": "kb"})
    assert missing.json()["code"] == 404
    gone = kb.http.get("/knowledge_base/view_doc", params={"knowledge_base_name": "kb", "file_name": "ghost.md"})
    assert gone.json()["code"] == 404


def test_a_text_is_shown_as_text_whatever_it_holds(api: Api) -> None:
    api.create("kb")
    evil = "before <script>alert(1)</script> after & more"
    api.upload("kb", {"evil.txt": evil})
    response = api.http.get("/knowledge_base/view_doc", params={"knowledge_base_name": "kb", "file_name": "evil.txt"})
    assert "<script>" not in response.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in response.text
    assert "sandbox" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"


def test_the_text_of_a_deleted_file_is_gone(kb: Api) -> None:
    kb.delete_docs("kb", "pumps.md", delete_content=True)
    gone = kb.http.get("/knowledge_base/view_doc", params={"knowledge_base_name": "kb", "file_name": "pumps.md"})
    assert gone.json()["code"] == 404
