"""The seam between those who read chunks for a graph and the job that asks them."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator

from server.db.graphs import Extracted, Unread
from server.errors import ZhikuError
from server.graph.identity import grounded
from server.graph.nlp import extract

log = logging.getLogger(__name__)

NLP = "nlp"
_STEP = 32


class ModelDown(ZhikuError):
    """The language model refuses everything; the chunks that are left are not to blame."""

    code = 503


class Extractor(ABC):
    """Finds entities and relations in chunks. `recipe` names the way it does; what was found in another way differs."""

    recipe: str

    @abstractmethod
    def read(self, chunks: Iterator[Unread]) -> Iterator[list[Extracted]]:
        """What chunks say, some at a time and in any order; `chunks` is drawn from as work is done. An empty list is a
        sign of life.

        Raises:
            ModelDown: it makes no sense to go on now.
        """


class NLPExtractor(Extractor):
    """Needs no language model."""

    recipe = "nlp-2"

    def read(self, chunks: Iterator[Unread]) -> Iterator[list[Extracted]]:
        """A few chunks at a time."""
        items: list[Extracted] = []
        for chunk in chunks:
            items.append(self._read(chunk))
            if len(items) == _STEP:
                yield items
                items = []
        yield items

    def _read(self, chunk: Unread) -> Extracted:
        """What a chunk says; one that cannot be read is noted as such and stops no other."""
        try:
            found, dropped = grounded(extract(chunk.text, chunk.lang), chunk.text)
        except Exception as error:
            log.exception("chunk %s cannot be read for the graph", chunk.chunk_id)
            return Extracted(chunk.chunk_id, chunk.text_hash, None, reason=type(error).__name__)
        return Extracted(chunk.chunk_id, chunk.text_hash, found, dropped)
