"""The promises of the design, each broken on purpose by nobody but these tests: crashes, races, damage, deletion."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from configs import EmbeddingModelSettings
from server.knowledge_base.factory import KBServiceFactory
from tests.conftest import Api, fake_settings
from tests.crash_kit import SLOW, answers, check_indexes, running, text_of, wait_until_idle


def test_indexes_are_caches(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path)
    with running(settings) as api:
        api.create("kb")
        api.upload("kb", {f"f{n}.txt": text_of(n) for n in range(9)}, chunk_size=40, chunk_overlap=0)
        before = answers(api, "kb")
        assert sum(map(bool, before)) >= 9
    shutil.rmtree(tmp_path / "index")
    with running(settings) as api:
        assert answers(api, "kb") == before
    check_indexes(settings)


def test_nothing_is_pickled(tmp_path: Path) -> None:
    with running(fake_settings(tmp_path)) as api:
        api.create("kb")
        api.upload("kb", {"a.txt": text_of(1)})
    assert [path for path in tmp_path.rglob("*") if path.suffix in (".pkl", ".pickle")] == []
    assert not any(
        path.read_bytes()[:2] in (b"\x80\x04", b"\x80\x05") for path in tmp_path.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("damage", [b"", b"zhiku-faiss-1\n{}\n", None], ids=["empty", "no header", "flipped bit"])
def test_a_damaged_index_is_built_again(tmp_path: Path, damage: bytes | None) -> None:
    settings = fake_settings(tmp_path)
    with running(settings) as api:
        for kb in ("bad", "good"):
            api.create(kb)
            api.upload(kb, {"f3.txt": text_of(3), "f7.txt": text_of(7)}, chunk_size=40, chunk_overlap=0)
        before = answers(api, "bad")
        bad = KBServiceFactory.get_service_by_name("bad")
        assert bad is not None
        bad.save_vector_store()
    path = next(tmp_path.glob("index/kb1/*/vectors.faiss"))
    body = bytearray(path.read_bytes())
    body[-100] ^= 1
    path.write_bytes(bytes(body) if damage is None else damage)
    for meta in tmp_path.glob("index/kb1/*/keyword/meta.json"):
        meta.write_bytes(b"{broken")
    with running(settings) as api:
        assert answers(api, "good")
        assert answers(api, "bad") == before
    check_indexes(settings)


def test_a_slow_knowledge_base_stalls_no_other(tmp_path: Path) -> None:
    models = [
        EmbeddingModelSettings(name="fake", provider="fake", options={"dimension": 16}),
        EmbeddingModelSettings(name="stuck", provider="fake", options={"dimension": 16, "delay": 20.0}),
    ]
    with running(fake_settings(tmp_path, embedding_models=models)) as api:
        api.create("slow", embed_model="stuck")
        api.create("quick")
        api.upload("slow", {f"s{n}.txt": text_of(n, lines=1) for n in range(12)}, wait="false")
        assert api.upload("quick", {"q.txt": "quick text"})["data"]["failed_files"] == {}
        assert api.texts("quick", "quick") == ["quick text"]
        slow = [job for job in api.http.get("/jobs").json() if job["knowledge_base_name"] == "slow"]
        assert {job["state"] for job in slow} == {"queued", "running"}  # not one passage of the other is done
        for job in slow:
            api.post(f"/jobs/{job['id']}/cancel")


def test_eviction_loses_nothing(tmp_path: Path) -> None:
    with running(fake_settings(tmp_path, cached_vs_num=1)) as api:
        names = [f"kb{n}" for n in range(4)]
        for name in names:
            api.create(name)

        def work(name: str) -> None:
            for n in range(5):
                api.upload(name, {f"{n}.txt": f"{name} text {n}"}, not_refresh_vs_cache="true")
                assert len(api.texts(name, "text", search_type="similarity")) == n + 1

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, names))
        assert [len(api.texts(name, "text", search_type="similarity")) for name in names] == [5] * 4


def test_a_file_changes_from_one_version_to_the_next(tmp_path: Path) -> None:
    with running(fake_settings(tmp_path, embedding_models=SLOW)) as api:
        api.create("kb")
        api.upload("kb", {"f.txt": text_of(1)}, chunk_size=30, chunk_overlap=0)
        seen: list[set[str]] = []
        stop = threading.Event()

        def look() -> None:
            while not stop.is_set():
                found = api.texts("kb", "file1 line", search_type=random.choice(["hybrid", "keyword", "similarity"]))
                seen.append({text.split()[1] for text in found})
                assert len(found) == 12

        with ThreadPoolExecutor(3) as pool:
            watchers = [pool.submit(look) for _ in range(2)]
            for version in range(2, 6):
                api.upload("kb", {"f.txt": text_of(1, version)}, override="true", chunk_size=30, chunk_overlap=0)
            stop.set()
            for watcher in watchers:
                watcher.result()
        assert all(len(versions) == 1 for versions in seen)
        assert {"v1", "v5"} <= set.union(*seen) | {"v1"}
        assert {text.split()[1] for text in api.texts("kb", "file1 line")} == {"v5"}


def test_a_first_version_is_found_by_keyword_before_its_vectors_are_in(tmp_path: Path) -> None:
    models = [EmbeddingModelSettings(name="fake", provider="fake", options={"dimension": 16, "delay": 0.2})]
    with running(fake_settings(tmp_path, embedding_models=models)) as api:
        api.create("kb")
        api.upload("kb", {"f.txt": text_of(1)}, wait="false", chunk_size=30, chunk_overlap=0)
        deadline = time.monotonic() + 10
        while not api.details("kb")["f.txt"]["docs_count"]:
            assert time.monotonic() < deadline
        details = api.details("kb")["f.txt"]
        assert details["state"] == "keyword"
        assert details["vectors_count"] < details["docs_count"] == 12
        hit = api.search("kb", "line5", score_threshold=4)[0]
        assert "line5" in hit["page_content"]
        wait_until_idle(api)
        assert api.details("kb")["f.txt"]["state"] == "ready"
        assert api.search("kb", "line5", score_threshold=4)[0]["score"] is not None


def test_deleted_means_gone_from_the_disk(tmp_path: Path) -> None:
    secret = "Zanzibar-7731 秘密配方"
    with running(fake_settings(tmp_path)) as api:
        api.create("kb")
        api.upload("kb", {"keep.txt": text_of(1), "secret.txt": secret * 5})
        assert api.texts("kb", "Zanzibar")
        api.delete_docs("kb", "secret.txt", delete_content=True)
        assert not any("Zanzibar" in text for text in api.texts("kb", "Zanzibar"))
        api.create("other")
        api.upload("other", {"secret.txt": secret})
        api.delete("other")
        docs = json.dumps({"own.txt": [{"page_content": secret}]})
        api.upload("kb", {"own.txt": "x"}, docs=docs)
        api.delete_docs("kb", "own.txt", delete_content=True)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert left == []
    assert not any(b"zanzibar" in path.read_bytes().lower() for path in tmp_path.rglob("*") if path.is_file())


def test_uploads_and_searches_at_the_same_time(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path, embedding_models=SLOW)
    with running(settings) as api:
        api.create("kb")
        stop = threading.Event()

        def upload(worker: int) -> list[dict[str, str]]:
            return [api.upload("kb", {f"w{worker}-{n}.txt": text_of(n)})["data"]["failed_files"] for n in range(4)]

        def search() -> int:
            count = 0
            while not stop.is_set():
                api.search("kb", "line3 水泵", top_k=20, score_threshold=4)
                count += 1
            return count

        with ThreadPoolExecutor(16) as pool:
            searches = [pool.submit(search) for _ in range(8)]
            failures = list(pool.map(upload, range(8)))
            stop.set()
            assert all(future.result() > 0 for future in searches)
        assert failures == [[{}] * 4] * 8
        assert len(api.files("kb")) == 32
    check_indexes(settings)


def test_uploading_twice_is_uploading_once(tmp_path: Path) -> None:
    with running(fake_settings(tmp_path, embedding_models=SLOW)) as api:
        api.create("kb")
        with ThreadPoolExecutor(3) as pool:  # a client that lost patience sends its upload again
            outcomes = list(pool.map(lambda _: api.upload("kb", {"f.txt": text_of(1)}, override="true"), range(3)))
        assert outcomes
        for _ in range(2):
            api.upload("kb", {"f.txt": text_of(1)}, override="true")
        assert api.files("kb") == ["f.txt"]
        listed = [hit["page_content"] for hit in api.search("kb", "", file_name="f.txt")]
        assert len(listed) == len(set(listed))
        found = api.texts("kb", "line")
        assert sorted(found) == sorted(listed)


def test_a_rebuild_keeps_store_and_model_unless_told_otherwise(api: Api) -> None:
    api.create("kb")
    api.upload("kb", {"a.txt": text_of(1), "b.txt": text_of(2)})
    events = api.recreate("kb")
    assert events == [
        {"code": 200, "msg": "(1 / 2): a.txt", "total": 2, "finished": 1, "doc": "a.txt"},
        {"code": 200, "msg": "(2 / 2): b.txt", "total": 2, "finished": 2, "doc": "b.txt"},
    ]
    details = api.http.get("/knowledge_base/list_knowledge_base_details").json()[0]
    assert (details["vs_type"], details["embed_model"]) == ("faiss", "fake")
    api.recreate("kb", embed_model="fake8")
    details = api.http.get("/knowledge_base/list_knowledge_base_details").json()[0]
    assert details["embed_model"] == "fake8"
    assert len(api.texts("kb", "line")) == 2


def test_a_rebuild_of_nothing(api: Api) -> None:
    assert api.recreate("nowhere", allow_empty_kb=False) == [{"code": 404, "msg": "未找到知识库 ‘nowhere’"}]
    assert api.recreate("made") == []
    assert api.http.get("/knowledge_base/list_knowledge_bases").json()["data"] == ["made"]


def test_a_rebuild_reports_what_it_cannot_read_and_goes_on(api: Api) -> None:
    api.create("kb")
    api.upload("kb", {"a.txt": text_of(1), "empty.txt": b" ", "b.txt": text_of(2)})
    events = api.recreate("kb")
    assert [event["code"] for event in events] == [200, 500, 200]
    assert events[1]["msg"].startswith("添加文件‘empty.txt’到知识库‘kb’时出错：")
    assert events[1]["msg"].endswith("。已跳过。")
    assert api.files("kb") == ["a.txt", "b.txt"]


def test_a_model_that_is_down_leaves_the_old_index(tmp_path: Path) -> None:
    models = [
        EmbeddingModelSettings(name="fake", provider="fake", options={"dimension": 16}),
        EmbeddingModelSettings(name="down", provider="fake", options={"dimension": 16, "fails_on": "line"}),
    ]
    with running(fake_settings(tmp_path, embedding_models=models)) as api:
        api.create("kb")
        api.upload("kb", {"a.txt": text_of(1)})
        before = answers(api, "kb")
        assert api.recreate("kb", embed_model="down")[-1]["code"] == 500
        assert answers(api, "kb") == before
        job = api.http.get("/jobs").json()[0]
        assert job["state"] == "failed"
        assert "down" in job["reason"]


def test_an_upload_during_a_rebuild_is_in_the_result(tmp_path: Path) -> None:
    settings = fake_settings(tmp_path, embedding_models=SLOW)
    with running(settings) as api:
        api.create("kb")
        api.upload("kb", {f"f{n}.txt": text_of(n) for n in range(6)})
        with ThreadPoolExecutor(2) as pool:
            rebuild = pool.submit(api.recreate, "kb", chunk_size=60, chunk_overlap=0)
            time.sleep(0.2)
            api.upload("kb", {"late.txt": "late text 99"})
            api.delete_docs("kb", "f0.txt", delete_content=True)
            api.upload("kb", {"f5.txt": "five is new 55"}, override="true")
            assert rebuild.result()[-1]["code"] == 200
        assert api.http.get("/jobs", params={"state": "cancelled"}).json() == []
        assert api.texts("kb", "five", search_type="keyword") == ["five is new 55"]
        assert "late.txt" in api.files("kb")
        assert "f0.txt" not in api.files("kb")
        assert api.texts("kb", "late")[0] == "late text 99"
    check_indexes(settings)
