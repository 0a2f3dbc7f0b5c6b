"""Reads graphs that GraphRAG, or `server.graph.tables`, has written as tables: bring your own graph.

What entities and relationships say with the text units that they name is what these chunks say for the graph; the rest
is as if people had added it. Files are read in a process of their own (`server.graph.tables_reader`), and nothing in
them is believed to be what its column's name says.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from server.domain import Chunk, Claim, Extraction, Mention, Relation
from server.errors import InvalidName, InvalidRequest
from server.graph import tables_reader
from server.graph.identity import LONGEST_NAME, entity_key
from server.graph.replies import cleaned
from server.graph.tables import missing_pyarrow
from server.names import file_label

_TABLES = ("documents", "text_units", "entities", "relationships", "covariates")
_OLD_NAME = "create_final_"
"""What stood before the names of tables in GraphRAG 0.x."""
_MOST_BYTES = 256 << 20
_MOST_ROWS = 500_000
_LONGEST_ROW = 32 << 20
_MOST_LINKS = 1_000_000
"""Mentions and relations of all chunks: an entity may name any number of text units."""
_PATIENCE = 600.0
_LONGEST = {"type": 40, "description": 2000}
_HEAVIEST = 100.0
_PLAIN = (".txt", ".md")
_BLOCK = 1 << 20

Row = Mapping[str, Any]


@dataclass
class BroughtFile:
    """A document whose chunks are its text units, and what each of them says for the graph."""

    name: str
    text: str
    chunks: list[Chunk] = field(default_factory=list)
    said: list[Extraction] = field(default_factory=list)


@dataclass(frozen=True)
class BroughtGraph:
    """What tables hold: files, and the entities and relations that name no text unit. `dropped` counts what has no
    name, or ties an entity to itself."""

    files: Sequence[BroughtFile]
    entities: Sequence[Mention]
    relations: Sequence[Relation]
    dropped: int


def looks_zipped(data: bytes) -> bool:
    """Whether a file is a zip archive, by its first bytes."""
    return data.startswith(b"PK\x03\x04")


def read_tables(source: Path | bytes) -> BroughtGraph:
    """What the parquet files of a folder, or in the bytes of a zip archive, hold.

    Raises:
        InvalidRequest: a table is broken, too large, or misses a column; MissingDependency: pyarrow is not installed.
    """
    if find_spec("pyarrow") is None:
        raise missing_pyarrow()
    with _found(source) as paths:
        if "entities" not in paths:
            raise InvalidRequest("没有 entities.parquet / there is no entities.parquet")
        rows = {name: list(_rows(name, path)) for name, path in paths.items()}
    return _Reader(rows).graph()


@contextmanager
def _found(source: Path | bytes) -> Iterator[dict[str, Path]]:
    """The files of the tables by their names."""
    if isinstance(source, Path):
        yield _named(sorted(path for path in source.iterdir() if path.is_file()))
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(io.BytesIO(source)) as archive:
                _unpack(archive, Path(folder))
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
            raise InvalidRequest(f"zip 文件已损坏或已加密 / the zip file is broken or encrypted: {error}") from None
        yield _named(sorted(Path(folder).iterdir()))


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    found = {path.name.removeprefix(_OLD_NAME).removesuffix(".parquet"): path
             for path in paths if path.suffix == ".parquet"}  # fmt: skip
    return {name: found[name] for name in _TABLES if name in found}


def _unpack(archive: zipfile.ZipFile, folder: Path) -> None:
    """Write the tables into a folder under their plain names, wherever they lie in the archive."""
    room = _MOST_BYTES
    for info in archive.infolist():
        name = PurePosixPath(info.filename).name
        if name.removeprefix(_OLD_NAME).removesuffix(".parquet") not in _TABLES or info.is_dir():
            continue
        with archive.open(info) as packed, (folder / name).open("wb") as out:
            while block := packed.read(_BLOCK):
                room -= len(block)
                if room < 0:
                    raise _too_large(name)
                out.write(block)


def _rows(name: str, path: Path) -> Iterator[Row]:
    """The rows of a table, read by another process; its columns are checked first."""
    command = [sys.executable, "-I", tables_reader.__file__, str(path.resolve()), *_COLUMNS[name]]
    # Arrow's own allocator reserves more address space than the process may have
    environment = {"PATH": os.environ.get("PATH", ""), "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    watch = threading.Timer(_PATIENCE, process.kill)
    watch.start()
    try:
        assert process.stdout is not None
        lines = _lines(name, process.stdout)
        columns = next(lines, None)
        if columns is not None:
            _check_columns(name, columns)
        yield from lines
        if process.wait() or columns is None:
            raise InvalidRequest(f"{name}.parquet 无法读取 / {name}.parquet cannot be read: it is broken or too large")
    finally:
        watch.cancel()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _lines(name: str, stream: IO[bytes]) -> Iterator[Any]:
    room, rows = _MOST_BYTES, 0
    while line := stream.readline(_LONGEST_ROW):
        room, rows = room - len(line), rows + 1
        if room < 0 or rows > _MOST_ROWS or len(line) == _LONGEST_ROW:
            raise _too_large(name)
        try:
            yield json.loads(line)
        except ValueError:  # it ended in mid-line
            return


def _too_large(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} 过大，最多 {_MOST_ROWS} 行、{_MOST_BYTES >> 20} MiB / "
        f"{name} is too large: at most {_MOST_ROWS} rows and {_MOST_BYTES >> 20} MiB"
    )


_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "documents": ("id", "title", "text", "raw_content"),
    "text_units": ("id", "text", "document_id", "document_ids"),
    "entities": ("title", "name", "type", "description", "text_unit_ids"),
    "relationships": ("source", "target", "description", "weight", "text_unit_ids"),
    "covariates": (
        "subject_id", "object_id", "type", "status", "description", "start_date", "end_date", "source_text",
        "text_unit_id",
    ),
}  # fmt: skip
_NEEDED: Mapping[str, Sequence[tuple[str, ...]]] = {
    "documents": [("id",)],
    "text_units": [("id",), ("text",)],
    "entities": [("title", "name")],
    "relationships": [("source",), ("target",)],
    "covariates": [("subject_id",)],
}
"""Columns without which a table means nothing; of several one is enough."""


def _check_columns(name: str, present: Any) -> None:
    for choice in _NEEDED[name]:
        if not set(choice) & set(present):
            column = " / ".join(choice)
            raise InvalidRequest(f"{name}.parquet 缺少列 {column} / {name}.parquet has no column {column}")


class _Link(NamedTuple):
    """An entity or a relation, and the text units that it names."""

    units: list[str]
    item: Any


class _Reader:
    """The graph in the rows of tables."""

    def __init__(self, rows: Mapping[str, Sequence[Row]]) -> None:
        self._rows = rows
        self._units = {_text(row, "id"): row for row in rows.get("text_units", ()) if _plain(row.get("text")).strip()}
        self._dropped = 0
        self._links = 0

    def graph(self) -> BroughtGraph:
        """All of it."""
        entities = list(self._entities())
        relations = list(self._relations())
        said = self._said(entities, relations)
        return BroughtGraph(
            self._files(said),
            [link.item for link in entities if not link.units],
            [link.item for link in relations if not link.units],
            self._dropped,
        )

    def _entities(self) -> Iterator[_Link]:
        for row in self._rows.get("entities", ()):
            kind = _text(row, "type").casefold()
            name = _text(row, "title", "name").removesuffix(f" ({kind})")
            if self._is_name(name):
                yield self._link(row, Mention(name, kind[: _LONGEST["type"]], _said_of(row)))

    def _relations(self) -> Iterator[_Link]:
        for row in self._rows.get("relationships", ()):
            source, target = _text(row, "source"), _text(row, "target")
            if self._is_name(source) and self._is_name(target):
                if entity_key(source) == entity_key(target):
                    self._dropped += 1
                    continue
                yield self._link(row, Relation(source, target, description=_said_of(row), weight=_weight(row)))

    def _is_name(self, name: str) -> bool:
        fits = bool(entity_key(name)) and len(name) <= LONGEST_NAME
        self._dropped += not fits
        return fits

    def _link(self, row: Row, item: Any) -> _Link:
        units = dict.fromkeys(one for one in _list(row, "text_unit_ids") if one in self._units)
        self._links += len(units)
        if self._links > _MOST_LINKS:
            raise InvalidRequest(
                f"实体与关系引用的文本单元超过 {_MOST_LINKS} 个 / "
                f"entities and relationships name more than {_MOST_LINKS} text units"
            )
        return _Link(list(units), item)

    def _said(self, entities: Sequence[_Link], relations: Sequence[_Link]) -> dict[str, Extraction]:
        """What each text unit says. What is said of an entity stands once in each document: it goes with the last of
        the files that it was taken from."""
        mentions: defaultdict[str, dict[str, Mention]] = defaultdict(dict)
        between: defaultdict[str, list[Relation]] = defaultdict(list)
        bare = {}
        for link in entities:
            bare[link.item.name] = mention = replace(link.item, description="")
            told = set()
            for unit in link.units:
                document = self._document_of(unit)
                mentions[unit][link.item.name] = mention if document in told else link.item
                told.add(document)
        for link in relations:
            share = min(_HEAVIEST, link.item.weight / max(1, len(link.units)))
            for unit in link.units:
                for name in (link.item.source, link.item.target):
                    mentions[unit].setdefault(name, bare.get(name, Mention(name)))
                between[unit].append(replace(link.item, weight=share))
        claims = self._claims()
        return {
            unit: Extraction(
                tuple(named.values()), tuple(between[unit]), tuple(one for one in claims[unit] if one.subject in named)
            )
            for unit, named in mentions.items()
        }

    def _claims(self) -> Mapping[str, list[Claim]]:
        """By text unit."""
        found: defaultdict[str, list[Claim]] = defaultdict(list)
        for row in self._rows.get("covariates", ()):
            said, quote = _said_of(row), _text(row, "source_text")[: _LONGEST["description"]]
            to = _text(row, "object_id")
            if (unit := _text(row, "text_unit_id")) in self._units and (said or quote):
                found[unit].append(Claim(
                    _text(row, "subject_id"), "" if to == "NONE" else to, _text(row, "type")[: _LONGEST["type"]],
                    _text(row, "status").lower()[:20] or "suspected", said, _text(row, "start_date")[:40],
                    _text(row, "end_date")[:40], quote,
                ))  # fmt: skip
        return found

    def _document_of(self, unit: str) -> str:
        row = self._units[unit]
        return _text(row, "document_id") or next(iter(_list(row, "document_ids")), "")

    def _files(self, said: Mapping[str, Extraction]) -> list[BroughtFile]:
        """One for each document that has text units; units of a document that is in no table have one of their own."""
        documents = {_text(row, "id"): row for row in self._rows.get("documents", ())}
        files: dict[str, BroughtFile] = {}
        names: set[str] = set()
        for unit, row in self._units.items():
            document = self._document_of(unit)
            if document not in files:
                known = documents.get(document, {})
                name = _file_name(_text(known, "title") or document or "text_units", document, names)
                files[document] = BroughtFile(name, _plain(known.get("text") or known.get("raw_content")))
            file = files[document]
            file.chunks.append(Chunk(_plain(row["text"]), metadata={"text_unit_id": unit}))
            file.said.append(said.get(unit, Extraction()))
        for file in files.values():
            file.text = file.text or "\n\n".join(chunk.text for chunk in file.chunks)
        return list(files.values())


def _file_name(title: str, document: str, taken: set[str]) -> str:
    """A name for a document that no other has; what cannot be a file's name is called by its id."""
    digest = hashlib.sha256(document.encode("utf-8", "replace")).hexdigest()[:12]
    try:
        name = file_label(title)
    except InvalidName:
        name = f"document {digest}"
    stem, dot, ending = name.rpartition(".")
    if f".{ending.lower()}" not in _PLAIN:
        stem, dot, ending = name, ".", "txt"  # what is stored is the text, whatever it was read from
    name = f"{stem}{dot}{ending}"
    if name in taken:
        name = f"{stem} {digest}{dot}{ending}"
    taken.add(name)
    return name


def _plain(value: Any) -> str:
    """A text as a database can hold it."""
    return str(value or "").replace("\0", " ").encode("utf-8", "replace").decode()


def _text(row: Row, *names: str) -> str:
    """The first of these columns that is there, on one line."""
    return cleaned(next((str(row[name]) for name in names if row.get(name) is not None), ""))


def _said_of(row: Row) -> str:
    return _text(row, "description")[: _LONGEST["description"]]


def _list(row: Row, name: str) -> list[str]:
    """A list, or one that was written as JSON."""
    value = row.get(name)
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError:
            raise InvalidRequest(f"{name} 不是列表 / {name} is neither a list nor one in JSON") from None
    return [cleaned(str(one)) for one in value] if isinstance(value, list) else []


def _weight(row: Row) -> float:
    value = row.get("weight")
    return float(value) if isinstance(value, int | float) and 0 < value < float("inf") else 1.0
