"""The keyword index: what it finds, and that it always comes back to what SQL says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from server.domain import ChangedRange
from server.retrieval.analysis import query_terms
from server.retrieval.keyword import KeywordIndex


class Rows:
    """A stand-in for SQL: texts by id, and a log of changed ranges by version."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.log: list[ChangedRange] = []
        self.read: list[tuple[int, int | None]] = []

    @property
    def version(self) -> int:
        return len(self.log)

    def change(self, lo: int, hi: int, texts: dict[int, str] | None = None, *, vectors_only: bool = False) -> None:
        for number in range(lo, hi + 1):
            self.texts.pop(number, None)
        self.texts |= texts or {}
        self.log.append(ChangedRange(self.version + 1, lo, hi, vectors_only))

    def since(self, version: int) -> list[ChangedRange]:
        return self.log[version:]

    def everything(self) -> Iterable[list[tuple[int, str]]]:
        return self.between(0, None)

    def between(self, lo: int, hi: int | None) -> Iterable[list[tuple[int, str]]]:
        self.read.append((lo, hi))
        found = sorted((n, t) for n, t in self.texts.items() if n >= lo and (hi is None or n <= hi))
        return [found] if found else []

    def bring(self, index: KeywordIndex) -> None:
        index.advance(self.version, self.since, self.everything, self.between)


def found(index: KeywordIndex, query: str) -> list[int]:
    return [number for number, _ in index.search(query_terms(query), 10)]


@pytest.fixture
def rows() -> Rows:
    made = Rows()
    made.change(1, 3, {1: "海港的潮汐表每日更新", 2: "泵房压力表每周校准", 3: "The pumps were calibrated: ERR-4012"})
    return made


def test_both_languages_and_identifiers(tmp_path: Path, rows: Rows) -> None:
    index = KeywordIndex(tmp_path / "k")
    rows.bring(index)
    assert found(index, "压力表校准")[0] == 2
    assert found(index, "calibrating a pump") == [3]
    assert found(index, "err-4012") == [3]
    assert found(index, "菜单") == []
    assert index.search([], 5) == []
    scores = [score for _, score in index.search(query_terms("表"), 10)]
    assert scores == sorted(scores, reverse=True)


def test_it_follows_changes_and_reads_nothing_else(tmp_path: Path, rows: Rows) -> None:
    index = KeywordIndex(tmp_path / "k")
    rows.bring(index)
    rows.read.clear()
    rows.bring(index)
    assert rows.read == []
    rows.change(2, 2, {2: "食堂菜单"})
    rows.change(4, 4, {4: "新的压力表"})
    rows.change(1, 9, vectors_only=False, texts=dict(rows.texts))
    rows.log.pop()
    rows.bring(index)
    assert rows.read == [(2, 2), (4, 4)]
    assert found(index, "压力表") == [4]
    assert found(index, "菜单") == [2]
    rows.change(1, 1)
    rows.bring(index)
    assert found(index, "潮汐") == []
    assert sorted(index.ids()) == [2, 3, 4]


def test_vectors_are_none_of_its_business(tmp_path: Path, rows: Rows) -> None:
    index = KeywordIndex(tmp_path / "k")
    rows.bring(index)
    rows.read.clear()
    rows.change(1, 3, dict(rows.texts), vectors_only=True)
    rows.bring(index)
    assert rows.read == []
    assert index.version == rows.version


def test_a_crash_between_commit_and_note_is_replayed(
    tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = KeywordIndex(tmp_path / "k")
    rows.bring(index)
    rows.change(4, 4, {4: "潮汐再来"})

    def crash(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(index, "_write_version", crash)
    with pytest.raises(KeyboardInterrupt):
        rows.bring(index)
    again = KeywordIndex(tmp_path / "k")
    assert again.version == rows.version - 1
    rows.bring(again)
    assert sorted(found(again, "潮汐")) == [1, 4]
    assert sorted(again.ids()) == [1, 2, 3, 4]


def test_two_processes_share_it(tmp_path: Path, rows: Rows) -> None:
    one, two = KeywordIndex(tmp_path / "k"), KeywordIndex(tmp_path / "k")
    rows.bring(one)
    rows.read.clear()
    rows.bring(two)
    assert rows.read == []
    assert found(two, "潮汐") == [1]
    rows.change(1, 1)
    rows.bring(two)
    rows.bring(one)
    assert found(one, "潮汐") == []


@pytest.mark.parametrize("name", ["meta.json", "zhiku.json"])
def test_a_damaged_index_starts_again(tmp_path: Path, rows: Rows, name: str) -> None:
    rows.bring(KeywordIndex(tmp_path / "k"))
    (tmp_path / "k" / name).write_bytes(b"{")
    index = KeywordIndex(tmp_path / "k")
    assert index.version == 0
    rows.bring(index)
    assert sorted(index.ids()) == [1, 2, 3]


def test_a_log_that_does_not_reach_back_means_reading_everything(tmp_path: Path, rows: Rows) -> None:
    index = KeywordIndex(tmp_path / "k")
    rows.bring(index)
    rows.change(1, 1)
    index.advance(rows.version, lambda _: None, rows.everything, rows.between)
    assert rows.read[-1] == (0, None)
    assert sorted(index.ids()) == [2, 3]


def test_it_knows_which_passages_hold_which_terms(tmp_path: Path, rows: Rows) -> None:
    index = KeywordIndex(tmp_path / "k")
    rows.bring(index)
    words = query_terms("calibrated pumps 潮汐")
    held = index.holding(words, [1, 3])
    assert held[3] >= set(query_terms("calibrated pumps"))
    assert held[1] == set(query_terms("潮汐"))
    assert index.holding(words, []) == {}


def test_terms_are_counted(tmp_path: Path, rows: Rows) -> None:
    index = KeywordIndex(tmp_path / "k")
    rows.bring(index)
    total, counts = index.frequencies(["err-4012", "zzz"])
    assert (total, counts) == (3, {"err-4012": 1, "zzz": 0})
