"""Summaries: of files and of chosen chunks, by a model or of the text's own sentences; stored, searched, forgotten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from server.chat.summary import extract, packed
from server.models.fake_llm import FakeLLM, Reply
from server.tokens import estimate_tokens
from tests.conftest import Api, app_of, fake_settings, llm_model

BASE = "/knowledge_base/kb_summary_api"
LONG = "\n\n".join(f"Section {n}: pump number {n} is checked every {n} days by crew {n}." for n in range(1, 40))


def summaries(api: Api, query: str) -> list[dict[str, Any]]:
    found = api.post("/retrieval/search", query=query, knowledge_base_names=["kb"], scope="summaries",
                     score_threshold=4)  # fmt: skip
    return list(found.get("hits", []))


def test_a_file_is_summarised_part_by_part(tmp_path: Path, llm: FakeLLM) -> None:
    settings = fake_settings(tmp_path / "data", llm_models=[llm_model(llm, context_size=1200, max_output_tokens=200)])
    llm.default = Reply(["pumps are checked"])
    with TestClient(app_of(settings)) as client:
        api = Api(client)
        api.create("kb")
        api.upload("kb", {"pumps.txt": LONG})
        events = api.events(f"{BASE}/summary_file_to_vector_store", knowledge_base_name="kb", file_name="pumps.txt",
                            file_description="the pumps")  # fmt: skip
        assert events == [{"code": 200, "msg": "pumps.txt 总结完成", "doc": "pumps.txt"}]
        shown = [prompt[-1]["content"] for prompt in llm.prompts]
        assert len(shown) > 2
        assert all(estimate_tokens(prompt) < 1000 for prompt in shown)
        assert sum("Section 7:" in prompt for prompt in shown) == 1
        assert "summaries of the parts" in shown[-1]
        hit = summaries(api, "pumps checked")[0]
        assert hit["text"] == "pumps are checked"
        assert hit["file_name"] == "pumps.txt"
        assert hit["metadata"]["file_description"] == "the pumps"
        assert api.texts("kb", "pumps are checked").count("pumps are checked") == 0


def test_without_a_model_its_own_sentences_are_chosen_and_that_is_said(api: Api) -> None:
    api.create("kb")
    api.upload(
        "kb", {"pumps.txt": LONG, "泵房.txt": "泵房压力表每周校准一次。值守人负责记录压力。压力异常时立即停泵。"}
    )
    events = api.events(f"{BASE}/recreate_summary_vector_store", knowledge_base_name="kb")
    assert [(event["finished"], event["total"], event["doc"]) for event in events] == [
        (1, 2, "pumps.txt"), (2, 2, "泵房.txt"),
    ]  # fmt: skip
    texts = {hit["file_name"]: hit["text"] for hit in summaries(api, "pump 压力")}
    assert "no language model" in texts["pumps.txt"]
    assert "未使用语言模型" in texts["泵房.txt"]
    assert all(line in LONG for line in texts["pumps.txt"].split("\n")[1:])


def test_chosen_chunks_are_summarised_and_returned(llm_api: Api, llm: FakeLLM) -> None:
    llm_api.create("kb")
    llm_api.upload("kb", {"a.txt": "one thing", "b.txt": "another thing"})
    ids = [hit["id"] for hit in llm_api.search("kb", "thing", score_threshold=4)]
    llm.default = Reply(["both things"])
    answer = llm_api.post(f"{BASE}/summary_doc_ids_to_vector_store", knowledge_base_name="kb", doc_ids=ids)
    assert (answer["code"], answer["msg"]) == (200, "总结完成")
    (made,) = answer["data"]["summarize"]
    assert made["page_content"] == "both things"
    assert made["metadata"]["doc_ids"] == ",".join(ids)
    assert made["type"] == "Document"
    ghost = llm_api.post(f"{BASE}/summary_doc_ids_to_vector_store", knowledge_base_name="ghost", doc_ids=ids)
    assert (ghost["code"], ghost["data"]) == (404, {})
    missing = llm_api.post(f"{BASE}/summary_doc_ids_to_vector_store", knowledge_base_name="kb", doc_ids=["999", "x"])
    assert missing["code"] == 404


def test_a_failing_model_or_file_is_told_and_skipped(llm_api: Api, llm: FakeLLM) -> None:
    llm_api.create("kb")
    llm_api.upload("kb", {"a.txt": "one thing", "b.txt": "another thing"})
    llm.script.append(Reply(status=400))
    llm.default = Reply(["fine"])
    events = llm_api.events(f"{BASE}/recreate_summary_vector_store", knowledge_base_name="kb")
    assert events[0]["code"] == 500
    assert "知识库'kb'总结文件‘a.txt’时出错。已跳过。" in events[0]["msg"]
    assert events[1]["code"] == 200
    ghost = llm_api.events(f"{BASE}/summary_file_to_vector_store", knowledge_base_name="kb", file_name="ghost.txt")
    assert ghost[0]["code"] == 500
    refused = llm_api.events(f"{BASE}/summary_file_to_vector_store", knowledge_base_name="none", file_name="a.txt",
                             allow_empty_kb=False)  # fmt: skip
    assert refused[0]["code"] == 404


@pytest.mark.parametrize("how", ["delete", "replace", "drop"])
def test_a_summary_goes_with_its_file(api: Api, tmp_path: Path, how: str) -> None:
    api.create("kb")
    api.upload("kb", {"a.txt": "The zeppelin hangar is empty. Nobody flies any more.", "b.txt": "something else"})
    api.events(f"{BASE}/recreate_summary_vector_store", knowledge_base_name="kb")
    assert len(summaries(api, "zeppelin hangar")) == 2
    if how == "delete":
        api.delete_docs("kb", "a.txt", delete_content=True)
    elif how == "replace":
        api.upload("kb", {"a.txt": "new text"}, override=True)
    else:
        api.delete("kb")
    assert "zeppelin" not in json.dumps(summaries(api, "zeppelin hangar"))
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"zeppelin hangar" not in left


def test_parts_fit_and_lose_nothing() -> None:
    parts = packed(["short", "x" * 3000, "又长又长" * 300], 200)
    assert all(estimate_tokens(part) <= 210 for part in parts)
    assert "".join(parts).replace("\n", "") == "short" + "x" * 3000 + "又长又长" * 300


def test_an_extract_repeats_nothing() -> None:
    text = "The pump is checked weekly by the crew. " * 5 + "Oil is changed in May by the same crew."
    said = extract([text]).text.split("\n")[1:]
    assert len(said) == len(set(said)) == 2
