"""A knowledge base moves into every store and out of it, on real engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.db import doomed
from server.knowledge_base.context import Space
from server.knowledge_base.factory import KBServiceFactory, SupportedVSType
from server.knowledge_base.service import KBService
from tests.api.test_moving import FILES, answers_alike
from tests.contract.stores import STORES, store_of
from tests.crash_kit import answers, check_indexes, running


def service() -> KBService:
    found = KBServiceFactory.get_service_by_name("kb")
    assert found is not None
    return found


@pytest.mark.parametrize("name", [name for name in STORES if name != "faiss"])
def test_there_and_back(name: str, tmp_path: Path) -> None:
    store = store_of(name)
    settings = store.settings(tmp_path, default_vs_type="faiss")
    with running(settings) as api:
        api.create("kb")
        api.upload("kb", FILES, chunk_size=40, chunk_overlap=0)
        before, stale = answers(api, "kb"), service()
        for target in (store.vs_type, SupportedVSType.FAISS):
            left = service()
            place = Space.of(left.generation())
            events = api.events("/knowledge_base/migrate", knowledge_base_name="kb", vs_type=target.value)
            assert events[-1]["code"] == 200, events
            assert service().vs_type() == target.value
            assert answers_alike(answers(api, "kb"), before)
            assert stale.search_docs("file3 line5", 3, 4)  # of somebody who had it open before the move
            with left.do_init(place):
                assert left.do_version(place) == 0  # nothing stays behind
        with left.context.db.read() as sql:
            assert doomed.list_all(sql) == []
    check_indexes(settings)
