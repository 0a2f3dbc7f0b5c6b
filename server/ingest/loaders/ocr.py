"""Text in pictures; the models come with the package, nothing is fetched."""

from __future__ import annotations

import importlib.util
import logging
import resource
import threading
from functools import cache
from typing import Any

from server.ingest.loaders.encoding import clean

_LOCK = threading.Lock()
_LEAST_SCORE = 0.5
_PICTURE_SECONDS = 100
"""CPU time of one picture: dense pages take a minute on a slow machine."""


def ocr_installed() -> bool:
    """Whether the extra `ocr` is there."""
    return importlib.util.find_spec("rapidocr") is not None


def read_picture(picture: Any) -> str:
    """The lines of text in an RGB array, from the top down; "" when there are none. Needs the extra."""
    _grant(_PICTURE_SECONDS)
    with _LOCK:
        found = _engine()(picture)
    if found.boxes is None:
        return ""
    sure = [
        (box, text)
        for box, text, score in zip(found.boxes, found.txts, found.scores, strict=True)
        if score >= _LEAST_SCORE
    ]
    return clean("\n".join(_lines(sure)))


def _grant(seconds: int) -> None:
    """Move the CPU limit of this process, if it has one, as far as one picture may need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_CPU, (soft + seconds, hard))


@cache
def _engine() -> Any:
    from rapidocr import RapidOCR

    engine = RapidOCR(params={"Global.log_level": "critical"})
    logging.getLogger("RapidOCR").setLevel(logging.CRITICAL)
    return engine


def _lines(found: list[tuple[Any, str]]) -> list[str]:
    """Pieces that stand side by side make one line."""
    lines: list[tuple[float, float, list[tuple[float, str]]]] = []
    for box, text in sorted(found, key=lambda item: float(item[0][:, 1].mean())):
        middle, height = float(box[:, 1].mean()), float(box[:, 1].max() - box[:, 1].min())
        if lines and middle - lines[-1][0] < 0.5 * min(height, lines[-1][1]):
            lines[-1][2].append((float(box[:, 0].min()), text))
        else:
            lines.append((middle, height, [(float(box[:, 0].min()), text)]))
    return [" ".join(text for _, text in sorted(pieces)) for _, _, pieces in lines]
