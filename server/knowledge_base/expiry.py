"""Knowledge bases that are kept for a while only: temporary files, and vector stores with an end."""

from __future__ import annotations

import logging
import time

from server.db import kbs
from server.domain import KnowledgeBase
from server.errors import NotFound
from server.knowledge_base.context import KBContext
from server.knowledge_base.factory import KBServiceFactory

log = logging.getLogger(__name__)


def is_over(kb: KnowledgeBase) -> bool:
    """Whether its time is over; nobody may use it any more, though it may not be deleted yet."""
    return kb.expires is not None and kb.expires <= time.time()


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
