"""What a score means, with vectors that are known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from configs import EmbeddingModelSettings
from tests.conftest import Api, app_of, fake_settings

VECTORS = {
    "amber lantern": [1.0, 0.0, 0.0],
    "amber lamp": [0.8, 0.6, 0.0],
    "tax form 9": [0.0, 0.0, 1.0],
    "the other side": [-1.0, 0.0, 0.0],
    "poison": [float("nan"), 0.0, 0.0],
    "nothing": [0.0, 0.0, 0.0],
}


def known(name: str, **options: object) -> EmbeddingModelSettings:
    return EmbeddingModelSettings(name=name, provider="fake", options={"dimension": 3, "vectors": VECTORS, **options})


@pytest.fixture
def scored(tmp_path: Path) -> Iterator[Api]:
    models = [known("known"), EmbeddingModelSettings(name="wide", provider="fake", options={"dimension": 5})]
    with TestClient(app_of(fake_settings(tmp_path, embedding_models=models, default_embed_model="known"))) as client:
        api = Api(client)
        api.create("kb")
        files = {f"s{n}.txt": text for n, text in enumerate(list(VECTORS)[:4])}
        assert api.upload("kb", files)["data"]["failed_files"] == {}
        yield api


@pytest.mark.parametrize("kind", ["hybrid", "similarity"])
def test_a_score_is_the_squared_distance_of_unit_vectors(scored: Api, kind: str) -> None:
    hits = scored.search("kb", "amber lantern", top_k=10, score_threshold=4, search_type=kind)
    by_text = {hit["page_content"]: hit for hit in hits}
    scores = {text: hit["score"] for text, hit in by_text.items()}
    assert scores == pytest.approx(
        {"amber lantern": 0, "amber lamp": 0.4, "tax form 9": 2, "the other side": 4}, abs=1e-3
    )
    assert by_text["amber lamp"]["similarity"] == pytest.approx(0.8, abs=1e-3)
    assert by_text["the other side"]["similarity"] == 0
    assert hits[0]["page_content"] == "amber lantern"
    assert by_text["amber lantern"]["ranks"]["dense"] == 1


@pytest.mark.parametrize("kind", ["hybrid", "similarity"])
def test_the_threshold_is_kept_and_nested(scored: Api, kind: str) -> None:
    before: set[str] = set()
    for threshold, count in [(0.0, 1), (0.3, 1), (0.41, 2), (1.0, 2), (1.99, 2), (2.01, 3), (4, 4)]:
        hits = scored.search("kb", "amber lantern", top_k=10, score_threshold=threshold, search_type=kind)
        found = {hit["page_content"] for hit in hits}
        assert len(found) == count
        assert before <= found
        assert all(hit["score"] <= threshold for hit in hits)
        before = found


def test_the_default_threshold_drops_what_is_unrelated(scored: Api) -> None:
    assert {hit["page_content"] for hit in scored.search("kb", "amber lantern", top_k=10)} == {
        "amber lantern",
        "amber lamp",
    }


def test_top_k_is_kept(scored: Api) -> None:
    for top_k in (1, 2, 3, 4):
        assert len(scored.search("kb", "amber lantern", top_k=top_k, score_threshold=4)) == top_k
    many = scored.search("kb", "amber lantern", top_k=1000, score_threshold=4)
    assert len(many) == len({hit["id"] for hit in many}) == 4
    for bad in (0, -1, 1001):
        body = {"knowledge_base_name": "kb", "query": "x", "top_k": bad}
        assert scored.http.post("/knowledge_base/search_docs", json=body).status_code == 422


def test_keyword_search_needs_no_vectors_to_rank(scored: Api) -> None:
    hits = scored.search("kb", "tax form", search_type="keyword", score_threshold=4)
    assert [hit["page_content"] for hit in hits] == ["tax form 9"]
    assert list(hits[0]["ranks"]) == ["fused", "keyword"]


@pytest.mark.parametrize("text", ["poison", "nothing"])
def test_a_vector_that_is_no_vector_is_reported_and_never_stored(scored: Api, text: str) -> None:
    answer = scored.upload("kb", {"bad.txt": f"good line one\n\n{text}"}, chunk_size=14, chunk_overlap=0)
    assert "2 个片段中有 1 个" in answer["data"]["failed_files"]["bad.txt"]
    details = scored.details("kb")["bad.txt"]
    assert (details["state"], details["docs_count"], details["vectors_count"]) == ("partial", 2, 1)
    response = scored.http.post(
        "/knowledge_base/search_docs",
        json={"knowledge_base_name": "kb", "query": text, "score_threshold": 4, "search_type": "keyword"},
    )
    assert "NaN" not in response.text
    assert any(hit["page_content"] == text for hit in json.loads(response.text))


def test_a_question_without_a_vector_is_an_error_with_words(scored: Api) -> None:
    answer = scored.search("kb", "poison")
    assert answer["code"] == 500
    assert "known" in answer["msg"]


def test_a_model_that_changed_its_length_is_named_with_the_remedy(tmp_path: Path) -> None:
    def service(dimension: int) -> TestClient:
        models = [EmbeddingModelSettings(name="m", provider="fake", options={"dimension": dimension})]
        return TestClient(app_of(fake_settings(tmp_path, embedding_models=models, default_embed_model="m")))

    with service(8) as client:
        api = Api(client)
        api.create("kb")
        api.upload("kb", {"a.txt": "amber"})
    with service(16) as client:
        api = Api(client)
        refused = api.search("kb", "amber")
        assert refused["code"] == 500
        assert all(word in refused["msg"] for word in ("8", "16", "m", "recreate_vector_store"))
        failed = api.upload("kb", {"b.txt": "second"})["data"]["failed_files"]["b.txt"]
        assert "recreate_vector_store" in failed
        assert api.recreate("kb")[-1]["code"] == 200
        assert sorted(api.texts("kb", "amber second")) == ["amber", "second"]


def test_a_knowledge_base_keeps_its_model_when_the_default_changes(tmp_path: Path) -> None:
    for default in ("fake8", "fake"):
        with TestClient(app_of(fake_settings(tmp_path, default_embed_model=default))) as client:
            api = Api(client)
            if default == "fake8":
                api.create("kb")
                api.upload("kb", {"a.txt": "amber"})
            assert api.texts("kb", "amber") == ["amber"]


def test_an_unknown_model_is_refused_with_those_there_are(api: Api) -> None:
    answer = api.create("kb", embed_model="bge-large-zh-v1.5")
    assert answer["code"] == 500
    assert "fake8" in answer["msg"]
    assert api.http.get("/knowledge_base/list_knowledge_bases").json()["data"] == []
