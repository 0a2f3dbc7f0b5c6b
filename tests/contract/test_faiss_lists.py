"""A large FAISS index looks through lists; to all who use it, it is as one that looks at everything."""

from __future__ import annotations

import threading
from pathlib import Path

import faiss
import numpy as np
import pytest

from server.db.vectors import FloatArray
from server.knowledge_base.backends import faiss_index
from server.knowledge_base.backends.faiss_index import FaissIndex
from tests.contract.test_stores import exact

COUNT = 4000


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_index, "_LARGE", 1000)


def crowds(count: int, seed: int = 0) -> FloatArray:
    """Unit vectors around a hundred middles, as passages on one subject are."""
    random = np.random.default_rng(seed)
    middles = np.random.default_rng(7).normal(size=(100, 64))
    drawn = middles[random.integers(0, 100, count)] + 0.5 * random.normal(size=(count, 64))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), dtype=np.float32)


@pytest.fixture
def index(tmp_path: Path) -> FaissIndex:
    made = FaissIndex.open(tmp_path / "vectors.faiss")
    made.put(range(1, COUNT + 1), crowds(COUNT))
    made.version = 3
    made.sort_if_large()
    assert isinstance(made.index, faiss.IndexIVF)
    return made


def recall(index: FaissIndex, stored: FloatArray) -> float:
    queries = crowds(50, seed=1)
    found = sum(len(set(index.search(one, 10)) & set(exact(stored, one, 10))) for one in queries)
    return found / (10 * len(queries))


def test_it_finds_what_a_look_at_all_would(index: FaissIndex) -> None:
    assert recall(index, crowds(COUNT)) >= 0.95
    assert sorted(index.ids()) == list(range(1, COUNT + 1))


def test_a_filter_finds_what_is_allowed_wherever_it_lies(index: FaissIndex) -> None:
    allowed = [5, 777, 1234, 3999]
    assert sorted(index.search(crowds(1, seed=2)[0], 10, allowed)) == allowed


def test_vectors_come_and_go(index: FaissIndex) -> None:
    query = crowds(1, seed=3)[0]
    index.put([2, COUNT + 1], np.stack([-query, query]))
    assert index.search(query, 1) == [COUNT + 1]
    index.remove([(COUNT + 1, COUNT + 1), (10, 19)])
    assert index.count == COUNT - 10
    assert COUNT + 1 not in index.search(query, 50)
    assert index.search(-query, 1) == [2]
    assert sorted(index.ids()) == [*range(1, 10), *range(20, COUNT + 1)]


def test_it_is_saved_and_opened(index: FaissIndex) -> None:
    index.save()
    opened = FaissIndex.open(index.path)
    assert (opened.version, opened.count, opened.lists_of, opened.top) == (3, COUNT, COUNT, COUNT)
    query = crowds(1, seed=4)[0]
    assert opened.search(query, 10) == index.search(query, 10)


def test_what_changes_while_lists_are_made_is_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = FaissIndex.open(tmp_path / "vectors.faiss")
    index.put(range(1, COUNT + 1), crowds(COUNT))
    reached, go_on, make = threading.Event(), threading.Event(), faiss_index._sorted_into_lists

    def slow(*values: object) -> object:
        reached.set()
        go_on.wait(30)
        return make(*values)  # type: ignore[arg-type]

    monkeypatch.setattr(faiss_index, "_sorted_into_lists", slow)
    maker = threading.Thread(target=index.sort_if_large)
    maker.start()
    assert reached.wait(30)
    query = crowds(1, seed=5)[0]
    index.put([COUNT + 5, 3], np.stack([query, -query]))
    index.remove([(100, 199)])
    assert index.search(query, 1) == [COUNT + 5]  # searches go on
    index.sort_if_large()  # one is enough
    go_on.set()
    maker.join()
    assert isinstance(index.index, faiss.IndexIVF)
    assert index.search(query, 1) == [COUNT + 5]
    assert index.search(-query, 1) == [3]
    assert sorted(index.ids()) == [*range(1, 100), *range(200, COUNT + 1), COUNT + 5]


def test_lists_grow_with_what_is_in_them(index: FaissIndex) -> None:
    before = index.index.nlist if isinstance(index.index, faiss.IndexIVF) else 0
    index.put(range(COUNT + 1, 4 * COUNT + 1), crowds(3 * COUNT, seed=6))
    index.sort_if_large()
    assert isinstance(index.index, faiss.IndexIVF)
    assert (index.index.nlist, index.count) == (2 * before, 4 * COUNT)
    assert recall(index, np.concatenate([crowds(COUNT), crowds(3 * COUNT, seed=6)])) >= 0.95


def test_what_is_cleared_while_lists_are_made_stays_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = FaissIndex.open(tmp_path / "vectors.faiss")
    index.put(range(1, COUNT + 1), crowds(COUNT))
    make = faiss_index._sorted_into_lists

    def cleared(vectors: FloatArray, ids: object) -> object:
        index.clear()
        return make(vectors, ids)  # type: ignore[arg-type]

    monkeypatch.setattr(faiss_index, "_sorted_into_lists", cleared)
    index.sort_if_large()
    assert (index.count, index.search(crowds(1)[0], 5)) == (0, [])
