"""How good a ranking is: each function takes ranked ids, best first, and the ids that are right.

An id counts once, at its first place. All values lie between 0 and 1. Without right ids there is
nothing to find, which counts as 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import islice
from math import log2


def recall_at(ranked: Iterable[Hashable], relevant: Iterable[Hashable], k: int) -> float:
    """The share of the right ids that is among the first `k`."""
    wanted = set(relevant)
    return len(wanted.intersection(_first(ranked, k))) / len(wanted) if wanted else 0.0


def mrr_at(ranked: Iterable[Hashable], relevant: Iterable[Hashable], k: int) -> float:
    """One divided by the place of the first right id, counted from 1; 0 when it is not among the first `k`."""
    wanted = set(relevant)
    places = (place for place, found in enumerate(_first(ranked, k), start=1) if found in wanted)
    return 1.0 / next(places, float("inf"))


def ndcg_at(ranked: Iterable[Hashable], relevant: Iterable[Hashable], k: int) -> float:
    """Right ids weighted by 1 / log2(place + 1), against the best order of as many; all are equally right."""
    wanted = set(relevant)
    if not wanted:
        return 0.0
    gained = sum(_weight(place) for place, found in enumerate(_first(ranked, k), start=1) if found in wanted)
    return gained / sum(_weight(place) for place in range(1, min(k, len(wanted)) + 1))


def _first(ranked: Iterable[Hashable], k: int) -> list[Hashable]:
    """The first `k` different ids. Raises ValueError for a `k` below 1."""
    if k < 1:
        raise ValueError(f"k is at least 1, not {k}")
    return list(islice(dict.fromkeys(ranked), k))


def _weight(place: int) -> float:
    return 1.0 / log2(place + 1)
