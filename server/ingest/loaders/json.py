"""JSON and JSON Lines as text that people can search: `path: value` lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.errors import DamagedFile
from server.ingest.loaders.base import Loader, damaged, extension_of, finish
from server.ingest.loaders.encoding import clean, decode
from server.ingest.loaders.text import paragraphs

_SHOWN_BAD_LINES = 10


class JsonLoader(Loader):
    """A block for each top-level item (or line of JSON Lines); keys on the way to a value are joined by dots.

    Malformed lines of a JSON Lines file are named in the warnings as long as one line is sound.
    """

    name = "json"
    extensions = frozenset({".json", ".jsonl", ".ndjson", ".geojson"})

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        text = decode(data)
        if not text.strip():
            return finish((), self.name)
        if extension_of(file_name) in (".jsonl", ".ndjson"):
            return self._load_lines(text)
        try:
            value = _parse(text)
        except json.JSONDecodeError as error:
            return self._load_broken(text, error)
        except RecursionError:
            warning = "JSON 嵌套过深，按纯文本读取 / JSON is nested too deeply, read as plain text"
            return finish(paragraphs(text), self.name, (warning,))
        return finish(_blocks(value), self.name)

    def _load_broken(self, text: str, error: json.JSONDecodeError) -> LoadedDocument:
        """JSON Lines under the name of JSON, else the text as it stands: it was cut off, or is JSON with comments."""
        if error.msg == "Extra data":
            try:
                return self._load_lines(text)
            except DamagedFile:
                pass
        warning = (
            f"JSON 第 {error.lineno} 行第 {error.colno} 列有语法错误，按纯文本读取 / JSON syntax error in line "
            f"{error.lineno}, column {error.colno} ({error.msg}), read as plain text"
        )
        return finish(paragraphs(text), self.name, (warning,))

    def _load_lines(self, text: str) -> LoadedDocument:
        blocks: list[Block] = []
        bad: list[int] = []
        for number, line in enumerate(text.split("\n"), start=1):
            try:
                if line.strip():
                    blocks.append(_block(_parse(line), line=number))
            except (json.JSONDecodeError, RecursionError):
                bad.append(number)
        if not blocks:
            raise damaged(f"第 {bad[0]} 行不是有效的 JSON", f"line {bad[0]} is not valid JSON")
        return finish(blocks, self.name, _bad_lines(bad))


def _bad_lines(bad: list[int]) -> tuple[str, ...]:
    if not bad:
        return ()
    more = "…" if len(bad) > _SHOWN_BAD_LINES else ""
    shown = ", ".join(map(str, bad[:_SHOWN_BAD_LINES])) + more
    return (f"{len(bad)} 行不是有效的 JSON，已跳过：{shown} / {len(bad)} malformed lines skipped: {shown}",)


def _parse(text: str) -> Any:
    # Numbers stay as they are written: no float rounding, no limit on the digits of an integer.
    return json.loads(text, strict=False, parse_int=str, parse_float=str, parse_constant=str)


def _blocks(value: Any) -> Iterator[Block]:
    if isinstance(value, dict):
        yield from (_block({key: item}) for key, item in value.items())
    elif isinstance(value, list):
        yield from (_block(item) for item in value)
    else:
        yield _block(value)


def _block(value: Any, line: int | None = None) -> Block:
    lines = (f"{path}: {text}" if path else text for path, text in _leaves(value))
    metadata = {} if line is None else {"line": line}
    return Block(clean("\n".join(lines)).strip(), whole=True, metadata=metadata)


def _leaves(value: Any) -> Iterator[tuple[str, str]]:
    """The path and text of every scalar, in order; a list of scalars is one of them."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, dict) and item:
            stack.extend((f"{path}.{key}" if path else key, item[key]) for key in reversed(item))
        elif isinstance(item, list) and any(isinstance(part, dict | list) for part in item):
            stack.extend((path, part) for part in reversed(item))
        elif isinstance(item, list):
            yield path, ", ".join(map(_scalar, item))
        else:
            yield path, _scalar(item)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "{}" if isinstance(value, dict) else json.dumps(value)
