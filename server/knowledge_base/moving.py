"""Moves a knowledge base to another vector store while it is searched, and looks whether all has arrived."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from server.db import chunks as chunk_rows
from server.db import jobs as job_rows
from server.db import kbs, moves
from server.db.vectors import unpack
from server.domain import Generation, Job, KnowledgeBase, Progress
from server.errors import MoveFailed, NotFound
from server.knowledge_base.context import KBContext, Space
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.graph_builds import GRAPH, queue_build
from server.knowledge_base.service import KBService

MOVE = "move"

_SAMPLE = 50
"""Chunks whose own vectors are searched for."""
_NEAREST = 10
_FOUND = 0.95
"""Share of them that has to be found: some stores search approximately."""
_TRIES = 5


class MoveHandler:
    """Runs `move` jobs: only the vectors go to another place, and no model is called.

    Searches use the old store until the new one holds all and gives what is asked for. Then the chunks change hands in
    one transaction, and keep their ids. Whatever fails before leaves everything as it was.
    """

    def __init__(self, context: KBContext) -> None:
        self._context = context

    def __call__(self, job: Job) -> Iterator[Progress]:
        """Move the job's knowledge base; an event for each step."""
        kb = self._knowledge_base(job)
        old, target = kb.generation, job.payload["vs_type"]
        if old.vs_type == target:
            return  # the process died after the last step
        new = self._generation(job, kb)
        service, done = KBServiceFactory.get_service_of_generation(kb.name, new), False
        with self._context.db.read() as sql:
            total = chunk_rows.count_vectors(sql, old.id)
        try:
            yield _step(0, total, f"正在复制到 {target} / copying to {target}")
            self._copy(service, old, new)
            found = verify(service, old, new)
            yield _step(total, total, f"已核对 {found} 个向量 / {found} vectors are there and are found")
            done = self._swap(kb, old, new)
        finally:
            if not done:
                service.drop_generation(new)
        KBServiceFactory.get_service_of_generation(kb.name, old).drop_vectors(old)
        self._context.forget(kb.id, old.id)
        yield _step(total, total, f"已切换 / moved: {old.vs_type} → {target}")

    def _knowledge_base(self, job: Job) -> KnowledgeBase:
        with self._context.db.read() as sql:
            kb = kbs.get(sql, job.kb_id)
        if kb is None:
            raise NotFound("知识库已被删除 / the knowledge base is gone")
        return kb

    def _generation(self, job: Job, kb: KnowledgeBase) -> Generation:
        """The generation that this job began, or a new one."""
        old, payload = kb.generation, job.payload
        with self._context.db.write(kb.id) as sql:
            found = kbs.get_generation(sql, payload.get("generation_id", 0))
            if found is None:
                number = kbs.add_generation(sql, kb.id, payload["vs_type"], old.embed_model, old.options)
                job_rows.set_payload(sql, job.id, {**payload, "generation_id": number})
                found = kbs.get_generation(sql, number)
        if found is None:
            raise NotFound("迁移已不存在 / the move is gone")
        return found

    def _copy(self, service: KBService, old: Generation, new: Generation) -> None:
        service.indexes.advance(old, into=new)
        with service.indexes.keyword(new) as index:  # so that the first search need not wait for it
            service.indexes.advance_keyword(old, index)
        service.do_save(Space.of(new))

    def _swap(self, kb: KnowledgeBase, old: Generation, new: Generation) -> bool:
        with self._context.db.write(kb.id) as sql:
            now = kbs.get(sql, kb.id)
            if now is None or now.generation.id != old.id or kbs.get_generation(sql, new.id) is None:
                raise MoveFailed(
                    "知识库在迁移期间被重建或删除，请重试 / "
                    "the knowledge base was rebuilt or deleted meanwhile, try again"
                )
            job_rows.cancel(sql, [job.id for job in job_rows.active(sql, kb.id, GRAPH)], "已迁移 / it was moved")
            moves.hand_over(sql, old, new)
            kbs.bump(sql, kb.id)
            if (moved := kbs.get(sql, kb.id)) is not None:
                queue_build(sql, self._context, moved, again=True)
        return True


def verify(service: KBService, rows: Generation, place: Generation) -> int:
    """Look whether a store holds in one `place` all vectors that SQL has in the `rows` of a generation, and finds them;
    returns their number.

    Raises:
        MoveFailed: it does not.
    """
    for _ in range(_TRIES):
        service.indexes.advance(rows, into=place)
        with service.do_init(Space.of(place)), service.context.db.read() as sql:
            kb = kbs.get(sql, rows.kb_id)
            if kb is None or service.do_version(Space.of(place)) != kb.version:
                continue  # something came in between
            pages = [[row[0] for row in page] for page in chunk_rows.all_vectors(sql, rows.id)]
            wanted = [chunk_id for page in pages for chunk_id in page]
            _require_all(set(wanted), set(service.do_ids(Space.of(place))))
            sample = chunk_rows.by_ids(sql, rows.id, wanted[:: max(1, len(wanted) // _SAMPLE)][:_SAMPLE])
            _require_found(service, rows, Space.of(place), list(sample.values()))
            return len(wanted)
    raise MoveFailed("知识库一直在变化，请稍后重试 / the knowledge base keeps changing, try again later")


def _require_all(wanted: set[int], present: set[int]) -> None:
    if wanted != present:
        missing, extra = len(wanted - present), len(present - wanted)
        raise MoveFailed(
            f"新的向量库缺 {missing} 个、多 {extra} 个向量，未切换 / the new store lacks {missing} vectors and has "
            f"{extra} too many: nothing was changed"
        )


def _require_found(service: KBService, rows: Generation, space: Space, sample: Sequence[Any]) -> None:
    """Each chunk is among the nearest to its own vector, or others of the same vector are."""
    transform, missed = service.indexes.transform(rows), 0
    for chunk in sample:
        (vector,) = transform.apply_passages(unpack([chunk.vector]), [chunk.lang])
        found = service.do_search(space, vector, _NEAREST)
        if chunk.id not in found:
            with service.context.db.read() as sql:
                others = chunk_rows.by_ids(sql, rows.id, found)
            missed += all(other.vector != chunk.vector for other in others.values())
    if missed > (1 - _FOUND) * len(sample):
        raise MoveFailed(
            f"抽查的 {len(sample)} 个片段中有 {missed} 个搜索不到，未切换 / {missed} of {len(sample)} chunks are not "
            "found by their own vectors: nothing was changed"
        )


def _step(finished: int, total: int, words: str) -> Progress:
    event: dict[str, Any] = {"code": 200, "msg": words, "total": total, "finished": finished, "doc": ""}
    return Progress(finished, total, event)
