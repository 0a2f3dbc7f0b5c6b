"""One FAISS index in memory, with an atomic snapshot on disk. Nothing is pickled."""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from server.db.vectors import FloatArray
from server.errors import DimensionMismatch
from server.knowledge_base.cache import ReadWriteLock

log = logging.getLogger(__name__)

_SAVE_LEAST = 20_000
"""Vectors that are read from SQL in a fraction of a second: no snapshot is worth its bytes."""
_MAGIC = b"zhiku-faiss-1\n"


class DamagedSnapshot(Exception):
    """The file on disk cannot be used; the index has to be built from SQL."""


_LARGE = 200_000
"""Vectors from which on lists are looked through, and not all vectors: a search of all takes more than 10 ms."""
_GROWTH = 4
"""Lists are made anew when so many times as many vectors are in them."""
_TRAINING = 40
"""Vectors for each list from which the middles of lists are learned."""
_LOOKED_THROUGH = 8
"""One list of so many is looked through in a search."""

_Change = tuple[str, Any]


def _new_index(dimension: int) -> faiss.IndexIDMap2:
    """Exact search over float16: at 100k x 384 it takes 4 ms a query, half of float32, and loses nothing
    because SQL holds float16 too and scores are computed from there."""
    flat = faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    return faiss.IndexIDMap2(flat)


def _sorted_into_lists(vectors: FloatArray, ids: NDArray[np.int64]) -> faiss.IndexIVFScalarQuantizer:
    """Vectors of shape (n, d) in sqrt(n) lists of those that are near each other."""
    count, dimension = vectors.shape
    lists = int(np.sqrt(count))
    middles: Any = faiss.IndexFlatIP(dimension)
    index = faiss.IndexIVFScalarQuantizer(
        middles, dimension, lists, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT, False
    )
    index.own_fields = True
    middles.this.disown()
    index.nprobe = max(1, lists // _LOOKED_THROUGH)
    index.train(vectors[np.random.default_rng(0).permutation(count)[: _TRAINING * lists]])
    index.add_with_ids(vectors, ids)
    return index


@dataclass
class FaissIndex:
    """Unit vectors by chunk id; searched by many threads at once, changed by one. A search looks at all of them, or,
    from `_LARGE` on, at those in the lists that are nearest (IVF; Jégou et al. 2011)."""

    path: Path
    index: faiss.IndexIDMap2 | faiss.IndexIVFScalarQuantizer | None = None
    version: int = 0
    saved_version: int = 0
    unsaved: int = 0
    deleted: bool = False
    top: int = 0
    """No id is larger."""
    lists_of: int = 0
    """How many vectors there were when they were sorted into lists; 0 = they are not."""
    journal: list[_Change] | None = None
    """What has changed since lists are being made."""
    lock: ReadWriteLock = field(default_factory=ReadWriteLock)

    @classmethod
    def open(cls, path: Path) -> FaissIndex:
        """The snapshot at `path`, or an empty index of version 0 when there is none that can be used."""
        try:
            version, index = _read(path)
        except FileNotFoundError:
            return cls(path)
        except (DamagedSnapshot, OSError) as error:
            log.warning("%s cannot be used (%s); the index is built again from SQL", path, error)
            return cls(path)
        opened = cls(path, index, version, version)
        opened.top = int(opened.ids().max(initial=0))
        opened.lists_of = index.ntotal if isinstance(index, faiss.IndexIVF) else 0
        return opened

    @property
    def count(self) -> int:
        """Number of vectors."""
        return int(self.index.ntotal) if self.index is not None else 0

    def put(self, ids: Sequence[int], vectors: FloatArray) -> None:
        """Add vectors of shape (n, d); ids that are there already are replaced, as one step for searchers."""
        with self.lock.write():
            if self.index is None:
                self.index = _new_index(vectors.shape[1])
            if vectors.shape[1] != self.index.d:
                raise DimensionMismatch(
                    f"向量维度应为 {self.index.d}，实际为 {vectors.shape[1]}，请重建知识库 / vectors should have "
                    f"{self.index.d} dimensions, these have {vectors.shape[1]}: rebuild the knowledge base"
                )
            self._note("put", (ids, vectors))
            numbers = np.asarray(ids, dtype=np.int64)
            if self.count and numbers.min() <= self.top:
                self._forget(self.index.remove_ids(faiss.IDSelectorBatch(numbers)))
            self.index.add_with_ids(np.ascontiguousarray(vectors, dtype=np.float32), numbers)
            self.top = max(self.top, int(numbers.max()))
            self.unsaved += len(numbers)

    def _note(self, change: str, values: Any) -> None:
        if self.journal is not None:
            self.journal.append((change, values))

    def remove(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Take ids out, by ranges with their bounds."""
        with self.lock.write():
            if self.index is not None:
                self._note("remove", ranges)
                for lo, hi in ranges:
                    self._forget(self.index.remove_ids(faiss.IDSelectorRange(lo, hi + 1)))

    def _forget(self, removed: int) -> None:
        """A snapshot that holds what was deleted goes at once; the next one is written when there is time."""
        if removed:
            self.path.unlink(missing_ok=True)
            self.saved_version, self.unsaved = -1, self.count

    def clear(self) -> None:
        """Take everything out."""
        with self.lock.write():
            self.index, self.version, self.saved_version, self.top, self.lists_of = None, 0, -1, 0, 0
            self._note("clear", ())

    def delete(self) -> None:
        """Clear, and delete the snapshot for good."""
        self.clear()
        self.deleted = True
        self.path.unlink(missing_ok=True)

    def search(self, vector: FloatArray, top_k: int, allowed: Sequence[int] | None = None) -> list[int]:
        """Ids of the nearest vectors, nearest first; only `allowed` ones when given."""
        with self.lock.read():
            if self.index is None or not (count := min(top_k, self.count)):
                return []
            options = self._options(allowed)
            _, found = self.index.search(np.ascontiguousarray(vector[None, :]), count, params=options)
        return [int(chunk_id) for chunk_id in found[0] if chunk_id >= 0]

    def _options(self, allowed: Sequence[int] | None) -> Any:
        """Under a filter all lists are looked through: what is allowed may be in any."""
        if allowed is None:
            return None
        chosen: Any = {"sel": faiss.IDSelectorBatch(np.asarray(allowed, dtype=np.int64))}
        if isinstance(self.index, faiss.IndexIVF):
            chosen["nprobe"] = self.index.nlist
            return faiss.SearchParametersIVF(**chosen)
        return faiss.SearchParameters(**chosen)

    def ids(self) -> NDArray[np.int64]:
        """All ids in the index."""
        with self.lock.read():
            return _ids_of(self.index)

    def sort_if_large(self) -> None:
        """Sort vectors into lists when there are many and they are not, or are many more than then. Searches go on
        meanwhile, and so do changes."""
        with self.lock.write():
            if self.journal is not None or self.count < max(_LARGE, _GROWTH * self.lists_of):
                return
            self.journal = []
            ids, vectors = _ids_of(self.index), _vectors_of(self.index)
        try:
            index = _sorted_into_lists(vectors, ids)
            with self.lock.write():
                self._replace(index, self.journal or [])
        finally:
            self.journal = None

    def _replace(self, index: faiss.IndexIVFScalarQuantizer, journal: list[_Change]) -> None:
        """Take another index, and do to it what was done to this one meanwhile."""
        for change, values in journal:
            if change == "clear":
                return
            if change == "put":
                numbers = np.asarray(values[0], dtype=np.int64)
                index.remove_ids(faiss.IDSelectorBatch(numbers))
                index.add_with_ids(np.ascontiguousarray(values[1], dtype=np.float32), numbers)
            else:
                for lo, hi in values:
                    index.remove_ids(faiss.IDSelectorRange(lo, hi + 1))
        self.index, self.lists_of = index, index.ntotal
        self.saved_version, self.unsaved = -1, self.count

    def save_if_large(self) -> None:
        """Write a snapshot unless reading the vectors from SQL is as quick as reading it."""
        if self.count >= _SAVE_LEAST:
            self.save()

    def save(self) -> None:
        """Write a snapshot: temporary file, fsync, rename."""
        with self.lock.read():
            if self.version == self.saved_version or self.deleted or self.index is None:
                return
            version, body = self.version, faiss.serialize_index(self.index).tobytes()
        head = json.dumps({"version": version, "crc": zlib.crc32(body), "size": len(body)}).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as out:
            out.writelines((_MAGIC, head, b"\n", body))
            out.flush()
            os.fsync(out.fileno())
        part.replace(self.path)
        self.saved_version, self.unsaved = version, 0


def _read(path: Path) -> tuple[int, Any]:
    with path.open("rb") as source:
        if source.read(len(_MAGIC)) != _MAGIC:
            raise DamagedSnapshot(path)
        try:
            head = json.loads(source.readline(1024))
            version, crc, size = int(head["version"]), int(head["crc"]), int(head["size"])
        except (ValueError, KeyError, TypeError):
            raise DamagedSnapshot(path) from None
        body = source.read()
    if len(body) != size or zlib.crc32(body) != crc:
        raise DamagedSnapshot(path)
    try:
        return version, faiss.deserialize_index(np.frombuffer(body, dtype=np.uint8))
    except RuntimeError as error:
        raise DamagedSnapshot(path) from error


def _ids_of(index: Any) -> NDArray[np.int64]:
    if index is None:
        return np.empty(0, dtype=np.int64)
    if not isinstance(index, faiss.IndexIVF):
        return np.asarray(faiss.vector_to_array(index.id_map), dtype=np.int64).copy()
    lists: Any = index.invlists
    parts = [
        faiss.rev_swig_ptr(lists.get_ids(at), lists.list_size(at)).copy()
        for at in range(index.nlist)
        if lists.list_size(at)
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _vectors_of(index: Any) -> FloatArray:
    """All vectors, shape (n, d), in the order of `_ids_of`."""
    if not isinstance(index, faiss.IndexIVF):
        return np.asarray(index.index.reconstruct_n(0, index.ntotal), dtype=np.float32)
    lists: Any = index.invlists
    size = index.code_size
    codes = [
        faiss.rev_swig_ptr(lists.get_codes(at), lists.list_size(at) * size).reshape(-1, size).copy()
        for at in range(index.nlist)
        if lists.list_size(at)
    ]
    return np.concatenate(codes).view("<f2").astype(np.float32) if codes else np.empty((0, index.d), np.float32)
