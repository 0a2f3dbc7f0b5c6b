"""Summaries of files, kept in a hidden knowledge base beside the one that they are of, and searched like any other."""

from __future__ import annotations

import io
from collections.abc import Sequence

from server.domain import Chunk, Hit, KnowledgeBase
from server.knowledge_base.companions import SUMMARY
from server.knowledge_base.context import KBContext
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.operations import Operations, Outcome, Upload
from server.knowledge_base.service import KBService


class Summaries:
    """Stores and finds summaries."""

    def __init__(self, context: KBContext, operations: Operations) -> None:
        self._context = context
        self._operations = operations

    def find(self, kb: KnowledgeBase) -> KBService | None:
        """Where the summaries of a knowledge base are; None when it has none."""
        return KBServiceFactory.get_service_by_name(str(kb.id), SUMMARY)

    def store(self, kb: KnowledgeBase, name: str, chunk: Chunk) -> Outcome:
        """Put a summary in the place of an older one of the same file, or of the same chunks."""
        service = self.find(kb) or self._create(kb)
        options = self._context.split_options
        sent = [Upload(name, io.BytesIO(chunk.text.encode()))]
        return self._operations.upload(service, sent, options, override=True, docs={name: [chunk]})

    def _create(self, kb: KnowledgeBase) -> KBService:
        made = KBServiceFactory.get_service(str(kb.id), kb.generation.vs_type, kb.generation.embed_model)
        made.create_kb(kind=SUMMARY, parent_id=kb.id)
        return made

    def clear(self, kb: KnowledgeBase) -> None:
        """Delete all summaries of a knowledge base."""
        if service := self.find(kb):
            service.drop_kb()

    def list_docs(self, kb: KnowledgeBase, file_name: str | None = None) -> list[Hit]:
        """The summaries of a file, or of all files."""
        service = self.find(kb)
        return service.list_docs([file_name] if file_name else None) if service else []


def label_of(file_name: str, ids: Sequence[str]) -> str:
    """The name under which a summary of some chunks of a file is kept."""
    return f"{file_name}/{'-'.join(ids)[:100]}"
