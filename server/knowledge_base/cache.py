"""Thread-safe pools of things that are costly to load: vector indexes, keyword indexes, models."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from server.errors import Busy

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ThreadSafeObject(Generic[K, V]):
    """One entry of a pool: a value that is loaded once, while those who wait for it wait for it alone."""

    def __init__(self, key: K) -> None:
        self.key = key
        self.users = 0
        self.value: V | None = None
        self.error: BaseException | None = None
        self._loaded = threading.Event()

    @property
    def loaded(self) -> bool:
        """Whether loading has ended, well or not."""
        return self._loaded.is_set()

    def finish(self, value: V | None, error: BaseException | None = None) -> None:
        """Hand the value, or the reason why there is none, to all who wait."""
        self.value, self.error = value, error
        self._loaded.set()

    def wait(self, timeout: float) -> V:
        """The value.

        Raises:
            Busy: it was not there in time.
        """
        if not self._loaded.wait(timeout):
            raise Busy("索引正在加载，请稍后重试 / the index is still loading, try again in a moment")
        if self.error is not None:
            raise self.error
        if self.value is None:
            raise RuntimeError("a pool entry finished without a value")
        return self.value


class CachePool(Generic[K, V]):
    """At most `size` loaded values by key, the least recently used goes first.

    A value in use is pinned: it is never closed under its user, the pool rather grows for a while.
    Loading holds no lock but the entry's own, so one slow or broken key never stalls another. A load
    that fails is forgotten: all who waited get the error, and the next caller tries again.
    """

    def __init__(self, size: int, close: Callable[[V], None] | None = None, patience: float = 120.0) -> None:
        self.size = size
        self.patience = patience
        self._close = close or (lambda _: None)
        self._entries: OrderedDict[K, ThreadSafeObject[K, V]] = OrderedDict()
        self._atomic = threading.Lock()

    @contextlib.contextmanager
    def acquire(self, key: K, load: Callable[[], V]) -> Iterator[V]:
        """The value of `key`, loaded when need be, and not closed before the block ends."""
        entry, mine = self._enter(key)
        try:
            if mine:
                self._load(entry, load)
            yield entry.wait(self.patience)
        finally:
            self._leave(entry)

    def _enter(self, key: K) -> tuple[ThreadSafeObject[K, V], bool]:
        with self._atomic:
            entry = self._entries.get(key)
            mine = entry is None
            if entry is None:
                entry = self._entries[key] = ThreadSafeObject(key)
            self._entries.move_to_end(key)
            entry.users += 1
            return entry, mine

    def _load(self, entry: ThreadSafeObject[K, V], load: Callable[[], V]) -> None:
        try:
            entry.finish(load())
        except BaseException as error:
            with self._atomic:
                if self._entries.get(entry.key) is entry:
                    del self._entries[entry.key]
            entry.finish(None, error)
            raise

    def _leave(self, entry: ThreadSafeObject[K, V]) -> None:
        with self._atomic:
            entry.users -= 1
            dropped = self._entries.get(entry.key) is not entry and entry.users == 0
        if dropped and entry.value is not None:
            self._close(entry.value)
        self._evict()

    def _evict(self) -> None:
        closing: list[V] = []
        with self._atomic:
            for key, entry in list(self._entries.items()):
                if len(self._entries) <= self.size:
                    break
                if entry.users == 0 and entry.loaded:
                    del self._entries[key]
                    if entry.value is not None:
                        closing.append(entry.value)
        for value in closing:
            self._close(value)

    def pop(self, key: K) -> None:
        """Forget a key; its value is closed when the last user has left."""
        with self._atomic:
            entry = self._entries.pop(key, None)
            idle = entry is not None and entry.users == 0
        if entry is not None and idle and entry.value is not None:
            self._close(entry.value)

    def keys(self) -> list[K]:
        """The keys held now, least recently used first."""
        with self._atomic:
            return list(self._entries)

    def clear(self) -> None:
        """Forget all keys."""
        for key in self.keys():
            self.pop(key)


class ReadWriteLock:
    """Many readers or one writer; a waiting writer goes before new readers."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0
        self._writing = False
        self._writers_waiting = 0

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        """Share with other readers."""
        with self._condition:
            self._condition.wait_for(lambda: not self._writing and not self._writers_waiting)
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @contextlib.contextmanager
    def write(self) -> Iterator[None]:
        """Be alone."""
        with self._condition:
            self._writers_waiting += 1
            self._condition.wait_for(lambda: not self._writing and not self._readers)
            self._writers_waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._condition:
                self._writing = False
                self._condition.notify_all()
