"""Searches one or several knowledge bases without blocking the event loop, and reranks what they found."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from server.domain import Found, Hit, SearchOptions
from server.errors import ZhikuError
from server.knowledge_base.gates import Gates
from server.knowledge_base.service import KBService
from server.retrieval.rerank import Reranker

log = logging.getLogger(__name__)


class Searcher:
    """Searches knowledge bases."""

    def __init__(self, gates: Gates, top_k: int, reranker: Reranker | None = None, candidates: int = 30) -> None:
        self._gates = gates
        self._top_k = top_k
        self._reranker = reranker
        self._candidates = candidates

    async def search(self, services: Sequence[KBService], query: str, options: SearchOptions) -> Found:
        """The hits of all these knowledge bases together, at most `top_k`, best first.

        Raises:
            ZhikuError: one of them cannot be searched.
        """
        top_k = options.top_k or self._top_k
        reranks = self._reranker is not None and options.rerank
        wanted = max(top_k, self._candidates) if reranks else top_k
        lists = await asyncio.gather(*(self._one(service, query, options, wanted) for service in services))
        hits, facts = _merged([found.hits for found in lists]), tuple(fact for found in lists for fact in found.facts)
        if not reranks or len(hits) < 2:
            return Found(hits[:top_k], facts=facts)
        return replace(await self._reranked(query, hits[:wanted], top_k), facts=facts)

    async def close(self) -> None:
        """Close connections."""
        if self._reranker is not None:
            await self._reranker.close()

    async def _one(self, service: KBService, query: str, options: SearchOptions, top_k: int) -> Found:
        return await self._gates.run(service.kb_name, lambda: service.find(query, replace(options, top_k=top_k)))

    async def _reranked(self, query: str, hits: Sequence[Hit], top_k: int) -> Found:
        """The hits in the reranker's order; a reranker that is down costs its order and not the search."""
        assert self._reranker is not None
        try:
            order = await self._reranker.rerank(query, [hit.text for hit in hits], top_k)
        except ZhikuError as error:
            log.warning("the reranker failed: %s", error.message)
            return Found(list(hits[:top_k]), (error.message,))
        chosen = [hits[at] for at, _ in order][:top_k]
        return Found([_ranked(hit, place) for place, hit in enumerate(chosen, start=1)])


def _merged(lists: Sequence[Sequence[Hit]]) -> list[Hit]:
    """Hits of several knowledge bases by relevance; those of one keep their order."""
    if len(lists) == 1:
        return list(lists[0])
    hits = sorted((hit for hits in lists for hit in hits), key=lambda hit: -(hit.relevance or 0.0))
    return [replace(hit, ranks={**hit.ranks, "fused": place}) for place, hit in enumerate(hits, start=1)]


def _ranked(hit: Hit, place: int) -> Hit:
    return replace(hit, ranks={**hit.ranks, "reranked": place})
