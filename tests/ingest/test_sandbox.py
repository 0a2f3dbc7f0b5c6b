"""Worker processes: a file that kills, blocks or fills its parser takes nothing else with it."""

from __future__ import annotations

import gc
import os
import signal
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from server.domain import Block
from server.errors import DamagedFile, EmptyDocument, LoadError, NotFound, UnsupportedFormat
from server.ingest import sandbox as sandboxes
from server.ingest.loaders.factory import load_document
from server.ingest.sandbox import Limits, Sandbox
from tests.ingest.makers import make_zip
from tests.ingest.pdf_maker import make_pdf

LIMITS = Limits(cpu_seconds=20, wall_seconds=40, memory=700 << 20, characters=5_000_000)
_ROWS = 15_000


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(workers=1, limits=LIMITS) as opened:
        yield opened


def write(folder: Path, name: str, data: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def pid_of(sandbox: Sandbox, path: Path) -> int:
    """The process that reads now."""
    sandbox.load(path, "a.html")
    (worker,) = sandbox._started
    return worker._process.pid


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return write(tmp_path, "page", "<h1>潮</h1><p>Body</p>")


def test_a_worker_gives_what_the_loader_gives(sandbox: Sandbox, tmp_path: Path) -> None:
    rows = "\n".join(f"{n},船 {n},𠮷" for n in range(_ROWS))
    lines = '{"a": "一"}\n{"a": \n{"a": "三"}\n'
    for name, data in (("a.csv", f"n,name,x\n{rows}"), ("b.jsonl", lines), ("c.html", "<h1>T</h1><pre>a\n b</pre>")):
        path = write(tmp_path, name, data)
        assert sandbox.load(path, name) == load_document(path.read_bytes(), name)


def test_errors_come_back_as_what_they_are(sandbox: Sandbox, tmp_path: Path) -> None:
    for name, data in (("a.pdf", b"no"), ("a.html", b"<p> </p>"), ("a.html", b"\x7fELF"), ("a.zip", b"PK\3\4")):
        path = write(tmp_path, "file", data)
        with pytest.raises(LoadError) as here:
            load_document(data, name)
        with pytest.raises(LoadError) as there:
            sandbox.load(path, name)
        assert (type(there.value), there.value.message) == (type(here.value), here.value.message)
    assert {DamagedFile, EmptyDocument, UnsupportedFormat} < {LoadError, *LoadError.__subclasses__()}
    with pytest.raises(NotFound):
        sandbox.load(tmp_path / "gone", "a.html")


def test_small_plain_text_is_read_without_a_worker(tmp_path: Path) -> None:
    with Sandbox() as idle:
        assert idle.load(write(tmp_path, "x", "# T\n\nplain"), "a.md").loader == "markdown"
        assert not idle._started


def test_one_worker_serves_many_files_and_ends_with_the_sandbox(page: Path) -> None:
    with Sandbox(workers=1, limits=LIMITS) as opened:
        pids = {pid_of(opened, page) for _ in range(5)}
        assert len(pids) == 1
        assert os.getpriority(os.PRIO_PROCESS, next(iter(pids))) > os.nice(0)
    assert not Path(f"/proc/{pids.pop()}").exists()


def test_a_forgotten_sandbox_leaves_no_process(page: Path) -> None:
    opened = Sandbox(workers=1, limits=LIMITS)
    pid = pid_of(opened, page)
    del opened
    gc.collect()
    assert not Path(f"/proc/{pid}").exists()


def test_several_workers_read_at_the_same_time(page: Path) -> None:
    with Sandbox(workers=2, limits=LIMITS) as opened, ThreadPoolExecutor(8) as threads:
        documents = list(threads.map(lambda n: opened.load(page, f"{n}.html"), range(40)))
        assert 1 <= len(opened._started) <= 2
    assert {document.blocks[-1].text for document in documents} == {"Body"}


def test_a_worker_that_ended_while_idle_is_replaced(sandbox: Sandbox, page: Path) -> None:
    first = pid_of(sandbox, page)
    (worker,) = sandbox._started
    os.kill(first, signal.SIGKILL)
    worker._process.wait()
    assert pid_of(sandbox, page) != first


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Path]:
    """A file whose reader waits: it is not told that there will be nothing."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    keep = os.open(path, os.O_RDWR)
    yield path
    os.close(keep)


def test_a_parser_that_crashes_fails_its_own_file(endless: Path) -> None:
    worker = sandboxes._Worker(LIMITS)
    threading.Timer(0.3, os.kill, (worker._process.pid, signal.SIGSEGV)).start()
    with pytest.raises(DamagedFile, match=r"崩溃（-11）.*crashed"):
        list(worker.read(endless, "a.html", sandboxes.Reading(iter(()))))
    assert not worker.alive


def test_a_parser_without_end_is_stopped_by_its_cpu_time(tmp_path: Path, page: Path) -> None:
    with Sandbox(workers=1, limits=replace(LIMITS, cpu_seconds=1)) as opened:
        slow = write(tmp_path, "slow", "<p>" + "<b><i>x" * 8_000)
        with pytest.raises(DamagedFile, match=r"CPU 时间.*CPU time"):
            opened.load(slow, "a.html")
        assert opened.load(page, "a.html").blocks


def test_a_parser_that_waits_is_stopped_by_the_clock(endless: Path) -> None:
    worker = sandboxes._Worker(replace(LIMITS, wall_seconds=0.5))
    with pytest.raises(DamagedFile, match=r"超过 0.5 秒.*took more than 0.5 s"):
        list(worker.read(endless, "a.html", sandboxes.Reading(iter(()))))
    assert not worker.alive


# Both are many times as large as objects.
NESTED = "[" + "[[1],[2]]," * 500_000 + "1]"
DRAWN = make_pdf([["x"], zlib.compress(b"0 0 m 9 9 l S " * 600_000, 9)])


@pytest.mark.parametrize(
    ("name", "content", "watched"),
    [("a.json", NESTED, True), ("a.json", NESTED, False), ("a.pdf", DRAWN, True)],
    ids=["from outside", "by the system", "endless stream"],
)
def test_a_parser_that_eats_memory_is_stopped(
    tmp_path: Path, page: Path, name: str, content: bytes | str, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hungry = write(tmp_path, "hungry", content)
    if not watched:  # a system without /proc has the limit of the address space only
        monkeypatch.setattr(sandboxes._Worker, "_resident", lambda worker: -(1 << 40))
    memory = (110 if watched else -860) << 20  # the address space may be 1 GB more
    with Sandbox(workers=1, limits=replace(LIMITS, memory=memory)) as opened:
        with pytest.raises(DamagedFile, match=r"内存.*of memory"):
            opened.load(hungry, name)
        assert opened.load(page, "a.html").blocks


def test_too_much_text_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    much = write(tmp_path, "much", make_zip({f"{n}.txt": os.urandom(2_000_000).hex() for n in range(2)}))
    with pytest.raises(DamagedFile, match=r"超过 5000000 个字符"):
        sandbox.load(much, "a.zip")


def test_json_without_end_is_read_or_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    deep = write(tmp_path, "deep", "[" * 500_000 + "]" * 500_000)
    assert "嵌套过深" in sandbox.load(deep, "a.json").warnings[0]


def test_a_large_text_comes_a_block_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "港务长在黄昏之前关闭北侧的闸门。"
    path = tmp_path / "large.txt"
    path.write_text(f"{line}\n\n" * 400_000, encoding="utf-8")
    assert path.stat().st_size > 16 << 20
    with (
        Sandbox(workers=1, limits=replace(LIMITS, characters=50_000_000, cpu_seconds=120, wall_seconds=300)) as opened,
        opened.open(path, "large.txt") as reading,
    ):
        blocks = (block for block in reading.blocks if isinstance(block, Block))
        first = next(blocks)
        assert (first.text, reading.loader) == (line, "")
        assert sum(block.text == line for block in blocks) == 399_999
        assert reading.loader == "text"


def test_a_file_that_nobody_wants_to_the_end_frees_its_worker(tmp_path: Path, page: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_text("潮位记录。\n\n" * 1_500_000, encoding="utf-8")
    with Sandbox(workers=1, limits=replace(LIMITS, characters=50_000_000, cpu_seconds=120, wall_seconds=300)) as opened:
        with opened.open(path, "large.txt") as reading:
            next(reading.blocks)
        assert opened.load(page, "a.html").blocks
