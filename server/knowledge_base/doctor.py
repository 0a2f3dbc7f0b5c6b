"""Compares SQL, which is right, with every index, and repairs the index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from server.db import chunks as chunk_rows
from server.db import files, kbs
from server.domain import KnowledgeBase
from server.knowledge_base.context import KBContext, Space
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.service import KBService


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    healthy: bool
    text: str


def examine(context: KBContext, *, repair: bool) -> Iterator[Finding]:
    """Look at every knowledge base; with `repair` bring wrong indexes back to what SQL says."""
    with context.db.read() as sql:
        present = kbs.list_all(sql, kind=None)
    for kb in present:
        service = KBServiceFactory.get_service_of(kb)
        yield _vectors(context, service, kb, repair)
        yield _keywords(context, service, kb, repair)
        yield from _files(context, kb)


def _finding(kb: KnowledgeBase, part: str, wanted: set[int], present: set[int], *, repaired: bool) -> Finding:
    if wanted == present:
        return Finding(True, f"{kb.name}: {part}: {len(wanted)} OK")
    missing, extra = len(wanted - present), len(present - wanted)
    state = "已重建 / rebuilt" if repaired else "需要修复 / needs repair"
    return Finding(False, f"{kb.name}: {part}: 缺 {missing}，多 {extra} / {missing} missing, {extra} extra: {state}")


def _vectors(context: KBContext, service: KBService, kb: KnowledgeBase, repair: bool) -> Finding:
    generation, space = kb.generation, Space.of(kb.generation)
    with service.do_init(space):
        service.indexes.advance(generation)
        with context.db.read() as sql:
            wanted = {row[0] for page in chunk_rows.all_vectors(sql, generation.id) for row in page}
        present = set(service.do_ids(space))
        if wanted != present and repair:
            service.do_clear_vs(space)
            service.indexes.advance(generation)
            service.do_save(space, force=True)
    return _finding(kb, f"向量 vectors ({generation.vs_type})", wanted, present, repaired=repair)


def _keywords(context: KBContext, service: KBService, kb: KnowledgeBase, repair: bool) -> Finding:
    generation = kb.generation
    with service.indexes.keyword(generation) as index:
        service.indexes.advance_keyword(generation, index)
        with context.db.read() as sql:
            wanted = {row[0] for page in chunk_rows.all_texts(sql, generation.id) for row in page}
        present = set(index.ids())
        if wanted != present and repair:
            index.reset()
            service.indexes.advance_keyword(generation, index)
    return _finding(kb, "关键词 keywords", wanted, present, repaired=repair)


def _files(context: KBContext, kb: KnowledgeBase) -> Iterator[Finding]:
    with context.db.read() as sql:
        present = files.list_all(sql, kb.id)
    for file in present:
        if file.storage and not context.files.path(kb.id, file.storage).is_file():
            yield Finding(
                False, f"{kb.name}: {file.name}: 原文件丢失，请重新上传 / the file's bytes are lost, upload it again"
            )
        elif file.state in ("failed", "partial"):
            remedy = "重新上传，或 / upload it again, or: zhiku kb remove"
            yield Finding(False, f"{kb.name}: {file.name}: {file.state}: {file.reason} ({remedy})")
