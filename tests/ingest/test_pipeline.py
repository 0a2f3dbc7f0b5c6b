"""A file that is written in many parts becomes visible as one, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from server.db import files
from server.db.tables import ChunkRow, DocumentRow, TextRow
from server.domain import Block, Progress, Reached, StoredFile
from server.errors import LoadError
from server.ingest import pipeline
from server.ingest.loaders.base import damaged
from server.ingest.sandbox import Reading
from server.ingest.splitters import base
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.service import KBService
from tests.conftest import Api

OLD = "旧的潮位表。"
PARAGRAPHS = [f"第{n}号泵房的压力表每周校准一次。Pump {n} is checked weekly." for n in range(60)]


@pytest.fixture
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_BATCH", 100)
    monkeypatch.setattr(base, "_LONGEST_SECTION", 80)


def service() -> KBService:
    found = KBServiceFactory.get_service_by_name("kb")
    assert found is not None
    return found


def stored(api: Api, text: str = OLD) -> StoredFile:
    api.create("kb")
    api.upload("kb", {"a.txt": text})
    return service().find_file("a.txt")


def rows() -> tuple[int, int, int]:
    with service().context.db.read() as sql:
        counts = [sql.scalar(select(func.count()).select_from(table)) for table in (DocumentRow, ChunkRow, TextRow)]
    return counts[0] or 0, counts[1] or 0, counts[2] or 0


def replaced(file: StoredFile, text: str) -> StoredFile:
    """The file with new bytes, not yet read."""
    context, path = service().context, Path(str(file.storage))
    context.files.path(file.kb_id, path.name).write_text(text, encoding="utf-8")
    with context.db.write() as sql:
        return files.put(sql, file.kb_id, file.name, path.name, "0" * 64, len(text))


@pytest.mark.usefixtures("many_parts")
def test_places_run_through_all_parts(api: Api) -> None:
    stored(api, "\n\n".join(PARAGRAPHS))
    text, length = service().read_text("a.txt", 0, 1_000_000)
    assert text == "\n\n".join(PARAGRAPHS)
    assert length == len(text)
    _, chunks = service().page_of_docs("a.txt", 0, 1000)
    assert len(chunks) > 20
    assert all(text[chunk.start : chunk.end] == chunk.text for chunk in chunks)
    assert [chunk.start for chunk in chunks] == sorted(chunk.start or 0 for chunk in chunks)
    assert all(paragraph in "\n\n".join(chunk.text for chunk in chunks) for paragraph in PARAGRAPHS)


@pytest.mark.usefixtures("many_parts")
def test_searchers_see_the_old_version_until_the_last_part_is_in(api: Api) -> None:
    file = replaced(stored(api), "\n\n".join(PARAGRAPHS))
    seen: list[Progress] = []
    for progress in service().add_doc(file):
        seen.append(progress)
        if progress.total < len(PARAGRAPHS) // 2:
            assert api.texts("kb", "压力表") == [OLD]
    assert len({progress.total for progress in seen}) > 5  # it moves while the file is read
    assert OLD not in api.texts("kb", "压力表")
    assert rows()[0] == 1


def test_pages_that_are_read_are_told_before_there_is_text(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    file = replaced(stored(api), "x")

    @contextmanager
    def slow(*_: Any) -> Iterator[Reading]:
        yield Reading(iter([Reached(1, 3), Reached(2, 3), Block(PARAGRAPHS[0]), Block(PARAGRAPHS[1])]), "pdf")

    monkeypatch.setattr(service().context.pipeline.sandbox, "open", slow)
    seen = [(one.finished, one.total) for one in service().add_doc(file)]
    assert seen[:2] == [(1, 3), (2, 3)]
    assert service().read_text("a.txt", 0, 1000)[0] == "\n\n".join(PARAGRAPHS[:2])


@pytest.mark.usefixtures("many_parts")
def test_a_file_that_breaks_in_the_middle_leaves_nothing(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    file = replaced(stored(api), "x")
    before = rows()

    @contextmanager
    def broken(*_: Any) -> Iterator[Reading]:
        def blocks() -> Iterator[Block]:
            yield from map(Block, PARAGRAPHS)
            raise damaged("在中间断开", "it ends in the middle")

        yield Reading(blocks())

    monkeypatch.setattr(service().context.pipeline.sandbox, "open", broken)
    with pytest.raises(LoadError, match="in the middle"):
        list(service().add_doc(file))
    assert rows() == before
    assert api.texts("kb", "潮位") == [OLD]
    assert "在中间断开" in api.details("kb")["a.txt"]["reason"]


@pytest.mark.usefixtures("many_parts")
def test_a_job_that_ended_between_two_parts_begins_its_file_again(api: Api) -> None:
    file, kb = replaced(stored(api), "\n\n".join(PARAGRAPHS)), service()
    ingest = kb.context.pipeline.ingest
    first = ingest(file, kb.generation(), kb.split_options(), None, 4711)
    while rows()[0] < 2:
        next(first)
    del first  # as if the process had died
    assert rows()[0] == 2
    list(ingest(file, kb.generation(), kb.split_options(), None, 4711))
    assert rows()[0] == 1
    assert kb.read_text("a.txt", 0, 1_000_000)[0] == "\n\n".join(PARAGRAPHS)
