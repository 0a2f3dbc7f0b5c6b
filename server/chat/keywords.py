"""Names and themes of a question, for searches that follow a graph: by a language model where one is set for it.

Without one the question stands for itself: the names in it are found by what the graph knows.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from configs import Settings
from server.domain import Keywords, SearchOptions
from server.errors import LLMError
from server.graph.replies import read_object
from server.graph.search import GRAPH_MODES
from server.models.chat import Message
from server.models.chat_models import ChatModels
from server.prompts import Prompts
from server.retrieval.analysis import language

log = logging.getLogger(__name__)

KEYWORDS = "graph_keywords"
_KEPT = 1000
_MOST = 20
_LONGEST = 200
_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["low", "high"],
    "properties": {name: {"type": "array", "items": {"type": "string"}} for name in ("low", "high")},
}


class KeywordWriter:
    """Writes keywords, and remembers those of the last questions."""

    def __init__(self, settings: Settings, models: ChatModels, prompts: Prompts) -> None:
        self._name = settings.graph_keyword_model
        self._models = models
        self._prompts = prompts
        self._known: OrderedDict[str, Keywords] = OrderedDict()

    async def added(self, options: SearchOptions, question: str) -> SearchOptions:
        """The same search with keywords, where it follows a graph and has none yet."""
        if not self._name or options.mode not in GRAPH_MODES or options.keywords != Keywords():
            return options
        return replace(options, keywords=await self._of(question))

    async def _of(self, question: str) -> Keywords:
        if question in self._known:
            self._known.move_to_end(question)
            return self._known[question]
        prompt = self._prompts.render(KEYWORDS, "default", language(question), question=question)
        try:
            reply = await self._models.get(self._name).reply([Message("user", prompt)], schema=_SCHEMA)
            found = read_object(reply.text)
        except LLMError as error:
            log.warning("searching the graph by the question's own words, no keywords came: %s", error.message)
            return Keywords()
        self._known[question] = keywords = Keywords(_words(found.get("low")), _words(found.get("high")))
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return keywords


def _words(given: Any) -> tuple[str, ...]:
    words = given if isinstance(given, list) else []
    return tuple(word.strip()[:_LONGEST] for word in words[:_MOST] if isinstance(word, str) and word.strip())
