"""Tables of a knowledge base's graph: out of it, and into it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from server.db import chunks as chunk_rows
from server.db import files, texts
from server.domain import Generation, StoredChunk, StoredFile
from server.graph.tables import Row, Source, rows_of
from server.graph.tables_import import BroughtGraph
from server.knowledge_base.backends.graph import GraphKBService
from server.knowledge_base.operations import Operations, Outcome, Upload


def exported(service: GraphKBService) -> dict[str, list[Row]]:
    """The rows of all tables of a graph as it is now."""
    kb = service.kb()
    with service.context.db.read() as sql:
        chunks: dict[str, list[StoredChunk]] = {}
        for chunk in chunk_rows.of_files(sql, kb.generation.id):
            chunks.setdefault(chunk.file_name, []).append(chunk)
        sources = [
            Source(file.name, _text_of(sql, file, kb.generation, chunks[file.name]), f"{file.update_time:%Y-%m-%d}",
                   chunks[file.name])
            for file in files.list_all(sql, kb.id) if file.name in chunks
        ]  # fmt: skip
    with service.index() as index:
        return rows_of(index, sources, service.context.settings.graph_community_size)


def _text_of(sql: Connection, file: StoredFile, generation: Generation, chunks: list[StoredChunk]) -> str:
    """A file's text, or that of its chunks where clients have brought these."""
    document = files.live_document(sql, file.id, generation.id)
    text = texts.read(sql, document.id, 0, texts.length(sql, document.id)) if document else ""
    return text or "\n\n".join(chunk.text for chunk in chunks)


@dataclass
class Imported:
    """What an import has begun: files are on their way, entities and relations that name no text unit are there."""

    files: Outcome = field(default_factory=Outcome)
    counts: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> Mapping[str, Any]:
        """For a client."""
        return {**self.counts, "failed_files": self.files.failed}


def bring_in(operations: Operations, service: GraphKBService, brought: BroughtGraph) -> Imported:
    """Add the files of tables with their own chunks and what these say for the graph, and by hand what names no text
    unit. Files that are there stay as they are."""
    found = Imported()
    for file in brought.files:
        upload = Upload(file.name, io.BytesIO(file.text.encode()))
        one = operations.bring_in(service, upload, file.chunks, file.said)
        found.files.jobs |= one.jobs
        found.files.failed |= one.failed
    added = {"entities": 0, "relations": 0}
    if brought.entities or brought.relations:
        added = service.editor.add_all(brought.entities, brought.relations)
    found.counts = {"files": len(found.files.jobs), **added, "dropped": brought.dropped}
    return found
