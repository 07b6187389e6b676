"""Look-ups with a lifetime: facts about users and chats, with one call for all concurrent callers; followed threads.

A thread the bot was mentioned in needs no second mention until a member addresses another user.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from cachetools import LRUCache

from channels.kit.background import loop_time
from gateway.errors import OutcomeUnknown, SendFailed
from gateway.ports.channel import IntakeResult, IntakeVerdict

if TYPE_CHECKING:
    from gateway.store.records import SqlChannelState

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


_PREFIX = "follows/"
_ALWAYS = "1"  # the value of a thread whose first message is unknown
_NOT_ADDRESSED = "not-addressed"  # admission's reason for an admitted sender who wrote to others


def is_from_member(result: IntakeResult) -> bool:
    """Return True if the sender may write here, although perhaps not to us; unknown senders change nothing."""
    return result.verdict is not IntakeVerdict.REJECTED or result.reason == _NOT_ADDRESSED


class FollowedThreads:
    """The followed threads of one channel, one durable note each, written only when that changes.

    A note holds the id of the message that mentioned the bot, or nothing once the thread is left. The *size* newest
    threads are kept; an older one needs a mention again. Every method may raise StoreUnavailable.
    """

    def __init__(self, state: SqlChannelState, *, size: int, old_note: str = "", is_shared: bool = False) -> None:
        """Keep the notes in *state*; *old_note* names one that held all threads as JSON, and is still read.

        If they are shared with other workers, that of a thread is read each time.
        """
        self._state = state
        self._size = size
        self._old_note = old_note
        self._is_shared = is_shared
        self._known: OrderedDict[str, str] | None = None

    async def is_followed(self, thread: str, *, otherwise: bool = False) -> bool:
        """Return True if *thread* is followed; *otherwise* for a thread that was neither followed nor left."""
        since = await self._find(thread)
        return otherwise if since is None else bool(since)

    async def since(self, thread: str) -> str:
        """Return the id of the message from which on *thread* is followed; "" if it is not."""
        return await self._find(thread) or ""

    async def update(
        self,
        thread: str,
        result: IntakeResult,
        *,
        mentions_us: bool,
        mentions_others: bool,
        message_id: str = _ALWAYS,
        otherwise: bool = False,
    ) -> None:
        """Follow *thread* after an accepted mention of the bot; leave it after a member mentions another user."""
        if mentions_us and result.verdict is not IntakeVerdict.REJECTED:
            await self.follow(thread, message_id)
        elif mentions_others and is_from_member(result) and await self.is_followed(thread, otherwise=otherwise):
            # Without a note the thread would count as *otherwise*, or as the old note says.
            await self._save(thread, "" if otherwise or self._old_note else None)

    async def follow(self, thread: str, message_id: str) -> None:
        """Follow *thread* from *message_id* on; has no effect if it is followed already."""
        if not await self.since(thread):
            await self._save(thread, message_id)

    async def _find(self, thread: str) -> str | None:
        since = (await self._load()).get(thread)
        if not self._is_shared:
            return since
        noted = await self._state.load(f"{_PREFIX}{thread}")
        return noted if noted is not None or not self._old_note else since

    async def _save(self, thread: str, since: str | None) -> None:
        known = await self._load()
        await self._state.save(f"{_PREFIX}{thread}", since)
        known.pop(thread, None)
        if since is not None:
            known[thread] = since
        while len(known) > self._size:
            await self._state.save(f"{_PREFIX}{known.popitem(last=False)[0]}", None)

    async def _load(self) -> OrderedDict[str, str]:
        if self._known is None:
            known = await self._load_old()
            for name, since in (await self._state.all(_PREFIX)).items():
                known[name.removeprefix(_PREFIX)] = since
            # Message ids of one platform sort by length and text; threads that were left go first.
            ordered = sorted(known.items(), key=lambda thread: (len(thread[1]), thread[1]))
            self._known = self._known if self._known is not None else OrderedDict(ordered)
        return self._known

    async def _load_old(self) -> dict[str, str]:
        note = await self._state.load(self._old_note) if self._old_note else None
        return {
            thread: since if isinstance(since, str) else _ALWAYS if since else ""
            for thread, since in json.loads(note or "{}").items()
        }
