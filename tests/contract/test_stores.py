"""One suite for every vector store: the hooks, and the service above them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from server.db.vectors import FloatArray
from server.domain import KnowledgeBase
from server.errors import AlreadyExists, InvalidRequest, NotFound
from server.knowledge_base.context import KBContext, Space
from server.knowledge_base.factory import KBServiceFactory, SupportedVSType
from server.knowledge_base.service import KBService
from server.runtime import Runtime
from tests.conftest import fake_settings

DIMENSION = 32
STORES = list(SupportedVSType)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[KBContext]:
    runtime = Runtime.build(fake_settings(tmp_path))
    yield runtime.service.context
    runtime.service.context.close()


@pytest.fixture(params=STORES, ids=[store.value for store in STORES])
def service(request: pytest.FixtureRequest, context: KBContext) -> KBService:
    made = KBServiceFactory.get_service("商店 one", request.param)
    made.create_kb()
    return made


@pytest.fixture
def kb(service: KBService) -> KnowledgeBase:
    return service.kb()


@pytest.fixture
def space(kb: KnowledgeBase) -> Space:
    return Space.of(kb.generation)


def vectors(count: int, seed: int = 0) -> FloatArray:
    """Unit vectors that all lie close together, so that a careless search mixes them up."""
    drawn = np.random.default_rng(seed).normal(size=(count, DIMENSION)) + 3.0
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), dtype=np.float32)


def exact(stored: FloatArray, query: FloatArray, top_k: int) -> list[int]:
    return [int(at) + 1 for at in np.argsort(-(stored @ query), kind="stable")[:top_k]]


def test_search_finds_the_nearest_in_order(service: KBService, space: Space) -> None:
    stored = vectors(500)
    service.do_add_doc(space, range(1, 501), stored)
    for query in vectors(20, seed=1):
        found = service.do_search(space, query, 10)
        wanted = exact(stored, query, 10)
        assert len(set(found) & set(wanted)) >= 9
        assert found[0] in wanted[:2]


def test_top_k_beyond_the_size_and_an_empty_store(service: KBService, space: Space) -> None:
    assert service.do_search(space, vectors(1)[0], 5) == []
    service.do_add_doc(space, [7, 9], vectors(2))
    assert sorted(service.do_search(space, vectors(1)[0], 50)) == [7, 9]


def test_adding_again_replaces(service: KBService, space: Space) -> None:
    stored = vectors(3)
    service.do_add_doc(space, [1, 2, 3], stored)
    service.do_add_doc(space, [2], -stored[1:2])
    assert sorted(service.do_ids(space)) == [1, 2, 3]
    assert service.do_search(space, stored[1], 3)[-1] == 2
    assert service.do_search(space, -stored[1], 1) == [2]


def test_deleting_takes_ranges_and_nothing_else(service: KBService, space: Space) -> None:
    service.do_add_doc(space, range(1, 101), vectors(100))
    service.do_delete_doc(space, [(10, 19), (50, 50), (1000, 2000)])
    left = set(range(1, 101)) - set(range(10, 20)) - {50}
    assert set(service.do_ids(space)) == left
    assert set(service.do_search(space, vectors(1)[0], 200)) == left


def test_versions_and_clearing(service: KBService, space: Space) -> None:
    assert service.do_version(space) == 0
    service.do_add_doc(space, [1], vectors(1))
    service.do_commit(space, 5)
    assert service.do_version(space) == 5
    service.do_clear_vs(space)
    assert service.do_version(space) == 0
    assert list(service.do_ids(space)) == []


def test_two_knowledge_bases_do_not_meet(service: KBService, space: Space) -> None:
    other = KBServiceFactory.get_service("另一个", service.vs_type())
    there = Space.of(other.create_kb().generation)
    service.do_add_doc(space, [1, 2], vectors(2))
    other.do_add_doc(there, [2, 3], vectors(2, seed=5))
    service.do_delete_doc(space, [(1, 9)])
    assert sorted(other.do_ids(there)) == [2, 3]
    other.drop_kb()
    assert list(service.do_ids(space)) == []


def test_what_was_saved_is_there_after_a_restart(service: KBService, space: Space, context: KBContext) -> None:
    service.do_add_doc(space, range(1, 51), vectors(50))
    service.do_commit(space, 3)
    service.do_save(space, force=True)
    context.vector_pool.clear()
    assert sorted(service.do_ids(space)) == list(range(1, 51))
    assert service.do_version(space) == 3


def test_ten_thousand_vectors_and_wide_ids(service: KBService, space: Space) -> None:
    stored, first = vectors(10_000), 2**40
    service.do_add_doc(space, range(first, first + 10_000), stored)
    query = stored[1234]
    assert service.do_search(space, query, 1) == [first + 1234]


def test_dropping_leaves_nothing(service: KBService, kb: KnowledgeBase, context: KBContext) -> None:
    service.do_add_doc(Space.of(kb.generation), [1], vectors(1))
    service.do_save(Space.of(kb.generation), force=True)
    service.drop_kb()
    assert not context.directory(kb.id).exists()
    assert KBServiceFactory.get_service_by_name("商店 one") is None
    with pytest.raises(NotFound):
        service.kb()
    service.create_kb()


def test_names_are_taken_once(service: KBService) -> None:
    with pytest.raises(AlreadyExists):
        service.create_kb()
    found = KBServiceFactory.get_service_by_name("商店 ONE")
    assert found is not None
    assert found.vs_type() == service.vs_type()
    assert type(found) is type(service)


def test_the_factory_knows_its_stores(context: KBContext) -> None:
    assert KBServiceFactory.get_default("x").vs_type() == context.settings.default_vs_type
    assert KBServiceFactory.get_service("x", "FAISS").vs_type() == "faiss"
    with pytest.raises(InvalidRequest, match="faiss"):
        KBServiceFactory.get_service("x", "oracle")
