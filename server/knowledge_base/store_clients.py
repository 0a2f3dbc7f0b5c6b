"""Clients of vector stores that are services of their own: one of each in a process, opened when it is first used."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from server.errors import StoreDown, StoreError
from server.knowledge_base.cache import CachePool

log = logging.getLogger(__name__)

_REST = 2.0
"""Seconds in which a store that was out of reach is not asked again."""
_PROBE = 10.0
"""Seconds in which only one caller tries whether it is back."""


class Client(Protocol):
    """What a store's driver gives us."""

    def close(self) -> Any:
        """End it."""


C = TypeVar("C", bound=Client)


@dataclass(frozen=True, slots=True)
class Driver(Generic[C]):
    """How the client of a store is opened, and what its errors mean.

    `setting` says where the store is. `is_lost` tells errors of the connection from others.
    """

    store: str
    setting: str
    open: Callable[[], C]
    errors: tuple[type[Exception], ...]
    is_lost: Callable[[Exception], bool]


class StoreClients:
    """Lends clients, and tells in our words what goes wrong with them.

    A store that is out of reach is left alone for a moment, and one caller then tries it again: else every thread of
    the service could come to wait for it, and knowledge bases in other stores would suffer.
    """

    def __init__(self) -> None:
        self._pool: CachePool[str, Any] = CachePool(16, lambda client: client.close())
        self._guard = threading.Lock()
        self._resting: dict[str, float] = {}

    @contextmanager
    def use(self, driver: Driver[C]) -> Iterator[C]:
        """The client of a store.

        Raises:
            StoreDown: it is out of reach.
            StoreError: it refuses.
        """
        self._enter(driver)
        try:
            with self._pool.acquire(driver.store, driver.open) as client:
                yield client
        except driver.errors as error:
            self._pool.pop(driver.store)  # the next one connects anew
            log.warning("vector store %s: %s: %s", driver.store, type(error).__name__, error)
            raise self._in_our_words(driver, error) from error
        with self._guard:
            self._resting.pop(driver.store, None)

    def _enter(self, driver: Driver[C]) -> None:
        with self._guard:
            until, now = self._resting.get(driver.store, 0.0), time.monotonic()
            if now < until:
                raise _down(driver)
            if until:
                self._resting[driver.store] = now + _PROBE

    def _in_our_words(self, driver: Driver[C], error: Exception) -> StoreError:
        if not driver.is_lost(error):
            return StoreError(
                f"向量库 {driver.store} 拒绝了请求，原因见日志 / the vector store {driver.store} refuses, "
                f"the log says why ({type(error).__name__})"
            )
        with self._guard:
            self._resting[driver.store] = time.monotonic() + _REST
        return _down(driver)

    def close(self) -> None:
        """Close all clients."""
        self._pool.clear()


def _down(driver: Driver[C]) -> StoreDown:
    return StoreDown(
        f"向量库 {driver.store} 无法连接：请启动它，或检查设置 {driver.setting}，恢复后自动继续 / the vector store "
        f"{driver.store} is out of reach: start it or check the setting {driver.setting}; all goes on when it is back"
    )
