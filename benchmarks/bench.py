"""What all groups of rows share: sizes, the data folder, knowledge bases that are built once, percentiles."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.corpus import Corpus
from benchmarks.process import Server
from server.models.e5_build import build

KB = "bench"
_CHARACTERS = 303
"""New text in a chunk of 400 characters, by measurement; the rest is overlap and what was left to a sentence's end."""
_FILE_CHUNKS = 200
_FILES_AT_ONCE = 25


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    aim: str
    measured: str
    numbers: str


@dataclass(frozen=True)
class Bench:
    """Where data lie and how large everything is."""

    data: Path
    quick: bool
    say: Callable[[str], None]
    corpus: Corpus = field(default_factory=Corpus)

    def size(self, full: int, quick: int) -> int:
        """A size for a full or for a quick run."""
        return quick if self.quick else full

    @property
    def small(self) -> int:
        """Chunks of the smaller knowledge base."""
        return self.size(10_000, 400)

    @property
    def large(self) -> int:
        """Chunks of the larger knowledge base."""
        return self.size(100_000, 1200)

    def fresh(self, name: str) -> Path:
        """A folder that nobody used yet."""
        number = sum(1 for path in self.data.iterdir() if path.name.startswith(f"{name}-"))
        folder = self.data / f"{name}-{number}-{time.time_ns()}"
        folder.mkdir()
        return folder

    @property
    def models(self) -> Path:
        """The embedded model's files, built once for all servers: how long that takes is not the question here."""
        return build(self.data / "models")

    def with_model(self, folder: Path) -> Path:
        """A server's folder, with the embedded model's files put where the server would build them."""
        shutil.copytree(self.models, folder / "data" / "models" / self.models.name, dirs_exist_ok=True)
        return folder

    def built(self, chunks: int) -> Path:
        """The folder of a server whose knowledge base `KB` has so many chunks; built when it is not there."""
        folder = self.data / f"chunks-{chunks}"
        mark = folder / "built.json"
        if not mark.exists():
            mark.write_text(json.dumps(self._build(folder, chunks)))
        return folder

    def facts(self, chunks: int) -> dict[str, float]:
        """What building cost: chunks, bytes of text, wall and CPU seconds of the server."""
        found: dict[str, float] = json.loads((self.built(chunks) / "built.json").read_text())
        return found

    def _build(self, folder: Path, chunks: int) -> dict[str, float]:
        self.say(f"building a knowledge base of {chunks} chunks")
        numbers = range(-(-chunks // _FILE_CHUNKS))
        size = 0
        with Server(folder) as server:
            server.start()
            client = server.client()
            client.create(KB)
            before = server.usage()
            for at in range(0, len(numbers), _FILES_AT_ONCE):
                texts = {f"{number:04}.txt": self._file(number) for number in numbers[at : at + _FILES_AT_ONCE]}
                size += sum(len(text.encode()) for text in texts.values())
                client.upload(KB, texts)
                self.say(f"  {at + len(texts)} of {len(numbers)} files")
            client.search(KB, "the first search brings the indexes up to date")
            used = server.usage() - before
            found = client.chunks(KB)
        return {"chunks": found, "bytes": size, "wall": used.wall, "cpu": used.cpu, "written": used.written}

    def _file(self, number: int) -> str:
        length = _FILE_CHUNKS * _CHARACTERS
        return self.corpus.text("zh", 3 * length, number) if number % 2 else self.corpus.text("en", length, number)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that a share (0 to 1) of all values does not exceed."""
    return float(np.quantile(np.asarray(values), share))


def spread(values: Sequence[float], unit: float = 1e3) -> str:
    """Median and 95th percentile, by default of seconds shown in milliseconds."""
    return f"{percentile(values, 0.5) * unit:.1f} / {percentile(values, 0.95) * unit:.1f}"


def longest_pause(seconds: float = 2.0) -> float:
    """The longest time that the machine took a busy thread off its core: no measured time is surer than that."""
    ends = last = time.perf_counter()
    ends += seconds
    longest = 0.0
    while last < ends:
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest
