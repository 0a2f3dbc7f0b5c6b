"""Joins what vectors and what keywords found, and tells which of it answers the question at all.

Arrays run over the same candidates, in any order: the union of the best fifty of both searches. The
constants were chosen on nine question sets, 2,023 questions in Chinese, English and across.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

CANDIDATES = 50
"""How many each of the two searches contributes."""

# All of a question's words in a passage weigh as much as .3 more cosine. Anything from .25 to .4 does as
# well on average; more costs the cross-lingual and multi-hop sets, less costs the technical ones.
_KEYWORD_WEIGHT = 0.3
# The best keyword hit gets this, the second half of it, and so on: a question for an identifier means the one
# passage that has it. From .05 to .1 the averages differ by a third of a point; .08 is the least at which no
# set is worse than BM25 alone (technical documents: MRR .94).
_FIRST_BONUS = 0.08
# A passage in another language cannot repeat the question's words; it is credited with what passages of the
# question's language have at its cosine. Cosines across languages run lower, hence more than 1. Cross-lingual
# recall@5 .83 → .92; with 1.75 unrelated passages of the other language overtake in a mixed collection.
_FOREIGN_CREDIT = 1.5
_LEAST_KNOWN = 10  # a line through fewer passages says nothing
# The distance from the first to the fiftieth cosine that the weights above were made for.
_USUAL_SPREAD = 0.2
_LEAST_SPREAD = 0.02  # a handful of equal passages must not be blown up

# A passage that has all the words of the question is let in at .5 less cosine; with .4 a classical novel
# lost 7 % of its true passages instead of 3 %, with more, questions about something else get in.
_COVERAGE_WEIGHT = 0.5
_ENOUGH_TERMS = 5
# The best passage needs this much, or the question is about something else (chit-chat stays below, 97 % of
# the questions with a true passage reach it). A stricter threshold needs no more than itself, a laxer one
# lowers this too.
_ANSWER_EVIDENCE = 0.25
# What has less than this share of the best passage's evidence is noise that a small knowledge base happens to
# rank; at .25 passages in the other language start to go missing.
_TAIL = 0.2
# A question is small talk when it resembles such utterances by so much, and more than any passage, whose
# words count a little too: "what is your name" shares its words with many passages.
_SMALL_TALK = 0.4
_SMALL_TALK_COVERAGE = 0.2


def idf(documents: int, frequency: int) -> float:
    """BM25's weight of a term that `frequency` of `documents` passages contain; always positive."""
    return log(1.0 + (documents - frequency + 0.5) / (frequency + 0.5))


def keyword_strength(bm25: NDArray[np.floating], weights: Mapping[str, float]) -> Floats:
    """BM25 scores made comparable between questions: about 1 for a passage that has every term once.

    `weights` is the idf of each term of the question; without terms there is no strength.
    """
    total = sum(weights.values())
    return np.asarray(bm25, np.float64) / total if total > 0 else np.zeros(len(bm25))


def coverage(weights: Mapping[str, float], passages: Sequence[Collection[str]]) -> Floats:
    """The share of the question's idf, 0 to 1, that the terms of each passage contain.

    A long task description need not be covered whole: as much as _ENOUGH_TERMS of its rarest term counts
    as everything.
    """
    total = min(sum(weights.values()), _ENOUGH_TERMS * max(weights.values(), default=0.0))
    if total <= 0:
        return np.zeros(len(passages))
    found = [sum(weight for term, weight in weights.items() if term in passage) for passage in passages]
    return np.minimum(1.0, np.array(found, np.float64) / total)


def calibrate(cosines: NDArray[np.floating]) -> Floats:
    """Cosines of a model whose spread is unknown, stretched to the spread that the weights expect."""
    if not len(cosines):
        return np.zeros(0)
    best = np.sort(cosines)[::-1][:CANDIDATES]
    spread = max(float(best[0] - best[-1]), _LEAST_SPREAD)
    return np.asarray(cosines, np.float64) * (_USUAL_SPREAD / spread)


def fuse(cosines: NDArray[np.floating], strength: NDArray[np.floating], same_language: Flags) -> Floats:
    """How good each candidate is: higher is better.

    `cosines` are known for every candidate and calibrated; `strength` is 0 where keywords did not find
    one; `same_language` tells which candidates are in the question's language.
    """
    dense = np.asarray(cosines, np.float64)
    credit = _KEYWORD_WEIGHT * np.asarray(strength, np.float64)
    keyword = credit + _FIRST_BONUS * _reciprocal_ranks(credit)
    if same_language.sum() >= _LEAST_KNOWN and not same_language.all():
        keyword = np.where(same_language, keyword, np.maximum(keyword, _imputed(dense, credit, same_language)))
    return np.asarray(dense + keyword, np.float64)


def relevant(
    cosines: NDArray[np.floating], covered: NDArray[np.floating], least_cosine: float, small_talk: float = -1.0
) -> Flags:
    """Which candidates belong to an answer; none of them when the question is about something else.

    `least_cosine` is the threshold as a cosine (`EmbeddingTransform.cosine`), `covered` the candidates'
    `coverage`, `small_talk` the question's `EmbeddingTransform.small_talk_similarity`. Keywords can let in a
    passage below the threshold; who promises `score <= threshold` checks that too.
    """
    nothing = np.zeros(len(cosines), np.bool_)
    if not len(cosines):
        return nothing
    dense, words = np.asarray(cosines, np.float64), np.asarray(covered, np.float64)
    if small_talk >= _SMALL_TALK and small_talk > (dense + _SMALL_TALK_COVERAGE * words).max():
        return nothing
    evidence = dense + _COVERAGE_WEIGHT * words
    if evidence.max() < max(least_cosine, min(least_cosine, 0.0) + _ANSWER_EVIDENCE):
        return nothing
    return np.asarray(evidence >= max(least_cosine, _TAIL * float(evidence.max())), np.bool_)


def _reciprocal_ranks(values: Floats) -> Floats:
    """1 for the largest value, 1/2 for the second …; 0 for what is not positive."""
    ranks = np.empty(len(values))
    ranks[np.argsort(-values, kind="stable")] = np.arange(1, len(values) + 1)
    return np.where(values > 0, 1.0 / ranks, 0.0)


def _imputed(dense: Floats, credit: Floats, known: Flags) -> Floats:
    """The credit that a straight line through the `known` candidates gives to each cosine."""
    offset = dense - dense[known].mean()
    mean = credit[known].mean()
    slope = (offset[known] * (credit[known] - mean)).sum() / ((offset[known] ** 2).sum() + 1e-9)
    line = np.clip(mean + max(0.0, float(slope)) * offset, 0.0, credit[known].max())
    return np.asarray(_FOREIGN_CREDIT * line, np.float64)
