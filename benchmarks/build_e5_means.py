"""Rebuilds server/models/data/e5_means.npz from the texts beside it.

    python benchmarks/build_e5_means.py [directory for the model's files]

The texts were written for this purpose and belong to no evaluation set.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from server.models.e5 import E5Model
from server.models.transform import EmbeddingTransform, snippet

DATA = Path(__file__).parents[1] / "server" / "models" / "data"
# A score of 1.0, the default threshold, is then a cosine of 0: no more alike than two texts by chance. A
# cosine of .15 dropped up to a quarter of the true passages (a classical novel), of 0 at most 3 %.
SCALE = 0.5

Floats = NDArray[np.float32]


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    texts = json.loads((DATA / "e5_means_texts.json").read_text(encoding="utf-8"))
    target = DATA / "e5_means.npz"
    target.write_bytes(build(E5Model(directory), texts).to_bytes())
    print(f"{target}: {target.stat().st_size} bytes")


def build(model: E5Model, texts: dict[str, dict[str, list[str]]]) -> EmbeddingTransform:
    questions = {code: _mean_question(model, table["queries"]) for code, table in texts.items()}
    return EmbeddingTransform(
        dimension=model.dimension,
        scale=SCALE,
        calibrated=True,
        passage_means={code: _mean_passage(model, table["passages"]) for code, table in texts.items()},
        question_means=questions,
        snippet_means={
            code: _mean_question(model, [snippet(text) for text in table["passages"]]) for code, table in texts.items()
        },
        # Half precision halves the file; only the third digit of a similarity matters.
        small_talk=np.concatenate(
            [_centred(model, table["small_talk"], questions[code]) for code, table in texts.items()]
        ).astype(np.float16),
    )


def _mean_passage(model: E5Model, texts: list[str]) -> Floats:
    return np.asarray(np.mean([model.embed_passage(text) for text in texts], axis=0), np.float32)


def _mean_question(model: E5Model, texts: list[str]) -> Floats:
    return np.asarray(np.mean([model.embed_query(text) for text in texts], axis=0), np.float32)


def _centred(model: E5Model, texts: list[str], mean: Floats) -> Floats:
    vectors = np.stack([model.embed_query(text) for text in texts]) - mean
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


if __name__ == "__main__":
    main()
