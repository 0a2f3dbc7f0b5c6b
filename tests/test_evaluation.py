"""`zhiku eval`: a tiny set with known vectors, of which every figure can be told beforehand."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from configs import EmbeddingModelSettings, Settings
from server import evaluation
from server.chat import extractive
from server.db.vectors import FloatArray
from server.errors import InvalidRequest
from server.evaluation import Evaluation, evaluate_folder, holds, read_set, table_of
from server.models.fake import FakeEmbedding

PASSAGES = {
    "p1": ("Wick", "The harbour gate is painted blue."),
    "p2": ("", "A lighthouse stands on the northern cliff."),
    "p3": ("Market", "Bread costs three coins at noon."),
}
QUERIES: list[dict[str, Any]] = [
    {"_id": "q1", "text": "Which colour has the harbour gate?", "answers": ["Blue!"]},
    {"_id": "q2", "text": "Where is the lighthouse?", "answers": ["southern"]},
    {"_id": "q3", "text": "Who is the mayor?", "answers": [], "answerable": False},
]
QRELS = "query-id\tcorpus-id\tscore\nq1\tp1\t1\nq2\tp2\t1\nq2\tp3\t2\nq1\tp3\t0\n"
TALK = ("hello there", "good night")


def axis(number: int) -> list[float]:
    return [float(number == at) for at in range(8)]


# The first question lies nearest to the second passage, then to its own; the second on its first gold passage
# and far from the other; the third, and one of two greetings, far from all.
VECTORS: Mapping[str, Sequence[float]] = {
    "Wick\nThe harbour gate is painted blue.": axis(0),
    "A lighthouse stands on the northern cliff.": axis(1),
    "Market\nBread costs three coins at noon.": axis(2),
    "Which colour has the harbour gate?": [0.7, 0.714, 0, 0, 0, 0, 0, 0],
    "Where is the lighthouse?": axis(1),
    "Who is the mayor?": axis(5),
    "hello there": axis(6),
    "good night": axis(2),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "tiny")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path / "elsewhere")


@pytest.fixture(autouse=True, scope="module")
def _small_talk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "SMALL_TALK", TALK)
        yield


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, _small_talk: None) -> Evaluation:
    root = tmp_path_factory.mktemp("evaluation")
    return evaluate_folder(write_set(root / "tiny"), None, answers=True, settings=settings_in(root / "elsewhere"))


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passages that were embedded since."""
    texts: list[str] = []
    original = FakeEmbedding.encode_passages

    def counted(self: FakeEmbedding, batch: Sequence[str]) -> FloatArray:
        texts.extend(batch)
        return original(self, batch)

    monkeypatch.setattr(FakeEmbedding, "encode_passages", counted)
    return texts


def settings_in(elsewhere: Path) -> Settings:
    fake = EmbeddingModelSettings(name="fake", provider="fake", options={"dimension": 8, "vectors": VECTORS})
    return Settings(
        data_dir=elsewhere,
        database_url=f"sqlite:///{elsewhere / 'real.db'}",
        embedding_models=[fake],
        default_embed_model="fake",
    )


def write_set(folder: Path, queries: Sequence[Mapping[str, Any]] = QUERIES, qrels: str = "qrels.tsv") -> Path:
    (folder / qrels).parent.mkdir(parents=True, exist_ok=True)
    corpus = [{"_id": key, "title": title, "text": text} for key, (title, text) in PASSAGES.items()]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / qrels).write_text(QRELS, encoding="utf-8")
    return folder


def shown(results: Sequence[Evaluation]) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(table_of(results))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


# ---- the figures


def test_every_figure_is_the_mean_over_the_queries_with_gold_passages(result: Evaluation) -> None:
    assert (result.name, result.passages, result.queries) == ("tiny", 3, 3)
    keyword, dense = result.quality["keyword"], result.quality["similarity"]
    assert (keyword.recall_5, keyword.all_5, keyword.mrr_10) == (0.75, 0.5, 1.0)  # no word leads from q2 to p3
    assert keyword.ndcg_10 == pytest.approx((1 + 1 / (1 + 1 / log2(3))) / 2)
    assert (dense.recall_5, dense.all_5, dense.mrr_10) == (1.0, 1.0, 0.75)  # q1 finds p2 before p1
    assert all(quality.milliseconds > 0 for quality in result.quality.values())


def test_the_default_threshold_is_judged_by_the_gold_it_keeps_and_the_small_talk_it_drops(result: Evaluation) -> None:
    assert result.gold_kept == pytest.approx(2 / 3)  # p3 is at a right angle to q2
    assert result.leaks == 0.5


def test_a_stricter_threshold_keeps_less_and_answers_are_looked_at_only_when_asked_for(
    result: Evaluation, folder: Path, settings: Settings
) -> None:
    strict = evaluate_folder(folder, None, settings=settings.model_copy(update={"score_threshold": 0.1}))
    assert strict.gold_kept == pytest.approx(1 / 3)
    assert strict.answers is None
    summary = shown([result, strict]).partition("average")[2]
    assert " .500" in summary.split("hybrid")[1]  # gold kept: the mean of 2/3 and 1/3
    assert " .667" not in summary


def test_answers_are_held_against_the_gold_strings(result: Evaluation) -> None:
    rates = result.answers
    assert rates is not None
    assert (rates.held, rates.possible, rates.refused, rates.doubted) == (0.5, 0.5, 1.0, 0.0)
    assert 0 < rates.characters < 200


def test_a_doubt_counts_as_refused_or_lost_and_takes_nothing_from_what_is_held(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*QUERIES, {**QUERIES[0], "_id": "q4", "answerable": False}]
    folder = write_set(tmp_path / "doubtful", rows)
    monkeypatch.setattr(extractive, "doubts", lambda question, hits: bool(hits) and "colour" in question)
    result = evaluate_folder(folder, None, answers=True, settings=settings)
    rates = result.answers
    assert rates is not None
    assert (rates.held, rates.refused, rates.doubted) == (0.5, 0.5, 0.5)
    assert re.search(r"\.500 +\.500 +\d+ +\.50/\.50\s", shown([result]))


def test_an_answer_that_was_retrieved_but_not_quoted_counts_as_possible_only(
    folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extractive, "quotes", lambda *_: [])
    rates = evaluate_folder(folder, None, answers=True, settings=settings).answers
    assert rates is not None
    assert (rates.held, rates.possible, rates.characters) == (0.0, 0.5, 0.0)


@pytest.mark.parametrize(
    ("text", "answers", "expected"),
    [
        ("It is ＢＬＵＥ, they say", ["blue"], True),
        ("于 1991 年 4 月恢复", ["1991年4月。"], True),
        ("thirty-four", ["four thirty", "ThirtyFour"], True),
        ("It is red", ["blue", "", "!"], False),
    ],
)
def test_width_case_space_and_punctuation_do_not_count(text: str, answers: list[str], expected: bool) -> None:
    assert holds(text, answers) is expected


# ---- where it works


def test_a_kept_data_dir_spares_the_embedding_until_the_corpus_changes(
    folder: Path, settings: Settings, tmp_path: Path, embedded: list[str]
) -> None:
    kept = tmp_path / "kept"
    first = evaluate_folder(folder, kept, settings=settings)
    assert len(embedded) == 3
    second = evaluate_folder(folder, kept, settings=settings)
    assert len(embedded) == 3
    assert second.quality["hybrid"].ndcg_10 == first.quality["hybrid"].ndcg_10
    corpus = folder / "corpus.jsonl"
    corpus.write_text(corpus.read_text() + json.dumps({"_id": "p4", "title": None, "text": "New."}) + "\n")
    assert evaluate_folder(folder, kept, settings=settings).passages == 4
    assert "New." in embedded


def test_the_service_s_own_data_and_database_are_never_touched(folder: Path, settings: Settings) -> None:
    evaluate_folder(folder, None, settings=settings)
    assert not settings.data_dir.exists()


# ---- the set


def test_a_limit_takes_queries_from_the_whole_file(folder: Path) -> None:
    rows = [{"_id": f"q{number}", "text": str(number)} for number in range(10)]
    write_set(folder, rows)
    assert [query.text for query in read_set(folder, 3).queries] == ["0", "3", "6"]
    assert len(read_set(folder, 99).queries) == 10


def test_qrels_may_lie_in_a_folder_and_a_score_of_zero_is_no_gold(tmp_path: Path) -> None:
    beir = write_set(tmp_path / "beir", qrels="qrels/test.tsv")
    assert [query.gold for query in read_set(beir).queries] == [{"p1"}, {"p2", "p3"}, set()]


@pytest.mark.parametrize("broken", ["corpus.jsonl", "queries.jsonl", "qrels.tsv"])
@pytest.mark.parametrize("content", [None, "one\ntwo words\n"])
def test_a_folder_that_is_no_set_is_refused_with_its_name(folder: Path, broken: str, content: str | None) -> None:
    (folder / broken).unlink()
    if content is not None:
        (folder / broken).write_text(content)
    with pytest.raises(InvalidRequest, match="tiny"):
        read_set(folder)


# ---- the table


def test_a_slow_search_costs_the_table_none_of_its_words(result: Evaluation) -> None:
    slow = {kind: replace(quality, milliseconds=123456.0) for kind, quality in result.quality.items()}
    table = shown([replace(result, quality=slow, name="a set with a rather long name")])
    assert re.findall(r"(keyword|similarity|hybrid) +[.\d]", table) == ["keyword", "similarity", "hybrid"]
    assert table.count("123s") == 3


def test_the_table_has_a_line_for_each_search_type_and_averages_over_sets(result: Evaluation) -> None:
    one, two = shown([result]), shown([result, result])
    assert re.findall(r"(keyword|similarity|hybrid) +[.\d]", one) == ["keyword", "similarity", "hybrid"]
    assert len(re.findall(r"(keyword|similarity|hybrid) +[.\d]", two)) == 9
    assert "average" not in one
    assert " .667" in one
    assert " .667" in two.partition("average")[2]
