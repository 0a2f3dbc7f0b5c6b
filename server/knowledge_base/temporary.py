"""The files of one conversation: hidden knowledge bases with an id that nobody can guess, kept for a while."""

from __future__ import annotations

import secrets
import time

from server.db import kbs
from server.domain import KnowledgeBase
from server.errors import InvalidName, NotFound
from server.knowledge_base.context import KBContext
from server.knowledge_base.expiry import is_over
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.service import KBService

KIND = "temp"
_RENEW = 0.9
"""A life is prolonged when less than this share of it is left: not every question is a transaction."""


class TemporaryKBs:
    """Makes, finds and ends them. Their life begins anew whenever they are used."""

    def __init__(self, context: KBContext) -> None:
        self._context = context
        self._life = context.settings.temp_kb_hours * 3600

    def create(self) -> KBService:
        """A new, empty one; its name is its id."""
        service = KBServiceFactory.get_default(secrets.token_hex(16))
        service.create_kb(kind=KIND, expires=time.time() + self._life)
        return service

    def open(self, temp_id: str) -> KBService:
        """The one with that id.

        Raises:
            NotFound: there is none, or its time is over.
        """
        missing = NotFound(f"未找到临时知识库 {temp_id[:64]}，请先上传文件")
        try:
            service = KBServiceFactory.get_service_by_name(temp_id, KIND)
        except InvalidName:
            raise missing from None
        if service is None:
            raise missing
        kb = service.kb()
        if is_over(kb):
            raise missing
        self._renew(kb)
        return service

    def _renew(self, kb: KnowledgeBase) -> None:
        left = (kb.expires or 0.0) - time.time()
        if left < _RENEW * self._life:
            with self._context.db.write() as sql:
                kbs.set_expires(sql, kb.id, time.time() + self._life)
