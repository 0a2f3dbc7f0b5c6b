"""Knowledge bases that are kept for a while only (temporary files, vector stores with an end), and what they leave."""

from __future__ import annotations

import logging
import time

from server.db import doomed, kbs
from server.domain import KnowledgeBase
from server.errors import NotFound, ZhikuError
from server.knowledge_base.context import KBContext
from server.knowledge_base.factory import KBServiceFactory

log = logging.getLogger(__name__)


def is_over(kb: KnowledgeBase) -> bool:
    """Whether its time is over; nobody may use it any more, though it may not be deleted yet."""
    return kb.expires is not None and kb.expires <= time.time()


def drop_doomed(context: KBContext) -> None:
    """Delete the vectors of generations that are gone, where their store could not be reached then."""
    with context.db.read() as sql:
        waiting = doomed.list_all(sql)
    for generation in waiting:
        try:
            KBServiceFactory.get_service(generation.kb_uid, generation.vs_type).drop_vectors(generation)
        except ZhikuError as error:  # a driver that was taken away must not stop the service
            log.warning("vectors of a deleted knowledge base stay in %s: %s", generation.vs_type, error.message)


def drop_expired(context: KBContext) -> int:
    """Delete all whose time is over, with everything in them; returns how many."""
    with context.db.read() as sql:
        over = [kb for kb in kbs.list_all(sql, kind=None) if is_over(kb)]
    for kb in over:
        try:
            KBServiceFactory.get_service_of(kb).drop_kb()
        except NotFound:
            log.info("%s was deleted meanwhile", kb.uid)
    return len(over)
