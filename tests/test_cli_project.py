"""Projects on the command line: a folder, its settings, its files and questions about them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from server.cli import app
from server.errors import InvalidRequest, ZhikuError
from server.models.fake_llm import FakeLLM, Reply
from tests.conftest import URLS

ADA = "Ada Lovelace wrote the first program for Charles Babbage. She lived in Zanzibar for a year."
SANGUO = "刘备与关羽、张飞在桃园结义。诸葛亮辅佐刘备，在赤壁击败曹操。"
FAKE = """
embedding_models: [{name: fake, provider: fake, options: {dimension: 16}}]
default_embed_model: fake
search_type: keyword
"""


def zhiku(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, (done.output, done.exception)
    return done


def refused(*words: str) -> str:
    """What an error says that the command ends with."""
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, ZhikuError), (done.output, done.exception)
    return done.exception.message


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with two files; nothing is indexed."""
    folder = tmp_path / "笔记"
    zhiku("init", "--root", str(folder))
    _use_fakes(folder)
    (folder / "input" / "ada.txt").write_text(ADA)
    (folder / "input" / "三国.txt").write_text(SANGUO)
    return folder


def _use_fakes(folder: Path, **settings: Any) -> None:
    path = folder / "settings.yaml"
    path.write_text(path.read_text("utf-8") + FAKE, encoding="utf-8")
    if settings:
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text("utf-8")), **settings}), encoding="utf-8")


def _with_model(folder: Path, llm: FakeLLM) -> None:
    path = folder / "settings.yaml"
    model = json.dumps([{"name": "fake-llm", "base_url": URLS[id(llm)], "price_in": 1, "price_out": 2}])
    path.write_text(path.read_text("utf-8").replace("llm_models: []", f"llm_models: {model}"), encoding="utf-8")


def _row(output: str, label: str) -> str:
    """A value in a table."""
    line = next(line for line in output.splitlines() if label in line and "│" in line)
    return line.split("│")[2].strip()


def test_init_writes_a_project_that_works_and_overwrites_nothing_unasked(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    said = zhiku("init", "--root", str(folder)).output
    assert "zhiku index" in said
    assert stat.S_IMODE((folder / ".env").stat().st_mode) == 0o600
    assert (folder / "input").is_dir()
    assert {path.name for path in (folder / "prompts").iterdir()} >= {"graph_extraction", "graph_gleaning"}
    settings = yaml.safe_load((folder / "settings.yaml").read_text("utf-8"))
    assert (settings["llm_models"], settings["graph_extractor"]) == ([], "nlp")
    (folder / ".env").write_text("MINE=1")
    assert "--force" in refused("init", "--root", str(folder))
    assert (folder / ".env").read_text() == "MINE=1"
    zhiku("init", "--root", str(folder), "--force", "--model", "qwen: 3", "--base-url", "http://127.0.0.1:1/v1")
    settings = yaml.safe_load((folder / "settings.yaml").read_text("utf-8"))
    assert settings["llm_models"][0] == {
        "name": "qwen: 3", "base_url": "http://127.0.0.1:1/v1", "api_key_env": "ZHIKU_LLM_API_KEY",
    }  # fmt: skip
    assert settings["graph_extractor"] == "qwen: 3"
    assert "MINE" not in (folder / ".env").read_text()


def test_the_whole_way_without_a_model(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = ("--root", str(root))
    assert "zhiku index" in refused("update", *at)
    assert "zhiku index" in refused("query", "Who?", *at)
    before = dict(os.environ)
    indexed = zhiku("index", *at)
    assert os.environ == before
    assert (_row(indexed.output, "files"), _row(indexed.output, "chunks"), _row(indexed.output, "failed")) == (
        "2",
        "2",
        "0",
    )
    assert int(_row(indexed.output, "entities")) >= 6

    english = zhiku("query", "Who wrote the first program for Charles Babbage?", *at).output
    assert "Ada Lovelace wrote the first program" in english
    assert "[1] ada.txt" in english.partition("sources")[2]
    chinese = zhiku("query", "谁辅佐刘备？", "--method", "basic", "--no-streaming", *at).output
    assert "诸葛亮辅佐刘备" in chinese
    assert "[1] 三国.txt" in chinese.partition("sources")[2]
    for method in ("global", "drift", "ppr"):
        assert "Ada Lovelace" in zhiku("query", "What did Ada Lovelace write?", "--method", method, *at).output
    assert "drift" in refused("query", "Who?", "--method", "magic", *at)

    (root / "input" / "ada.txt").write_text(ADA.replace("Zanzibar", "Marylebone"))
    (root / "input" / "三国.txt").unlink()
    updated = zhiku("update", *at)
    assert (_row(updated.output, "files"), _row(updated.output, "chunks")) == ("1", "1")
    assert "Marylebone" in zhiku("query", "Where did Ada Lovelace live?", *at).output
    assert "诸葛亮" not in zhiku("query", "诸葛亮辅佐谁？", *at).output
    held = [path for path in (root / "output").rglob("*") if path.is_file() and b"Zanzibar" in path.read_bytes()]
    assert held == []

    monkeypatch.setenv("ZHIKU_CONFIG_DIR", str(root))
    data = ("--data-dir", str(root / "output"))
    assert "Marylebone" in zhiku("query", "Where did Ada Lovelace live?", "--kb", "笔记", *data).output
    assert "--kb" in refused("query", "Who?", *data)


def test_a_file_that_cannot_be_read_fails_the_run_and_stops_no_other(root: Path) -> None:
    at = ("--root", str(root))
    (root / "input" / "empty.txt").write_bytes(b"")
    planned = zhiku("index", "--dry-run", *at)
    assert "empty.txt" in planned.output
    assert not (root / "output").exists()
    assert "empty.txt" in zhiku("index", *at, code=1).output
    assert "Ada Lovelace wrote" in zhiku("query", "What did Ada Lovelace write?", *at).output
    (root / "input" / "empty.txt").write_text("Grace Hopper was here.")
    zhiku("index", *at)


REPORT = {
    "title": "Programs", "summary": "Who wrote them.", "rating": 5, "rating_explanation": "-",
    "findings": [{"summary": "Ada", "explanation": "Ada Lovelace wrote the first program.", "sources": [1]}],
}  # fmt: skip


def _reads(body: dict[str, Any]) -> Reply:
    """A model that finds a few names in a text, and writes the same report of everything."""
    text = body["messages"][-1]["content"]
    if "<text>" not in text:
        return Reply([json.dumps(REPORT)])
    known = {"Ada Lovelace": "person", "刘备": "人物", "诸葛亮": "人物", "Charles Babbage": "person"}
    names = [
        {"name": name, "type": kind, "description": "", "aliases": []} for name, kind in known.items() if name in text
    ]
    return Reply([json.dumps({"entities": names, "relations": []}, ensure_ascii=False)])


def _texts_read(llm: FakeLLM) -> int:
    return sum("<text>" in prompts[-1]["content"] for prompts in llm.prompts)


def test_the_standard_method_asks_the_model_and_goes_on_where_it_was(root: Path, llm: FakeLLM) -> None:
    at = ("--root", str(root))
    said = refused("index", "--method", "standard", *at)
    assert "llm_models" in said
    assert "settings.yaml" in said
    assert "zhiku index" in refused("query", "Who?", *at)

    _with_model(root, llm)
    before = sorted(root.rglob("*"))
    planned = zhiku("index", "--method", "standard", "--dry-run", *at).output
    assert sorted(root.rglob("*")) == before
    assert (_row(planned, "files to read"), _row(planned, "chunks for"), _row(planned, "calls")) == ("2", "2", "2")
    assert int(_row(planned, "tokens in")) > 100
    assert float(_row(planned, "cost")) > 0
    assert llm.bodies == []

    llm.answer = _reads
    indexed = zhiku("index", "--method", "standard", *at).output
    assert (_texts_read(llm), _row(indexed, "entities")) == (2, "4")
    asked = len(llm.bodies)
    assert _row(indexed, "calls") == str(asked)
    assert asked > 2  # reports too
    again = zhiku("index", "--method", "standard", "--dry-run", *at).output
    assert (_row(again, "files to read"), _row(again, "chunks for"), _row(again, "unchanged")) == ("0", "0", "2")
    zhiku("index", "--method", "standard", *at)
    assert len(llm.bodies) == asked
    (root / "input" / "三国.txt").unlink()
    assert _row(zhiku("update", "--method", "standard", "--root", str(root)).output, "files") == "1"
    assert _texts_read(llm) == 2

    llm.answer = None
    llm.default = Reply(["Ada wrote it [1]."])
    answered = zhiku("query", "What did Ada Lovelace write?", "--response-type", "one sentence", *at).output
    assert "Ada wrote it [1]." in answered
    assert any("one sentence" in turn["content"] for turn in llm.prompts[-1])

    asked = len(llm.bodies)
    drift = zhiku("query", "What did Ada Lovelace write?", "--method", "drift", *at).output
    assert "Ada wrote it [1]." in drift
    assert len(llm.bodies) > asked + 1  # the model is asked on the way, too

    asked = len(llm.bodies)
    other = zhiku("index", "--method", "fast", *at).output  # reads again what the model has read
    assert _row(other, "calls") == "0"
    assert len(llm.bodies) == asked


def test_a_model_that_is_down_fails_the_run(root: Path, llm: FakeLLM) -> None:
    _with_model(root, llm)
    llm.default = Reply(status=400)
    done = zhiku("index", "--method", "standard", "--root", str(root), code=1)
    assert "fake-llm" in done.output
    llm.default, llm.answer = None, _reads
    assert _row(zhiku("index", "--method", "standard", "--root", str(root)).output, "failed") == "0"


def test_prompts_are_fitted_to_the_files(root: Path, llm: FakeLLM) -> None:
    at = ("--root", str(root))
    assert "llm_models" in _after_index(root, "prompt-tune", *at)
    _with_model(root, llm)
    reply = {"domain": "computing {{ 7 * 7 }}", "persona": "You are a historian.", "entity_types": ["Engine", "person"]}
    llm.default = Reply(["Here you are:\n```json\n" + json.dumps(reply) + "\n```"])
    prompt = root / "prompts" / "graph_extraction" / "default.en.txt"
    prompt.write_text(prompt.read_text("utf-8") + "\nMy own line.\n", encoding="utf-8")
    for method in ("random", "top", "all", "auto"):
        said = zhiku("prompt-tune", "--selection-method", method, "--limit", "1", "--language", "en", *at).output
        assert "historian" in said
    shown = ["Ada Lovelace" in prompts[-1]["content"] for prompts in llm.prompts]
    both = ["Ada Lovelace" in prompts[-1]["content"] and "刘备" in prompts[-1]["content"] for prompts in llm.prompts]
    assert both == [False, False, True, False]
    assert shown[1]
    text = prompt.read_text("utf-8")
    assert text.count("You are a historian.") == 1
    assert "My own line." in text
    settings_text = (root / "settings.yaml").read_text("utf-8")
    assert yaml.safe_load(settings_text)["graph_entity_types"] == ["engine", "person"]
    assert "# 分段与检索" in settings_text

    llm.default, llm.answer = None, _reads
    zhiku("index", "--method", "standard", *at)
    told = next(
        prompts[0]["content"] for prompts in llm.prompts if "Ada" in prompts[-1]["content"] and len(prompts) == 2
    )
    assert told.startswith("You are a historian. The texts are about: computing { { 7 * 7 }}.\nYou extract")
    assert "My own line." in told
    assert "engine, person" in told

    elsewhere = root / "elsewhere"
    llm.answer, llm.default = None, Reply([json.dumps({**reply, "entity_types": ["nothing"]})])
    zhiku("prompt-tune", "--output", str(elsewhere), "--domain", "logic", "--language", "zh", *at)
    assert "logic" in (elsewhere / "graph_extraction" / "default.zh.txt").read_text("utf-8")
    assert "nothing" not in (root / "settings.yaml").read_text("utf-8")


def _after_index(root: Path, *words: str) -> str:
    zhiku("index", "--root", str(root))
    return refused(*words)


@pytest.mark.parametrize("written", ["graph_entity_types:\n  - a\n  - b\n", "graph_entity_types:\n- a\n", ""])
def test_entity_types_are_written_however_they_stand(root: Path, written: str) -> None:
    from server.project import Project

    path = root / "settings.yaml"
    path.write_text(f"# mine\n{written}top_k: 4 # kept\n", encoding="utf-8")
    Project.at(root).set_entity_types(["人物", "船: 只"])
    assert yaml.safe_load(path.read_text("utf-8")) == {"graph_entity_types": ["人物", "船: 只"], "top_k": 4}
    assert "# mine" in path.read_text("utf-8")
    assert "# kept" in path.read_text("utf-8")


def test_what_is_no_project_says_so(tmp_path: Path) -> None:
    assert "zhiku init" in refused("index", "--root", str(tmp_path))
    with pytest.raises(InvalidRequest):
        app(["index", "--root", str(tmp_path)], standalone_mode=False)
