"""Hidden knowledge bases that belong to another one, and go where it goes."""

from __future__ import annotations

from collections.abc import Iterable

from server.db import files, kbs
from server.domain import KnowledgeBase
from server.knowledge_base.context import KBContext
from server.knowledge_base.factory import KBServiceFactory

SUMMARY = "summary"


def forget_summaries(context: KBContext, kb: KnowledgeBase, names: Iterable[str]) -> None:
    """Delete what was said about files that are gone or new, about parts of them too."""
    with context.db.read() as sql:
        child = kbs.find(sql, str(kb.id), SUMMARY)
        present = files.list_all(sql, child.id) if child else []
    if child is None:
        return
    service, gone = KBServiceFactory.get_service_of(child), tuple(names)
    stale = [file for file in present if file.name in gone or file.name.startswith(tuple(f"{name}/" for name in gone))]
    for file in stale:
        service.delete_doc(file, delete_content=True)
    if stale:
        service.settle()
