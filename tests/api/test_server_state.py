"""What old clients ask of the server itself: models, settings, prompts, completion, embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from configs import ChatModelSettings
from server.models.fake_llm import FakeLLM, Reply
from tests.conftest import Api, app_of, fake_settings, llm_model
from tests.engines import free_port


@pytest.fixture
def two(tmp_path: Path, llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setenv("SECRET_KEY_OF_MINE", "sk-never-shown")
    dead = ChatModelSettings(name="dead", base_url=f"http://127.0.0.1:{free_port()}/v1", max_retries=0,
                             api_key_env="SECRET_KEY_OF_MINE", options={"api_secret": "hush"})  # fmt: skip
    settings = fake_settings(tmp_path / "data", llm_models=[llm_model(llm), dead])
    with TestClient(app_of(settings)) as client:
        yield Api(client)


def test_running_models_are_those_that_answer(two: Api) -> None:
    running = two.post("/llm_model/list_running_models", controller_address=None)
    assert list(running["data"]) == ["fake-llm"]
    configured = two.post("/llm_model/list_config_models", types=["local", "online"])["data"]
    assert list(configured["online"]) == ["fake-llm", "dead"]
    assert "extractive" in configured["local"]


def test_no_secret_is_shown(two: Api) -> None:
    shown = str([two.post("/llm_model/get_model_config", model_name="dead"),
                 two.post("/llm_model/list_config_models"), two.post("/server/configs")])  # fmt: skip
    assert "dead" in shown
    for secret in ("sk-never-shown", "hush", "SECRET_KEY_OF_MINE"):
        assert secret not in shown


def test_models_stop_and_change(two: Api, llm: FakeLLM) -> None:
    assert two.post("/llm_model/stop", model_name="fake-llm")["code"] == 200
    assert two.post("/chat/chat", query="hi", model_name="fake-llm")["code"] == 500
    assert two.post("/server/configs")["LLM_MODELS"] == ["dead"]
    assert two.post("/llm_model/change", model_name="dead", new_model_name="fake-llm")["code"] == 200
    assert two.post("/server/configs")["LLM_MODELS"] == ["fake-llm"]
    llm.script.append(Reply(["back"]))
    assert two.events("/chat/chat", query="hi")[0]["text"] == "back"
    assert two.post("/llm_model/stop", model_name="ghost")["code"] == 500
    assert two.post("/llm_model/change", model_name="fake-llm", new_model_name="ghost")["code"] == 500


def test_without_a_model_the_quoting_one_runs(api: Api) -> None:
    assert list(api.post("/llm_model/list_running_models")["data"]) == ["extractive"]


def test_the_settings_have_the_names_that_clients_read(api: Api) -> None:
    found = api.post("/server/configs")
    assert {
        "DEFAULT_KNOWLEDGE_BASE", "DEFAULT_SEARCH_ENGINE", "DEFAULT_VS_TYPE", "CHUNK_SIZE", "OVERLAP_SIZE",
        "SCORE_THRESHOLD", "VECTOR_SEARCH_TOP_K", "SEARCH_ENGINE_TOP_K", "ZH_TITLE_ENHANCE", "text_splitter_dict",
        "TEXT_SPLITTER_NAME", "LLM_MODELS", "HISTORY_LEN", "TEMPERATURE", "PROMPT_TEMPLATES", "controller_address",
        "openai_api_address", "api_address",
    } <= found.keys()  # fmt: skip
    assert "{{ context }}" in found["PROMPT_TEMPLATES"]["knowledge_base_chat"]["default"]
    assert found["TEXT_SPLITTER_NAME"] in found["text_splitter_dict"]
    engines = api.post("/server/list_search_engines")
    assert {"bing", "duckduckgo", "metaphor", "searxng"} <= set(engines["data"])


def test_prompts_are_shown_as_they_are_written(api: Api) -> None:
    response = api.http.post("/server/get_prompt_template", json={"type": "knowledge_base_chat", "name": "default"})
    assert "{{ question }}" in response.json()
    assert api.http.post("/server/get_prompt_template", json={}).json() == "{{ input }}"
    assert api.http.post("/server/get_prompt_template", json={"type": "x"}).status_code == 422
    assert api.post("/server/get_prompt_template", type="llm_chat", name="ghost")["code"] == 422
    assert api.post("/server/get_prompt_template", type="llm_chat", name="../llm_chat/default")["code"] == 422


def test_a_completion_is_raw_text(llm_api: Api, llm: FakeLLM) -> None:
    llm.default = Reply(["once ", "upon\na time"])
    response = llm_api.http.post("/other/completion", json={"query": "Tell: ", "stream": True, "echo": True})
    assert response.text == "data: Tell: \r\n\r\ndata: once \r\n\r\ndata: upon\r\ndata: a time\r\n\r\n"
    whole = llm_api.http.post("/other/completion", json={"query": "Tell: "})
    assert whole.text == "data: once upon\r\ndata: a time\r\n\r\n"


def test_texts_are_embedded(api: Api) -> None:
    found = api.post("/other/embed_texts", texts=["tide", "表"], embed_model=None)
    assert found["code"] == 200
    assert [len(vector) for vector in found["data"]] == [16, 16]
    assert sum(value**2 for value in found["data"][0]) == pytest.approx(1.0, abs=1e-4)
    as_query = api.post("/other/embed_texts", texts=["tide"], to_query=True)["data"]
    assert len(as_query[0]) == 16
    assert api.post("/other/embed_texts", texts=["a"], embed_model="ghost")["code"] == 500
    assert api.post("/other/embed_texts", texts=[])["code"] == 500
