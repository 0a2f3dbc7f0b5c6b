"""One suite for every vector store: what its hooks promise to the service above them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from server.db.vectors import FloatArray
from server.domain import KnowledgeBase
from server.errors import (
    AlreadyExists,
    ConfigurationError,
    DimensionMismatch,
    InvalidRequest,
    MissingDependency,
    NotFound,
)
from server.knowledge_base.context import KBContext, Space
from server.knowledge_base.factory import BACKENDS, KBServiceFactory, SupportedVSType
from server.knowledge_base.service import KBService
from server.knowledge_base.store_clients import StoreClients
from server.runtime import Runtime
from tests import engines
from tests.conftest import fake_settings
from tests.contract.stores import STORES, WITH_SERVER, Store, store_of

DIMENSION = 32


@pytest.fixture(params=STORES, scope="module")
def store(request: pytest.FixtureRequest) -> Store:
    return store_of(request.param)


@pytest.fixture
def context(store: Store, tmp_path: Path) -> Iterator[KBContext]:
    runtime = Runtime.build(store.settings(tmp_path))
    yield runtime.service.context
    runtime.service.context.close()


@pytest.fixture
def service(store: Store, context: KBContext) -> Iterator[KBService]:
    made = KBServiceFactory.get_service("商店 one", store.vs_type)
    made.create_kb()
    yield made
    if made.exists():
        made.drop_kb()


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
    service.do_add_doc(space, [4, 3], -stored[[0, 2]])  # one of them is new
    assert sorted(service.do_ids(space)) == [1, 2, 3, 4]
    assert service.do_search(space, stored[2], 4)[0] == 1


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
    service.do_add_doc(space, [1], vectors(1))
    assert service.do_version(space) == 0  # else a crash now would leave a half that says it is whole


@pytest.mark.parametrize("store", WITH_SERVER, indirect=True)
def test_what_another_process_does_is_seen(service: KBService, space: Space) -> None:
    elsewhere = replace(service.context, store_clients=StoreClients())
    other = type(service)(service.kb_name, context=elsewhere)
    service.do_add_doc(space, [1, 2], vectors(2))
    service.do_commit(space, 1)
    assert sorted(service.do_search(space, vectors(1)[0], 9)) == [1, 2]
    other.do_clear_vs(space)
    other.do_add_doc(space, [3], vectors(1))
    other.do_commit(space, 2)
    assert service.do_search(space, vectors(1)[0], 9) == [3]
    assert service.do_version(space) == 2
    elsewhere.store_clients.close()


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
    context.store_clients.close()
    assert sorted(service.do_ids(space)) == list(range(1, 51))
    assert service.do_version(space) == 3


def test_ten_thousand_vectors_and_wide_ids(service: KBService, space: Space) -> None:
    stored, first = vectors(10_000), 2**40
    service.do_add_doc(space, range(first, first + 10_000), stored)
    for at in (0, 1234, 9999):
        assert service.do_search(space, stored[at], 1) == [first + at]
    service.do_delete_doc(space, [(first, first + 1234)])
    service.do_commit(space, 1)
    assert first + 1234 not in service.do_search(space, stored[1234], 10)
    assert len(list(service.do_ids(space))) == 10_000 - 1235


@pytest.mark.parametrize("share", [2, 100, 5000])
def test_a_filter_loses_nothing(service: KBService, space: Space, share: int) -> None:
    """What fits lies far from the question: a search that filters the nearest ones finds none of it."""
    stored, query = vectors(20_000), vectors(1, seed=9)[0]
    for at in range(0, len(stored), 2000):
        service.do_add_doc(space, range(at + 1, at + 2001), stored[at : at + 2000])
    service.do_save(space)  # a store that makes its index later makes it now
    far = np.argsort(stored @ query, kind="stable")[: len(stored) // share]
    allowed = sorted(int(at) + 1 for at in far)
    tenth = np.sort(stored[far] @ query)[-10:][0]
    found = service.do_search(space, query, 10, allowed)
    assert len(found) == min(10, len(allowed))
    assert set(found) <= set(allowed)
    assert len(set(found)) == len(found)
    # some stores keep float16: neighbours at the same distance may change places
    assert all(stored[chunk_id - 1] @ query > tenth - 1e-3 for chunk_id in found)
    assert service.do_search(space, query, 10, [2**50]) == []


def test_vectors_of_another_length_are_refused(service: KBService, space: Space) -> None:
    service.do_add_doc(space, [1, 2], vectors(2))
    with pytest.raises(DimensionMismatch, match="重建"):
        service.do_add_doc(space, [3], vectors(1)[:, :16])
    assert sorted(service.do_ids(space)) == [1, 2]


def test_names_in_the_store_are_the_servers_own(service: KBService, space: Space) -> None:
    assert space.collection == f"zhiku_{service.kb().uid}_g{space.generation_id}"
    assert space.collection.isascii()


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


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[KBContext]:
    runtime = Runtime.build(fake_settings(tmp_path))
    yield runtime.service.context
    runtime.service.context.close()


def test_a_missing_driver_is_named_with_what_installs_it(plain: KBContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, SupportedVSType.PG, "no_such_driver:Service")
    with pytest.raises(MissingDependency, match=r"pip install 'zhiku\[pg\]'"):
        KBServiceFactory.get_service("x", "pg")


@pytest.mark.parametrize("url", ["host=here password=s3cret", "mysql://me:s3cret@here/db", "postgresql//me:s3cret@x"])
def test_an_address_of_postgresql_that_is_none_is_not_repeated(tmp_path: Path, url: str) -> None:
    engines.need("pg", "psycopg", "pgvector")
    from server.knowledge_base.backends.pg_connections import url_of

    with pytest.raises(ConfigurationError, match="ZHIKU_PG__URL") as told:
        url_of(fake_settings(tmp_path, pg={"url": url}))
    assert "s3cret" not in str(told.value)
    assert told.value.__suppress_context__ or told.value.__context__ is None


def test_the_sql_database_holds_vectors_too_when_it_can(tmp_path: Path) -> None:
    engines.need("pg", "psycopg", "pgvector")
    from server.knowledge_base.backends.pg_connections import url_of

    settings = fake_settings(tmp_path, database_url="postgresql+psycopg://me:pass%40word@here/db")
    assert url_of(settings) == "postgresql://me:pass%40word@here/db"


def test_the_factory_knows_its_stores(plain: KBContext) -> None:
    assert KBServiceFactory.get_default("x").vs_type() == plain.settings.default_vs_type
    assert KBServiceFactory.get_service("x", "FAISS").vs_type() == "faiss"
    with pytest.raises(InvalidRequest, match="faiss"):
        KBServiceFactory.get_service("x", "oracle")
