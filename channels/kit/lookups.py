"""Look-ups with a lifetime: facts about users and chats, with one call for all concurrent callers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from cachetools import LRUCache

from channels.kit.background import loop_time
from gateway.errors import OutcomeUnknown, SendFailed

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LIFETIME = 300.0  # seconds: a right that was taken away no longer counts after five minutes
_CONCURRENT = 8  # look-ups of one `get_many`


class LookupCache(Generic[K, V]):
    """Values by key, fetched when they are missing or older than `LIFETIME`.

    Concurrent callers share one fetch, which may take `timeout` seconds. A failed fetch raises SendFailed in each of
    them; it is repeated at the next call, or not before *failure_lifetime* seconds. At most *size* values are kept.
    """

    def __init__(
        self,
        name: str,
        fetch: Callable[[K], Awaitable[V]],
        *,
        size: int,
        timeout: float,
        failure_lifetime: float = 0.0,
    ) -> None:
        self.timeout = timeout
        self._name = name
        self._fetch = fetch
        self._failure_lifetime = failure_lifetime
        self._values: LRUCache[K, tuple[float, V]] = LRUCache(size)  # with the time at which each expires
        self._failures: LRUCache[K, tuple[float, SendFailed]] = LRUCache(size)
        self._fetches: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K) -> V:
        """Return the value of *key*. Raises SendFailed; OutcomeUnknown after `timeout` seconds."""
        now = loop_time()
        if (kept := self._values.get(key)) is not None and now < kept[0]:
            return kept[1]
        if (failed := self._failures.get(key)) is not None and now < failed[0]:
            raise failed[1].with_traceback(None)
        if key not in self._fetches:
            task = asyncio.create_task(self._fetch_in_time(key), name=f"{self._name} {key}")
            self._fetches[key] = task
            task.add_done_callback(partial(self._store, key))
        return await asyncio.shield(self._fetches[key])

    async def get_many(self, keys: Iterable[K], *, within: float) -> dict[K, V]:
        """Return the values of *keys* that are known after *within* seconds; failures are left out."""
        values: dict[K, V] = {}
        slots = asyncio.Semaphore(_CONCURRENT)

        async def get(key: K) -> None:
            async with slots:
                with suppress(SendFailed):
                    values[key] = await self.get(key)

        with suppress(TimeoutError):
            async with asyncio.timeout(within), asyncio.TaskGroup() as tasks:
                for key in set(keys):
                    tasks.create_task(get(key), name=f"{self._name} {key}")
        return values

    def peek(self, key: K) -> V | None:
        """Return the last value of *key*, expired or not, without a fetch; None if it was never fetched."""
        kept = self._values.get(key)
        return None if kept is None else kept[1]

    def put(self, key: K, value: V, *, age: float = 0.0) -> None:
        """Keep a value that is *age* seconds old."""
        self._values[key] = (loop_time() + LIFETIME - age, value)
        self._failures.pop(key, None)

    def forget(self, key: K) -> None:
        """Fetch *key* again at the next call; the result of a fetch in flight is not kept."""
        self._values.pop(key, None)
        self._failures.pop(key, None)
        self._fetches.pop(key, None)

    def expire(self) -> None:
        """Let every value expire now; `peek` still returns it."""
        for key, (_, value) in list(self._values.items()):
            self._values[key] = (-math.inf, value)
        self._failures.clear()

    async def close(self) -> None:
        """Cancel the fetches in flight."""
        fetches = list(self._fetches.values())
        for task in fetches:
            task.cancel()
        if fetches:
            await asyncio.wait(fetches)

    async def _fetch_in_time(self, key: K) -> V:
        try:
            async with asyncio.timeout(self.timeout):
                return await self._fetch(key)
        except TimeoutError:
            raise OutcomeUnknown(f"no answer in {self.timeout} seconds") from None

    def _store(self, key: K, task: asyncio.Task[V]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._fetches.get(key) is not task:
            return
        del self._fetches[key]
        if isinstance(error, SendFailed) and self._failure_lifetime:
            self._failures[key] = (loop_time() + self._failure_lifetime, error)
        elif error is None and not task.cancelled():
            self.put(key, task.result())
