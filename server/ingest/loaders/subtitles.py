"""Subtitles (srt, vtt): what is said, with the time when it is."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.base import Loader, finish
from server.ingest.loaders.encoding import decode

_TIMES = re.compile(r"^((?:\d+:)?\d{1,2}:\d{2})[.,]\d{1,3}[ \t]*-->[ \t]*(?:\d+:)?\d{1,2}:\d{2}[.,]\d{1,3}.*$", re.M)
_VOICE = re.compile(r"<v(?:\.[^ >]*)?\s+([^>]*)>")
_TAG = re.compile(r"</?[a-zA-Z\d.:]+[^>]*>|\{\\[^}]*\}")
_TOGETHER = 300
"""Characters up to which lines that follow each other make one block."""


class SubtitleLoader(Loader):
    """Some lines make a block; its metadata `time` is when the first of them is shown."""

    name = "subtitles"
    extensions = frozenset({".srt", ".vtt"})

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        return finish(_blocks(decode(data)), self.name)


def _blocks(text: str) -> Iterator[Block]:
    lines: list[str] = []
    start = ""
    for time, line in _cues(text):
        if lines and sum(map(len, lines)) + len(line) > _TOGETHER:
            yield Block("\n".join(lines), metadata={"time": start})
            lines = []
        if not lines:
            start = time
        if line not in lines[-1:]:  # captions that roll up repeat the line before
            lines.append(line)
    if lines:
        yield Block("\n".join(lines), metadata={"time": start})


def _cues(text: str) -> Iterator[tuple[str, str]]:
    marks = list(_TIMES.finditer(text))
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        body = text[mark.end() : after.start() if after else len(text)].strip("\n")
        # What follows a blank line is the number of the next cue, or a note of the author.
        said = re.split(r"\n[ \t]*\n", body)[0]
        said = _TAG.sub("", _VOICE.sub(r"\1: ", said))
        if line := " ".join(html.unescape(said).split()):
            yield mark[1], line
