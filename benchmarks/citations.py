"""How well the check of citations tells supported claims from others.

    python -m benchmarks.citations PAIRS [--parallel FOLDER] [--models FOLDER] [--half held-out]

PAIRS holds a JSON object per line: `lang`, `question`, `answer`, `passage_id`, `passage`, `supported`. FOLDER is a
BEIR set whose passages exist in Chinese and English (`xq-zh-…` and `xq-en-…`); its claims are in one language, their
sources in the other. Questions are made into claims by rule. The halves are told apart by article: constants
were chosen on one, the other is for reporting. With --models the embedded model judges what is close in meaning.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from zlib import crc32

from server.chat.citations import verify
from server.chat.support import Closeness
from server.models.e5 import E5Model
from server.models.transform import EmbeddingTransform
from server.retrieval.analysis import language
from server.retrieval.sentences import sentences

_ASKED_ZH = re.compile(
    r"(?:什么|哪)(?:时候|地方|样的|[一]?[个位种年天月日家些座国省市县次类款支所部篇里儿]|东西|人)?|谁|何[时地处人年]?|"
    r"多(?:少|大|高|长|久|远|重)|几(?=[个名位年月日次种岁天])|怎么样?|怎样|如何"
)
_ASKED_EN = re.compile(
    r"\b(?:how (?:many|much|long|old|far|tall|large|big|often)|what (?:year|date|day|type of|kind of)|what|which|"
    r"who|whom|whose|when|where|why|how)\b\s*(?:did|does|do)?\s*",
    re.IGNORECASE,
)
_NEGATED = {
    "en": [
        (f" {verb} ", f" {verb} not ") for verb in ("was", "is", "were", "are", "has", "had", "can", "could", "will")
    ],
    "zh": [
        ("位于", "不位于"),
        ("属于", "不属于"),
        ("是", "不是"),
        ("拥有", "没有"),
        ("可以", "不可以"),
        ("为", "不为"),
    ],
}
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+(?: [A-Z][a-z]+)*|\d[\d,.]*\d|\d")


@dataclass(frozen=True)
class Case:
    kind: str
    article: str
    claim: str
    source: str
    supported: bool
    context: str = ""

    @property
    def half(self) -> str:
        return ("tuning", "held-out")[crc32(self.article.encode()) % 2]

    @property
    def languages(self) -> str:
        spoken = language(self.claim)
        return spoken if spoken == language(self.source) else f"{spoken} over {language(self.source)}"


def statement(question: str, answer: str, lang: str) -> str:
    """A question and an answer as one (clumsy) statement."""
    asked = (_ASKED_ZH if lang == "zh" else _ASKED_EN).search(question)
    bare = question.strip().rstrip("?？ ")
    if lang == "zh":
        return f"{bare[: asked.start()]}{answer}{bare[asked.end() :]}。" if asked else f"{bare}：{answer}。"
    rest = f"{bare[: asked.start()]}{bare[asked.end() :]}" if asked else bare
    return f"{rest} {answer}."


def cases_of(rows: Sequence[dict[str, Any]]) -> Iterator[Case]:
    """The pairs as they are, and what can be made of the supported ones."""
    for at, row in enumerate(rows):
        lang, source = row["lang"], row["passage"]
        article = re.split(r"[#-]\d+", row["passage_id"])[0]
        about = partial(Case, context=_title(article))
        claim = statement(row["question"], row["answer"], lang)
        yield about("statement", article, claim, source, row["supported"])
        if not row["supported"]:
            continue
        other = _other_answer(rows, at)
        yield about("wrong answer", article, statement(row["question"], other, lang), source, supported=False)
        quoted = next((source[a:z] for a, z in sentences(source) if row["answer"] in source[a:z]), "")
        if len(quoted) > 12:
            yield about("quotation", article, quoted, source, supported=True)
            for kind, change in (("changed number", _renumber), ("negated", _negate), ("swapped", _swap)):
                changed = change(quoted, lang)
                if changed != quoted:
                    yield about(kind, article, changed, source, supported=False)


def _title(article: str) -> str:
    """What a passage stands under, as far as its name tells."""
    return "" if article.startswith("cm-") else re.sub(r"^(?:sq-|xq-(?:en|zh)-)?", "", article).replace("_", " ")


def _other_answer(rows: Sequence[dict[str, Any]], at: int) -> str:
    """The next answer of the same language and kind that the passage does not hold."""
    row, number = rows[at], re.compile(r"\d")
    for step in range(1, len(rows)):
        other = rows[(at + step) % len(rows)]
        same = other["lang"] == row["lang"] and bool(number.search(other["answer"])) == bool(
            number.search(row["answer"])
        )
        if same and other["answer"].casefold() not in row["passage"].casefold():
            return str(other["answer"])
    raise ValueError("no other answer")


def _renumber(text: str, _: str) -> str:
    return re.sub(r"\d(?=\D|$)", lambda match: str((int(match[0]) + 3) % 10), text, count=1)


def _negate(text: str, lang: str) -> str:
    for old, new in _NEGATED[lang]:
        if old in text:
            return text.replace(old, new, 1)
    return text


def _swap(text: str, _: str) -> str:
    """The first and the last name or number change places."""
    found = list(_NAME.finditer(text))
    if len(found) < 2 or found[0][0][0].isdigit() != found[-1][0][0].isdigit() or found[0][0] == found[-1][0]:
        return text
    first, final = found[0], found[-1]
    return text[: first.start()] + final[0] + text[first.end() : final.start()] + first[0] + text[final.end() :]


def parallel_cases(folder: Path) -> Iterator[Case]:
    """Claims in one language over passages of the other."""
    texts = {row["_id"]: row["text"] for row in _rows(folder / "corpus.jsonl")}
    gold = dict(line.split("\t")[:2] for line in (folder / "qrels.tsv").read_text("utf-8").splitlines()[1:])
    queries = [row for row in _rows(folder / "queries.jsonl") if row["_id"] in gold]
    for at, row in enumerate(queries):
        lang = row["metadata"]["lang"]
        foreign = "en" if lang == "zh" else "zh"
        key = re.sub(r"^xq-(?:en|zh)-", "", gold[row["_id"]])
        source, article = texts[f"xq-{foreign}-{key}"], key.rsplit("-", 1)[0]
        claim = statement(row["text"], row["metadata"][f"answers_{lang}"][0], lang)
        about = partial(Case, context=_title(article))
        yield about("statement", article, claim, source, supported=True)
        near = [f"xq-{foreign}-{article}-{number}" for number in range(5)]
        others = [name for name in near if name in texts and name != f"xq-{foreign}-{key}"]
        if others:
            yield about("statement", article, claim, texts[others[at % len(others)]], supported=False)
        pool = [other["metadata"][f"answers_{lang}"][0] for other in queries[at + 6 :: 2] + queries[:at]]
        digit = any(map(str.isdigit, row["metadata"][f"answers_{lang}"][0]))
        wrong = next(text for text in pool if any(map(str.isdigit, text)) == digit and text not in claim)
        yield about("wrong answer", article, statement(row["text"], wrong, lang), source, supported=False)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def embedded(folder: Path) -> Closeness:
    """Cosines of the embedded model, its languages made comparable."""
    model, transform = E5Model(folder), EmbeddingTransform.shipped()

    def closeness(text: str, texts: Sequence[str]) -> list[float]:
        import numpy as np

        question = transform.apply_query(model.embed_query(text), language(text))
        passages = np.stack([model.embed_passage(one) for one in texts])
        return [float(one) for one in transform.apply_passages(passages, list(map(language, texts))) @ question]

    return closeness


def table(cases: Sequence[Case], judge: Callable[[Case], bool]) -> Iterator[str]:
    """A line for each pair of languages and kind: accuracy, then precision and recall of "supported"."""
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for case in cases:
        verdict = judge(case)
        for kind in (case.kind, "= all"):
            counts[case.languages, kind][2 * case.supported + verdict] += 1
    yield f"{'claim':12} {'kind':16} {'cases':>6} {'accuracy':>9} {'precision':>10} {'recall':>7}"
    for (languages, kind), (rejected, wrong, missed, found) in sorted(counts.items()):
        total = rejected + wrong + missed + found
        precision = f"{found / (found + wrong):.3f}" if found + wrong and found + missed else "-"
        recall = f"{found / (found + missed):.3f}" if found + missed else "-"
        accuracy = (rejected + found) / total
        yield f"{languages:12} {kind:16} {total:6} {accuracy:9.3f} {precision:>10} {recall:>7}"


def _verified(case: Case, closeness: Closeness | None) -> bool:
    return verify(case.claim, case.source, context=case.context, closeness=closeness).verified


def main() -> None:
    """Print a table for each half."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--parallel", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--half", choices=["tuning", "held-out"])
    given = parser.parse_args()
    cases = list(chain(cases_of(_rows(given.pairs)), parallel_cases(given.parallel) if given.parallel else ()))
    closeness = embedded(given.models) if given.models else None
    for half in [given.half] if given.half else ["tuning", "held-out"]:
        chosen = [case for case in cases if case.half == half]
        start = time.process_time()
        lines = list(table(chosen, partial(_verified, closeness=closeness)))
        spent = (time.process_time() - start) / len(chosen)
        print(f"{half}: {len(chosen)} cases, {spent * 1000:.2f} ms of CPU time each", *lines, "", sep="\n")


if __name__ == "__main__":
    main()
