"""Measures retrieval on question sets with known right passages, through the same parts that serve clients.

A set is a folder in BEIR's layout: `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`
and, where there are any, `answers` and `answerable`) and `qrels.tsv` or `qrels/test.tsv` with a header line.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from configs import Settings
from server.chat import extractive
from server.db import files
from server.domain import Chunk, Hit, StoredFile
from server.errors import InvalidRequest
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.service import KBService
from server.retrieval.hybrid import SearchType
from server.retrieval.metrics import mrr_at, ndcg_at, recall_at
from server.runtime import Runtime

SEARCH_TYPES: tuple[SearchType, ...] = ("keyword", "similarity", "hybrid")
NO_LIMIT = 4.0
"""The threshold that lets everything through, so that a ranking is judged and not the gate."""
_DEPTH = 10
_PASSAGE = "passage"  # the key under which a chunk remembers the id that the set gave it

SMALL_TALK = (
    "在吗", "哈喽呀", "嗨，最近过得好吗", "很高兴认识你", "今天过得怎么样", "辛苦啦", "太谢谢你了", "不客气",
    "没事了，回头聊", "我先去睡了", "早啊", "周末愉快", "你叫什么呀", "你是真人还是程序", "给我讲个笑话吧",
    "陪我聊一会儿", "我有点无聊", "你真聪明", "哈哈哈哈", "好的，知道了", "祝你生日快乐", "吃了吗",
    "hello there", "hey, how's it going", "good evening!", "nice to meet you", "thanks a lot, that helped",
    "you're welcome", "see you tomorrow", "good night", "are you a robot", "what's your name", "who made you",
    "tell me a joke", "sing me a song", "i'm bored", "lol", "ok great", "how was your weekend", "happy new year",
    "can we just chat", "you are awesome",
)  # fmt: skip
"""Utterances that ask nothing of a knowledge base; every hit for one of them is a leak."""

_MARKS = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True)
class Query:
    """A question of a set; `gold` holds the ids of the passages that answer it."""

    text: str
    answers: tuple[str, ...]
    answerable: bool
    gold: frozenset[str]


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A folder as it was read; `digest` tells its corpus from every other."""

    name: str
    digest: str
    passages: tuple[Chunk, ...]
    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over the queries that have right passages; `all_5` is the share with all of them in the top 5."""

    recall_5: float
    all_5: float
    mrr_10: float
    ndcg_10: float
    milliseconds: float


@dataclass(frozen=True, slots=True)
class AnswerRates:
    """How answers by quotation fare with the default top hits.

    `held` is the share of answerable queries whose answer holds a gold string, `possible` the share whose
    hits hold one anywhere, `characters` the mean length of what was quoted. `refused` is the share of unanswerable
    queries (None when there are none) whose answer says that the sources do not hold it, `doubted` the
    share of answerable ones of which it says so wrongly.
    """

    held: float
    possible: float
    characters: float
    refused: float | None
    doubted: float


_Means = TypeVar("_Means", Quality, AnswerRates)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was measured on one set.

    `gold_kept` is the share of right passages in the hybrid top 10 that the default threshold keeps,
    `leaks` the share of SMALL_TALK that retrieves anything with it.
    """

    name: str
    passages: int
    queries: int
    quality: Mapping[SearchType, Quality]
    gold_kept: float
    leaks: float
    answers: AnswerRates | None = None


@dataclass
class _Samples:
    """Values gathered query by query; a mean of nothing is 0."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.values[name].append(value)

    def mean(self, name: str) -> float:
        return fmean(self.values[name]) if self.values[name] else 0.0


# ---- the set


def read_set(folder: Path, limit: int | None = None) -> QuestionSet:
    """The set in a folder with at most `limit` of its queries, evenly spread over the file.

    Raises:
        InvalidRequest: a file is missing or is not what it should be.
    """
    try:
        raw = (folder / "corpus.jsonl").read_bytes()
        gold = _read_qrels(folder)
        rows = _read_lines((folder / "queries.jsonl").read_bytes())
        passages = tuple(_passage(row) for row in _read_lines(raw))
        count = len(rows) if limit is None else min(limit, len(rows))
        queries = tuple(_query(rows[at * len(rows) // count], gold) for at in range(count))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{folder}: 不是可用的评测集 / not a usable evaluation set: {error!r}") from error
    if not passages or not queries:
        raise InvalidRequest(f"{folder}: 评测集是空的 / the evaluation set is empty")
    return QuestionSet(folder.resolve().name, hashlib.sha256(raw).hexdigest(), passages, queries)


def _read_lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.decode("utf-8-sig").split("\n") if line.strip()]


def _read_qrels(folder: Path) -> dict[str, set[str]]:
    path = folder / "qrels.tsv"
    text = (path if path.is_file() else folder / "qrels" / "test.tsv").read_text(encoding="utf-8-sig")
    gold: dict[str, set[str]] = defaultdict(set)
    for line in filter(str.strip, text.split("\n")[1:]):
        query, passage, score = line.split("\t")
        if float(score) > 0:
            gold[query].add(passage)
    return gold


def _passage(row: Mapping[str, Any]) -> Chunk:
    title, text = str(row.get("title") or "").strip(), str(row["text"]).strip()
    whole = text if not title or text.startswith(title) else f"{title}\n{text}"
    return Chunk(whole, metadata={_PASSAGE: str(row["_id"])})


def _query(row: Mapping[str, Any], gold: Mapping[str, set[str]]) -> Query:
    answers = tuple(str(answer) for answer in row.get("answers") or ())
    return Query(str(row["text"]), answers, bool(row.get("answerable", True)), frozenset(gold.get(str(row["_id"]), ())))


# ---- the knowledge base


def evaluate_folder(
    folder: Path,
    data_dir: Path | None,
    *,
    limit: int | None = None,
    answers: bool = False,
    settings: Settings | None = None,
) -> Evaluation:
    """Build a knowledge base of the set's corpus, ask it the set's queries, and tell how good it was.

    Everything lies in `data_dir`, where a later run finds the corpus embedded, or in a temporary folder.
    `settings` are the service's unless others are given; data root and database are replaced.

    Raises:
        InvalidRequest: the folder is no evaluation set.
    """
    questions = read_set(folder, limit)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        nullcontext(str(data_dir)) if data_dir else TemporaryDirectory(prefix="zhiku-eval-") as root,
        _opened(settings or Settings(), Path(root)),
        Progress(*columns, console=Console(stderr=True), transient=True) as bar,
    ):
        service = _built(questions, bar)
        return _measured(questions, service, bar, answers=answers)


@contextmanager
def _opened(settings: Settings, root: Path) -> Iterator[None]:
    """The parts of the service on a data root of their own; never on the service's database."""
    runtime = Runtime.build(settings.model_copy(update={"data_dir": root, "database_url": None}))
    try:
        yield
    finally:
        runtime.service.context.close()


def _built(questions: QuestionSet, bar: Progress) -> KBService:
    """The service of a knowledge base that holds the corpus, embedded now or in an earlier run."""
    context = KBServiceFactory.context()
    model = context.settings.default_embed_model
    name = f"eval-{hashlib.sha256(f'{questions.digest} {model}'.encode()).hexdigest()[:16]}"
    service = KBServiceFactory.get_service_by_name(name)
    if service is None:
        service = KBServiceFactory.get_default(name)
        service.create_kb(questions.name)
    file = _file(service, questions)
    if file.state != "ready":
        task = bar.add_task(f"{questions.name} 向量化 embedding", total=len(questions.passages))
        for progress in service.add_doc(file, questions.passages):
            bar.update(task, completed=progress.finished)
        bar.remove_task(task)
    service.catch_up()
    return service


def _file(service: KBService, questions: QuestionSet) -> StoredFile:
    """The one file that all passages belong to; its bytes are the corpus's digest, as nobody reads them."""
    context, kb, name = service.context, service.kb(), "corpus.jsonl"
    with context.db.read() as sql:
        known = files.find(sql, kb.id, name)
    if known is not None:
        return known
    stored = context.files.put(kb.id, BytesIO(questions.digest.encode()))
    with context.db.write() as sql:
        return files.put(sql, kb.id, name, stored.storage, stored.sha256, stored.size)


# ---- the measurements


def _measured(questions: QuestionSet, service: KBService, bar: Progress, *, answers: bool) -> Evaluation:
    service.search_docs(questions.queries[0].text, _DEPTH, NO_LIMIT)  # opens the indexes; not to be timed
    judged = [query for query in questions.queries if query.gold]
    kept = _Samples()
    quality = {
        kind: _quality(service, kind, bar.track(judged, description=f"{questions.name} {kind}"), kept)
        for kind in SEARCH_TYPES
    }
    talk = bar.track(SMALL_TALK, description=f"{questions.name} 闲聊 small talk")
    leaks = fmean(bool(service.search_docs(text, search_type="hybrid")) for text in talk)
    asked = bar.track(questions.queries if answers else (), description=f"{questions.name} 回答 answers")
    return Evaluation(
        name=questions.name,
        passages=len(questions.passages),
        queries=len(questions.queries),
        quality=quality,
        gold_kept=kept.mean("kept"),
        leaks=leaks,
        answers=_answer_rates(service, asked) if answers else None,
    )


def _quality(service: KBService, kind: SearchType, queries: Iterable[Query], kept: _Samples) -> Quality:
    """Means of one search type; the hybrid one also adds to `kept`, gold passage by gold passage."""
    samples = _Samples()
    for query in queries:
        begun = time.perf_counter()
        ranked = _ids(service.search_docs(query.text, _DEPTH, NO_LIMIT, kind))
        elapsed = time.perf_counter() - begun
        recall = recall_at(ranked, query.gold, 5)
        samples.add(
            recall_5=recall,
            all_5=float(recall == 1.0),
            mrr_10=mrr_at(ranked, query.gold, _DEPTH),
            ndcg_10=ndcg_at(ranked, query.gold, _DEPTH),
            milliseconds=1000 * elapsed,
        )
        if kind == "hybrid" and (found := query.gold.intersection(ranked)):
            passed = set(_ids(service.search_docs(query.text, _DEPTH, search_type=kind)))
            for passage in found:
                kept.add(kept=float(passage in passed))
    return Quality(**{name: samples.mean(name) for name in Quality.__dataclass_fields__})


def _ids(hits: Sequence[Hit]) -> list[str]:
    return [str(hit.metadata[_PASSAGE]) for hit in hits]


def _answer_rates(service: KBService, queries: Iterable[Query]) -> AnswerRates:
    samples = _Samples()
    for query in queries:
        hits = service.search_docs(query.text, search_type="hybrid")
        if not query.answerable:
            samples.add(refused=float(extractive.doubts(query.text, hits)))
        elif query.answers:
            quoted = "\n".join(quote.text for quote in extractive.quotes(query.text, hits))
            samples.add(
                held=float(holds(quoted, query.answers)),
                possible=float(holds("\n".join(hit.text for hit in hits), query.answers)),
                characters=len(quoted),
                doubted=float(extractive.doubts(query.text, hits)),
            )
    rates = AnswerRates(**{name: samples.mean(name) for name in AnswerRates.__dataclass_fields__})
    return rates if samples.values["refused"] else replace(rates, refused=None)


def holds(text: str, answers: Iterable[str]) -> bool:
    """Whether a text holds one of the strings; width, case, white space and punctuation do not count."""
    plain = _plain(text)
    return any(wanted in plain for wanted in map(_plain, answers) if wanted)


def _plain(text: str) -> str:
    return _MARKS.sub("", unicodedata.normalize("NFKC", text).casefold())


# ---- the table


_ANSWER_HEADERS = ("held", "max", "len", "no/lost")  # two in one cell: a column more does not fit
_LEGEND = (
    "R@5, all: gold passages, and queries with all of theirs, in the top 5; MRR, nDCG: top 10; "
    "kept: gold that the default threshold keeps; talk: small talk that retrieves anything"
)
_ANSWER_LEGEND = (
    "; held: answers with a gold string; max: hits with one; len: characters; "
    "no: rightly said not to be answered; lost: wrongly"
)


def table_of(results: Sequence[Evaluation]) -> Table:
    """One line for each set and search type, and the averages over the sets below; fits into 80 columns."""
    answered = any(result.answers for result in results)
    legend = _LEGEND + (_ANSWER_LEGEND if answered else "")
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False, caption=legend)
    table.add_column("set", min_width=7, overflow="fold")
    table.add_column("search", no_wrap=True)  # where the room is short, the name of the set folds and nothing else
    for header in ["R@5", "all", "MRR", "nDCG", "ms", "kept", "talk", *(_ANSWER_HEADERS if answered else ())]:
        table.add_column(header, justify="right", no_wrap=True)
    for result in [*results, _average(results)] if len(results) > 1 else results:
        for kind in SEARCH_TYPES:
            table.add_row(*_cells(result, kind), end_section=kind == SEARCH_TYPES[-1])
    return table


def _cells(result: Evaluation, kind: SearchType) -> list[str]:
    """Name and sizes of a set stand one below the other, what concerns hybrid search alone in the last line."""
    sizes = (result.name, f"{result.passages} passages", f"{result.queries} queries")
    quality = result.quality[kind]
    shares = map(_share, (quality.recall_5, quality.all_5, quality.mrr_10, quality.ndcg_10))
    cells = [sizes[SEARCH_TYPES.index(kind)], kind, *shares, _duration(quality.milliseconds)]
    if kind != SEARCH_TYPES[-1]:
        return cells
    cells += [_share(result.gold_kept), _share(result.leaks)]
    if rates := result.answers:
        refused = "–" if rates.refused is None else _share(rates.refused, 2)
        cells += [_share(rates.held), _share(rates.possible), f"{rates.characters:.0f}"]
        cells.append(f"{refused}/{_share(rates.doubted, 2)}")
    return cells


def _duration(milliseconds: float) -> str:
    """In milliseconds, or in seconds where they would take more room than there is."""
    return f"{milliseconds:.0f}" if milliseconds < 1000 else f"{milliseconds / 1000:.0f}s"


def _share(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}".removeprefix("0")


def _average(results: Sequence[Evaluation]) -> Evaluation:
    """Every set counts the same; sizes are summed."""
    return Evaluation(
        name="average",
        passages=sum(result.passages for result in results),
        queries=sum(result.queries for result in results),
        quality={kind: _mean_of([result.quality[kind] for result in results]) for kind in SEARCH_TYPES},
        gold_kept=fmean(result.gold_kept for result in results),
        leaks=fmean(result.leaks for result in results),
        answers=_mean_of(rates) if (rates := [result.answers for result in results if result.answers]) else None,
    )


def _mean_of(items: Sequence[_Means]) -> _Means:
    """The mean of each field over the items that know it, None where none does."""
    means: dict[str, Any] = {}
    for name in items[0].__dataclass_fields__:
        known = [value for item in items if (value := getattr(item, name)) is not None]
        means[name] = fmean(known) if known else None
    return replace(items[0], **means)
