"""The embedded default model: multilingual-e5-small in int8, without a network and without a key."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.errors import EmbeddingError
from server.models import e5_build
from server.models.rulers import Tokens

Floats = NDArray[np.float32]

_WINDOW = 510
"""Tokens of a text that one run sees; with the two that mark its ends they fill the 512 places."""
_PREFIX = 10
"""Tokens of what stands before a passage, and some to spare: the tokenizer may see a word at the end of a chunk in
other parts than in the middle of a text."""
_START, _END = 0, 2
"""Token numbers that mark the ends of a sequence."""


class E5Model:
    """Embeds one text at a time; any number of threads may share one instance.

    The files are built on first use below `directory` (a few seconds, once) and loaded on first use.
    Vectors are raw: unit length, and crowded by language as e5 makes them (see EmbeddingTransform).
    """

    name = "multilingual-e5-small"
    dimension = 384

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = Lock()
        self._engine: _Engine | None = None

    def embed_passage(self, text: str) -> Floats:
        """The vector (384,) of a text to be found. Raises EmbeddingError when the model fails."""
        return self._loaded().embed(f"passage: {text}")

    def embed_query(self, text: str) -> Floats:
        """The vector (384,) of a question. Raises EmbeddingError when the model fails."""
        return self._loaded().embed(f"query: {text}")

    def count_tokens(self, text: str) -> int:
        """How many of the model's tokens `text` takes, without a prefix and the two end marks."""
        return len(self._loaded().tokens(text))

    @property
    def ruler(self) -> Tokens:
        """Counts the model's tokens."""
        return Tokens(self._token_ends, _WINDOW - _PREFIX)

    def _token_ends(self, text: str) -> list[int]:
        found = self._loaded().tokenizer.encode(text, return_type="proto")
        return [piece.end for piece in found.pieces]

    def _loaded(self) -> _Engine:
        with self._lock:
            if self._engine is None:
                self._engine = _Engine.load(e5_build.build(self._directory))
            return self._engine


@dataclass(frozen=True, slots=True)
class _Engine:
    """The loaded files. `words` is mapped from disk: (vocabulary, blocks, 18) Q4_0."""

    session: Any
    tokenizer: Any
    words: NDArray[np.uint8]
    positions: Floats
    characters: dict[int, str]

    @classmethod
    def load(cls, folder: Path) -> _Engine:
        """Open what `e5_build.build` made; well under a second."""
        from sentencepiece import SentencePieceProcessor

        replaced = json.loads((folder / e5_build.CHARACTERS).read_text(encoding="ascii"))
        return cls(
            session=_open_session(folder / e5_build.ENCODER),
            tokenizer=SentencePieceProcessor(model_file=str(folder / e5_build.TOKENIZER)),
            words=np.load(folder / e5_build.WORDS, mmap_mode="r"),
            positions=np.load(folder / e5_build.POSITIONS),
            characters={ord(character): text for character, text in replaced.items()},
        )

    def tokens(self, text: str) -> list[int]:
        """Token numbers of a text, without end marks."""
        tokens: list[int] = self.tokenizer.encode(clean(text, self.characters))
        return tokens

    def embed(self, text: str) -> Floats:
        """Unit vector of a prefixed text; a long one is the mean of its windows, weighted by tokens."""
        total = np.zeros(self.positions.shape[1], np.float64)
        for window in _windows(self.tokens(text)):
            total += self._mean_state(window) * len(window)
        length = float(np.linalg.norm(total))
        if not (np.isfinite(length) and length > 0):
            raise EmbeddingError("向量模型给出了无效的向量 / the embedding model gave a vector without a direction")
        return (total / length).astype(np.float32)

    def _mean_state(self, tokens: list[int]) -> Floats:
        numbers = np.array([_START, *tokens, _END])
        unique, places = np.unique(numbers, return_inverse=True)
        rows = e5_build.dequantise(self.words[unique])[places] + self.positions[: len(numbers)]
        feed = {"embeddings": rows[None], "lengths": np.array([len(numbers)], np.int32)}
        states = self.session.run(None, feed)[0]
        return np.asarray(states[0].mean(axis=0), np.float32)


def clean(text: str, characters: dict[int, str]) -> str:
    """The text as the tokenizer may see it: NFKC, no NUL or lone surrogate, one space between words.

    `characters` maps code points to what replaces them: control and zero-width characters.
    """
    whole = text.replace("\x00", "").encode("utf-8", "ignore").decode("utf-8")
    return " ".join(unicodedata.normalize("NFKC", whole).translate(characters).split())


def _windows(tokens: list[int]) -> Iterator[list[int]]:
    for start in range(0, max(len(tokens), 1), _WINDOW):
        yield tokens[start : start + _WINDOW]


def _open_session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # One thread per run: callers run several texts at once, and spinning workers would steal their cores.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # The arena keeps the largest run's memory for good; without it a run is not measurably slower.
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
