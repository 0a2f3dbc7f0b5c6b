"""The command line, run as users run it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from server.knowledge_base.backends.faiss_index import FaissIndex
from server.knowledge_base.operations import service_of
from server.runtime import Runtime
from tests.conftest import ServerProcess, fake_settings
from tests.processes import Done

Run = Callable[..., Done]


@pytest.fixture
def zhiku(process: ServerProcess) -> Run:
    """Runs `zhiku …` on the data root of a process that may run or not."""
    return process.zhiku


def test_the_long_way(process: ServerProcess) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "server.cli", *words]
        return subprocess.run(
            command, env=process.environment, capture_output=True, text=True, timeout=300, check=False
        )

    assert run("kb", "create", "手册").stdout == "已新增知识库 / created: 手册\n"
    failed = run("kb", "search", "nowhere", "x")
    assert (failed.returncode, failed.stdout, "nowhere" in failed.stderr) == (1, "", True)
    assert "Traceback" not in failed.stderr


def test_a_knowledge_base_from_a_folder(zhiku: Run, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    (folder / "sub" / ".git").mkdir(parents=True)
    (folder / "a.md").write_text("# Pumps\n\nThe spare winch is in boathouse 27C.")
    (folder / "sub" / "潮汐.txt").write_text("海港的潮汐表每日更新。")
    for junk in (".DS_Store", "~$a.docx", ".secret.md", "Thumbs.db", "sub/.git/config"):
        (folder / junk).write_bytes(b"junk")
    (folder / "empty.txt").write_bytes(b"")
    added = zhiku("kb", "add", "手册", str(folder))
    assert added.returncode == 1
    assert "empty.txt" in added.stderr
    assert "2/2" in added.stderr or "3/3" in added.stderr
    listed = zhiku("kb", "list")
    assert "手册" in listed.stdout
    assert "faiss" in listed.stdout
    found = zhiku("kb", "search", "手册", "潮汐表", "--search-type", "keyword")
    assert "sub/潮汐.txt" in found.stdout
    assert "海港的潮汐表每日更新。" in found.stdout
    again = zhiku("kb", "add", "手册", str(folder / "a.md"))
    assert again.returncode == 0
    assert "unchanged: 1" in again.stdout
    (folder / "a.md").write_text("# Pumps\n\nThe spare winch has moved.")
    changed = zhiku("kb", "add", "手册", str(folder / "a.md"))
    assert changed.returncode == 1
    assert "已存在" in changed.stderr
    assert "--override" in changed.stderr
    assert zhiku("kb", "add", "手册", "--override", str(folder / "a.md")).returncode == 0
    assert zhiku("kb", "remove", "手册", "a.md").returncode == 0
    assert "没有找到" in zhiku("kb", "search", "手册", "winch", "--search-type", "keyword").stdout
    assert zhiku("kb", "delete", "手册", "--yes").returncode == 0
    assert zhiku("kb", "search", "手册", "x").returncode == 1


def test_a_graph_on_the_command_line(zhiku: Run, tmp_path: Path) -> None:
    (tmp_path / "ada.txt").write_text("Ada Lovelace wrote the first program for Charles Babbage.")
    (tmp_path / "三国.txt").write_text("刘备与关羽、张飞在桃园结义。")
    assert zhiku("kb", "create", "g", "--vs-type", "graph").returncode == 0
    assert zhiku("kb", "add", "g", str(tmp_path / "ada.txt"), str(tmp_path / "三国.txt")).returncode == 0
    built = zhiku("graph", "build", "g")
    assert built.returncode == 0, built.stderr
    assert re.search(r"entities\W+[4-9]", built.stdout)
    asked = zhiku("graph", "query", "g", "Who wrote for Charles Babbage?", "--mode", "local")
    assert "Ada Lovelace" in asked.stdout
    assert "[1] ada.txt" in asked.stdout
    target = tmp_path / "g.graphml"
    assert zhiku("graph", "export", "g", str(target)).returncode == 0
    names = {data.text for data in ElementTree.parse(target).iter("{http://graphml.graphdrawing.org/xmlns}data")}
    assert {"Ada Lovelace", "刘备", "关羽"} <= names


def test_doctor_finds_and_repairs(zhiku: Run, process: ServerProcess) -> None:
    zhiku("kb", "create", "kb")
    source = process.folder / "a.txt"
    source.write_text("first line\n\nsecond line")
    zhiku("kb", "add", "kb", str(source))
    assert zhiku("doctor").returncode == 0
    runtime = Runtime.build(fake_settings(process.folder / "data"))
    service_of("kb").save_vector_store()
    runtime.service.context.close()
    path = next((process.folder / "data" / "index").rglob("vectors.faiss"))
    index = FaissIndex.open(path)
    index.remove([(1, 1)])
    index.saved_version = -1
    index.save()
    looked = zhiku("doctor", "--no-repair")
    assert looked.returncode == 1
    assert "1 missing" in looked.stdout
    assert "rebuilt" in zhiku("doctor").stdout
    assert "missing" not in zhiku("doctor", "--no-repair").stdout


def test_the_command_line_works_beside_the_service(zhiku: Run, process: ServerProcess) -> None:
    api = process.start().api()
    api.create("kb")
    api.upload("kb", {"one.txt": "text number one"})
    assert len(api.texts("kb", "text")) == 1
    source = process.folder / "two.txt"
    source.write_text("text number two")
    assert zhiku("kb", "add", "kb", str(source)).returncode == 0
    assert sorted(api.texts("kb", "text")) == ["text number one", "text number two"]
    assert sorted(api.texts("kb", "text", search_type="keyword")) == ["text number one", "text number two"]
    assert zhiku("kb", "delete", "kb", "--yes").returncode == 0
    assert api.search("kb", "text") == []


def test_impossible_settings_are_one_line(zhiku: Run, process: ServerProcess) -> None:
    (process.config_dir / "all.yaml").write_text("chunk_sise: 3\n")
    failed = zhiku("kb", "list")
    assert failed.returncode == 2
    assert "chunk_sise" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_folder_is_kept_in_step(zhiku: Run, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (folder / name).write_text(f"text of {name}")
    assert "read: 3" in zhiku("kb", "sync", "kb", str(folder)).stdout
    (folder / "a.txt").write_text("changed text")
    (folder / "b.txt").unlink()
    planned = zhiku("kb", "sync", "kb", str(folder), "--dry-run", "--delete")
    assert "read: 1，未变 / unchanged: 1，删除 / deleted: 1" in planned.stdout
    kept = zhiku("kb", "sync", "kb", str(folder))
    assert "read: 1，未变 / unchanged: 1，多余 / extra: 1 (--delete)" in kept.stdout
    assert "b.txt" in zhiku("kb", "search", "kb", "text", "--search-type", "keyword").stdout
    assert "unchanged: 2，删除 / deleted: 1" in zhiku("kb", "sync", "kb", str(folder), "--delete").stdout
    found = zhiku("kb", "search", "kb", "text", "--search-type", "keyword").stdout
    assert "changed text" in found
    assert "b.txt" not in found
