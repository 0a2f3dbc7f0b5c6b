"""The `openai` package and its shapes, unchanged, against the service on a real port."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from server.models.fake_llm import FakeLLM, Reply
from tests.conftest import Api, ThreadServer, app_of, fake_settings, llm_model

EN = "The harbour master keeps the tide table in the north office."
ZH = "泵房压力表每周校准一次，由值守人负责。"


@pytest.fixture
def url(tmp_path: Path, llm: FakeLLM) -> Iterator[str]:
    app = app_of(fake_settings(tmp_path / "data", llm_models=[llm_model(llm)]))
    with ThreadServer(app) as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
def kb(url: str) -> Api:
    api = Api(httpx.Client(base_url=url, timeout=60))
    api.create("手册 kb")
    api.upload("手册 kb", {"tide.txt": EN, "泵房.txt": ZH})
    return api


WIDE = {"score_threshold": 4, "top_k": 5}


# ---- chat


def test_a_knowledge_base_is_a_model(client: openai.OpenAI, kb: Api, llm: FakeLLM) -> None:
    llm.script.append(Reply(["The tide table is kept ", "in the north office [1]", " [9]."]))
    answer = client.chat.completions.create(
        model="kb:手册 kb", messages=[{"role": "user", "content": "Where is the tide table?"}], extra_body=WIDE
    )
    message: Any = answer.choices[0].message
    assert message.content == "The tide table is kept in the north office [1]."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    citation = message.citations[0]
    assert citation["number"] == 1
    assert citation["verified"] is True
    assert citation["file_name"] == "tide.txt"
    assert EN[citation["start"] : citation["end"]] == citation["quote"]
    assert "<mark" in kb.http.get(citation["url"]).text
    assert [source["number"] for source in message.sources] == [1, 2]


def test_a_stream_says_the_same_and_ends_with_sources_usage_and_done(
    client: openai.OpenAI, kb: Api, llm: FakeLLM, url: str
) -> None:
    llm.default = Reply(["潮汐表", "在北办公室 [1", "]。[7]"])
    ask: Any = {"model": "kb:手册 kb", "messages": [{"role": "user", "content": "潮汐表 tide table?"}]}
    whole = client.chat.completions.create(**ask, extra_body=WIDE)
    chunks = list(
        client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}, extra_body=WIDE)
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content == "潮汐表在北办公室 [1]。"
    assert chunks[0].choices[0].delta.role == "assistant"
    last: Any = next(chunk for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason == "stop")
    message: Any = whole.choices[0].message
    assert last.citations == message.citations
    assert last.sources == message.sources
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1
    raw = httpx.post(f"{url}/v1/chat/completions", json={**ask, "stream": True, **WIDE}).text
    assert raw.endswith("data: [DONE]\n\n")
    assert "usage" not in raw


def test_a_language_model_is_a_model(client: openai.OpenAI, llm: FakeLLM) -> None:
    llm.script.append(Reply(["<think>hm", "m</think>", "Hello"]))
    answer = client.chat.completions.create(
        model="fake-llm",
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": [{"type": "text", "text": "{three} {{ x }}"}]},
        ],
        temperature=0,
        max_tokens=5,
    )
    message: Any = answer.choices[0].message
    assert message.content == "Hello"
    assert message.reasoning_content == "hmm"
    assert llm.prompts[-1] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "{three} {{ x }}"},
    ]


def test_thinking_streams_as_a_field_of_its_own(client: openai.OpenAI, llm: FakeLLM) -> None:
    llm.script.append(Reply(["<thi", "nk>a", "b</th", "ink>\n\nHi"]))
    stream = client.chat.completions.create(model="fake-llm", messages=[{"role": "user", "content": "hi"}], stream=True)
    deltas: list[Any] = [chunk.choices[0].delta for chunk in stream]
    assert "".join(delta.content or "" for delta in deltas) == "Hi"
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "ab"


def test_errors_are_those_that_the_package_knows(client: openai.OpenAI, kb: Api, llm: FakeLLM) -> None:
    ask: Any = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="kb:ghost", messages=ask)
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        client.chat.completions.create(model="no-such-model", messages=ask)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="fake-llm", messages=[])
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="fake-llm", messages=[{"role": "assistant", "content": "x"}])
    llm.script.extend([Reply(status=429)] * 8)
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="fake-llm", messages=ask)
    llm.script.clear()
    llm.script.append(Reply(["a", "b", "c"], break_after=2))
    with pytest.raises(openai.APIError, match="fake-llm"):
        list(client.chat.completions.create(model="fake-llm", messages=ask, stream=True))


def test_a_model_for_a_knowledge_base_can_be_chosen_and_none_is_needed(client: openai.OpenAI, kb: Api) -> None:
    answer = client.chat.completions.create(
        model="kb:手册 kb",
        messages=[{"role": "user", "content": "压力表多久校准一次？"}],
        extra_body={**WIDE, "llm": "extractive"},
    )
    message: Any = answer.choices[0].message
    assert "泵房压力表每周校准一次" in str(message.content)
    assert message.citations
    assert all(citation["verified"] for citation in message.citations)


def test_models_are_listed(client: openai.OpenAI, kb: Api) -> None:
    names = [model.id for model in client.models.list()]
    assert {"fake-llm", "extractive", "kb:手册 kb", "fake"} <= set(names)
    assert client.models.retrieve("kb:手册 kb").id == "kb:手册 kb"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("ghost")


def test_embeddings(client: openai.OpenAI) -> None:
    one = client.embeddings.create(model="fake", input="tide")
    two = client.embeddings.create(model="fake", input=["tide", "表"], encoding_format="float")
    assert len(one.data[0].embedding) == 16
    assert one.data[0].embedding == pytest.approx(two.data[0].embedding, abs=1e-6)
    assert [item.index for item in two.data] == [0, 1]
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model="fake", input="tide", dimensions=3)
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model="ghost", input="tide")


# ---- files and vector stores


def test_files_go_into_a_vector_store_and_are_found(client: openai.OpenAI) -> None:
    tide = client.files.create(file=("tide.txt", EN.encode()), purpose="assistants")
    pump = client.files.create(file=("泵房.txt", ZH.encode()), purpose="assistants")
    assert tide.filename == "tide.txt"
    assert tide.bytes == len(EN)
    store = client.vector_stores.create(name="Support 手册", file_ids=[tide.id], metadata={"team": "ops"})
    assert store.name == "Support 手册"
    assert store.metadata == {"team": "ops"}
    added = client.vector_stores.files.create_and_poll(
        vector_store_id=store.id, file_id=pump.id, attributes={"year": 2024, "region": "华东"}
    )
    assert added.status == "completed"
    assert added.attributes == {"year": 2024, "region": "华东"}
    assert client.vector_stores.files.poll(tide.id, vector_store_id=store.id).status == "completed"
    assert client.vector_stores.retrieve(store.id).file_counts.completed == 2

    found = client.vector_stores.search(store.id, query="压力表校准", ranking_options={"score_threshold": 0.0}).data
    assert found[0].filename == "泵房.txt"
    assert found[0].file_id == pump.id
    assert found[0].content[0].text == ZH
    assert 0 <= found[0].score <= 1
    only: Any = {"type": "and", "filters": [{"type": "gte", "key": "year", "value": 2024}]}
    loose: Any = {"score_threshold": 0.0}
    filtered = client.vector_stores.search(
        store.id, query="压力表 tide table", filters=only, ranking_options=loose
    ).data
    assert {result.file_id for result in filtered} == {pump.id}
    client.vector_stores.files.update(pump.id, vector_store_id=store.id, attributes={"year": 2020})
    assert client.vector_stores.search(store.id, query="压力表", filters=only, ranking_options=loose).data == []

    text = client.vector_stores.files.content(tide.id, vector_store_id=store.id)
    assert [part.text for part in text] == [EN]
    assert client.files.content(pump.id).read() == ZH.encode()
    listed = [item.id for item in client.vector_stores.files.list(store.id, order="asc")]
    assert listed == [tide.id, pump.id]
    client.vector_stores.files.delete(tide.id, vector_store_id=store.id)
    assert [item.id for item in client.vector_stores.files.list(store.id)] == [pump.id]
    client.files.delete(pump.id)
    assert list(client.vector_stores.files.list(store.id)) == []
    assert [item.id for item in client.files.list()] == [tide.id]
    client.vector_stores.delete(store.id)
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.retrieve(store.id)


def test_a_batch_of_files_of_which_one_is_bad(client: openai.OpenAI) -> None:
    good = client.files.create(file=("same.txt", b"the first tide"), purpose="assistants")
    twin = client.files.create(file=("same.txt", b"the second tide"), purpose="assistants")
    empty = client.files.create(file=("empty.txt", b""), purpose="assistants")
    store = client.vector_stores.create(name="x")
    batch = client.vector_stores.file_batches.create_and_poll(
        vector_store_id=store.id, file_ids=[good.id, twin.id, empty.id]
    )
    assert (batch.file_counts.completed, batch.file_counts.failed, batch.file_counts.total) == (2, 1, 3)
    failed = client.vector_stores.files.retrieve(empty.id, vector_store_id=store.id)
    assert failed.status == "failed"
    assert failed.last_error is not None
    assert failed.last_error.message
    assert len(list(client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id))) == 3
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.file_batches.create(vector_store_id=store.id, file_ids=[good.id, "file-ghost"])
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.file_batches.retrieve("vsfb_ghost", vector_store_id=store.id)


def test_vector_stores_are_knowledge_bases(client: openai.OpenAI, kb: Api) -> None:
    stores = {store.name: store for store in client.vector_stores.list()}
    assert stores["手册 kb"].file_counts.completed == 2
    twin = client.vector_stores.create(name="手册 kb")
    assert twin.name == "手册 kb (2)"
    assert client.vector_stores.create().name
    renamed = client.vector_stores.update(twin.id, name="other", metadata={"a": "b"})
    assert (renamed.name, renamed.metadata) == ("other", {"a": "b"})
    assert "other" in kb.http.get("/knowledge_base/list_knowledge_bases").json()["data"]


def test_a_vector_store_ends_with_its_time(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    store = client.vector_stores.create(name="x", expires_after={"anchor": "last_active_at", "days": 1})
    assert store.expires_at is not None
    now = time.time()
    monkeypatch.setattr("server.knowledge_base.expiry.time.time", lambda: now + 2 * 86400)
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.retrieve(store.id)
    assert list(client.vector_stores.list()) == []


def test_lists_come_in_pages(client: openai.OpenAI) -> None:
    made = [client.files.create(file=(f"{n}.txt", b"x"), purpose="assistants").id for n in range(5)]
    assert [item.id for item in client.files.list(limit=2, order="asc")] == made
    assert [item.id for item in client.files.list(limit=2, order="asc").data] == made[:2]


@pytest.mark.parametrize("bad", ["file-../../etc/passwd", "file-", "ghost", "file-%00", "file-" + "a" * 200])
def test_ids_are_looked_up_and_never_paths(url: str, bad: str) -> None:
    for path in (f"/v1/files/{bad}", f"/v1/files/{bad}/content"):
        assert httpx.get(url + path).status_code == 404
    assert httpx.get(f"{url}/v1/vector_stores/{bad}").status_code == 404


def test_a_cut_answer_and_what_goes_to_the_model(client: openai.OpenAI, llm: FakeLLM) -> None:
    llm.default = Reply(["half of"], finish="length")
    ask: Any = {"model": "fake-llm", "messages": [{"role": "user", "content": "hi"}]}
    answer = client.chat.completions.create(**ask, stop=["END"], seed=7, max_tokens=10**6)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("half of", "length")
    assert (llm.bodies[-1]["stop"], llm.bodies[-1]["seed"]) == (["END"], 7)
    assert llm.bodies[-1]["max_tokens"] < 8192
    chunks = list(client.chat.completions.create(**ask, stream=True))
    assert chunks[-1].choices[0].finish_reason == "length"
    picture: Any = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="fake-llm", messages=[{"role": "user", "content": picture}])


def test_no_turn_of_a_conversation_is_lost(client: openai.OpenAI, llm: FakeLLM) -> None:
    llm.default = Reply(["ok"])
    messages: Any = [
        {"role": "assistant", "content": "Welcome, the code is 77."},
        {"role": "user", "content": "A is 1."},
        {"role": "assistant", "content": "<think>secret</think>Noted."},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "B is 2."},
        {"role": "user", "content": "What is A?"},
    ]
    client.chat.completions.create(model="fake-llm", messages=messages)
    assert [turn["role"] for turn in llm.prompts[-1]] == ["system", "user", "assistant", "user"]
    system, first, noted, last = (turn["content"] for turn in llm.prompts[-1])
    assert "the code is 77" in system
    assert (first, noted, last) == ("A is 1.", "Noted.", "B is 2.\n\nWhat is A?")


def test_a_change_of_a_vector_store_keeps_the_rest(client: openai.OpenAI) -> None:
    store = client.vector_stores.create(
        name="x", metadata={"k": "v"}, expires_after={"anchor": "last_active_at", "days": 7}
    )
    changed = client.vector_stores.update(store.id, metadata={"z": "1"})
    assert changed.expires_after is not None
    assert changed.expires_after.days == 7
    changed = client.vector_stores.update(store.id, expires_after={"anchor": "last_active_at", "days": 3})
    assert changed.metadata == {"z": "1"}
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.create(name="orphan", file_ids=["file-abc"])
    assert [item.name for item in client.vector_stores.list()] == ["x"]


def test_several_queries_take_turns(client: openai.OpenAI) -> None:
    store = client.vector_stores.create(name="x")
    for name, text in (("a.txt", "alpha oil"), ("b.txt", "alpha oil spare"), ("g.txt", "gamma gear")):
        file = client.files.create(file=(name, text.encode()), purpose="assistants")
        client.vector_stores.files.create_and_poll(vector_store_id=store.id, file_id=file.id)
    found = client.vector_stores.search(
        store.id, query=["alpha oil", "gamma gear"], max_num_results=2, ranking_options={"score_threshold": 0.0}
    )
    assert {result.filename for result in found.data} >= {"g.txt"}


def test_files_of_one_name_get_numbers(client: openai.OpenAI) -> None:
    ids = [client.files.create(file=("a.txt", text), purpose="assistants").id for text in (b"one", b"two")]
    store = client.vector_stores.create(name="x", file_ids=ids)
    for file_id in ids:
        client.vector_stores.files.poll(file_id, vector_store_id=store.id)
    found = client.vector_stores.search(store.id, query="one two", ranking_options={"score_threshold": 0.0})
    assert {result.filename for result in found.data} == {"a.txt", "a (2).txt"}


@pytest.mark.parametrize(
    "path",
    [
        "/knowledge_base/chunks?knowledge_base_name=k&offset=1000000000000000000000000",
        "/conversations?offset=100000000000000000000000",
        "/conversations/messages?conversation_id=x&offset=100000000000000000000000",
        "/knowledge_base/view_doc?knowledge_base_name=k&file_name=f&start=1&end=100000000000000000000000",
    ],
)
def test_numbers_beyond_all_measure_are_malformed(url: str, path: str) -> None:
    assert httpx.get(url + path).status_code == 422
