"""Frames for windows at other workers: rows for each worker that watches a chat, which it removes as it reads them.

A chat's worker cannot know of a window that another has just opened. So who watches is decided by the transaction that
stores a frame: a worker that was listed for a chat before it read the history gets every frame that the history did not
have. A notification names the worker that has frames; it looks by itself as well, while it has windows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

from gateway.errors import StoreUnavailable
from gateway.events import SessionKey
from gateway.store.claims import LISTED_WORKERS, POLL, claim_name
from gateway.store.database import Database, SharedDatabase, upsert_sql
from gateway.store.row_codec import read_key, sql, write_key
from gateway.store.writer import StoreWriter

_POST_EVERY = 0.2  # seconds
_CHAT = "chat:"
_WATCH = upsert_sql("watch", "chat", "worker", "opening", keys=2)
_UNWATCH = "DELETE FROM watch WHERE chat = ? AND worker = ?"
_WATCHERS = sql(
    "SELECT watch.chat, watch.worker, watch.opening FROM watch JOIN claim ON claim.name = watch.chat",
    "WHERE claim.worker = ?1 AND watch.worker != ?1",
)
_SEND = sql(
    "INSERT INTO frame (worker, sender, number, key, body) SELECT worker, ?, ?, ?, ? FROM watch",
    "WHERE chat = ? AND worker != ? RETURNING worker",
)
_TAKE = "DELETE FROM frame WHERE worker = ? RETURNING sender, number, key, body"
_FORGET_WATCHERS = sql("DELETE FROM watch WHERE worker NOT IN", LISTED_WORKERS)
_FORGET_FRAMES = sql("DELETE FROM frame WHERE worker NOT IN", LISTED_WORKERS)

Watchers: TypeAlias = frozenset[tuple[SessionKey, str, int]]  # chat, worker, number of its opening


def watchers_of(database: Database, worker: str) -> Watchers:
    """Return the other workers that watch chats of *worker*."""
    rows = database.execute(_WATCHERS, (worker,))
    return frozenset((read_key(chat.removeprefix(_CHAT)), other, opening) for chat, other, opening in rows)


def forget_windows(database: Database) -> None:
    """Remove the windows of workers that are not listed, and the frames for them."""
    database.execute(_FORGET_WATCHERS)
    database.execute(_FORGET_FRAMES)


@dataclass(frozen=True, slots=True)
class _Subscriber:
    receive: Callable[[SessionKey, str], None]
    repeat: Callable[[SessionKey], None]
    refresh: Callable[[], None]


@dataclass(slots=True)
class WorkerWindows:
    """The windows of this worker and of others, as its event loop knows them. *key* is a conversation's.

    A frame is the channel's JSON text in ASCII. Frames of one worker arrive in the order in which it gave them, each
    once; a frame that was lost with a session of the database is made good by `refresh`.
    """

    writer: StoreWriter
    worker: str
    arrival: asyncio.Event  # another worker has stored frames for us
    _subscribers: dict[str, _Subscriber] = field(default_factory=dict)
    _watching: set[SessionKey] = field(default_factory=set)
    _watchers: Watchers = frozenset()
    _watched: frozenset[SessionKey] = frozenset()  # the chats of `_watchers`
    _pending: dict[object, tuple[SessionKey, str]] = field(default_factory=dict)
    _has_pending: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: count[int] = field(default_factory=count)

    def subscribe(
        self,
        channel: str,
        receive: Callable[[SessionKey, str], None],
        repeat: Callable[[SessionKey], None],
        refresh: Callable[[], None],
    ) -> None:
        """Call *receive* with each frame from another worker for *channel*.

        *repeat* is called with one of our chats when another worker opens a window of it: activity and preview are to
        be posted again. *refresh* is called after a frame may have been lost: windows are to read their history again.
        """
        self._subscribers[channel] = _Subscriber(receive, repeat, refresh)

    async def watch(self, chat: SessionKey) -> None:
        """Receive the frames of *chat*: all that are sent after the return. Raises StoreUnavailable."""
        columns = (claim_name(chat), self.worker, next(self._numbers))

        def store(database: SharedDatabase) -> None:
            database.execute(_WATCH, columns)
            database.notify()  # the chat's worker begins a preview

        self._watching.add(chat)
        self.arrival.set()  # look from now on
        await self.writer.submit(store)

    def unwatch(self, chat: SessionKey) -> None:
        """Receive no more frames of *chat*."""
        self._watching.discard(chat)
        columns = (claim_name(chat), self.worker)
        self.writer.submit_nowait(lambda database: database.execute(_UNWATCH, columns).close())

    def is_watched(self, key: SessionKey) -> bool:
        """Return True if another worker has windows of the chat of *key*, which is ours; False else."""
        return key.parent in self._watched

    async def send(self, key: SessionKey, frame: str) -> None:
        """Give *frame* to every other worker that watches, after those of *key* that wait.

        It is durable on return. Raises StoreUnavailable.
        """
        slots = [slot for slot, (other, _) in self._pending.items() if other == key]
        await self._store([*(self._pending.pop(slot) for slot in slots), (key, frame)])

    def post(self, key: SessionKey, frame: str, *, slot: str = "") -> None:
        """Give *frame* soon; of those with the same *slot* that wait, only the last one is given."""
        self._pending[(key, slot) if slot else next(self._numbers)] = (key, frame)
        self._has_pending.set()

    def note_watchers(self, watchers: Watchers) -> None:
        """Keep the watchers of our chats; have activity and preview repeated for new windows."""
        new = watchers - self._watchers
        self._watchers, self._watched = watchers, frozenset(chat for chat, _, _ in watchers)
        for chat in {chat for chat, _, _ in new}:
            if (subscriber := self._subscribers.get(chat.channel)) is not None:
                subscriber.repeat(chat)

    async def run(self) -> None:
        """Give and receive frames until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._give_pending(), name="frames to other workers")
            tasks.create_task(self._receive(), name="frames of other workers")

    async def _give_pending(self) -> None:
        while True:
            await self._has_pending.wait()
            self._has_pending.clear()
            pending, self._pending = self._pending, {}
            with suppress(StoreUnavailable):  # the writer logs it; the next frame of a slot has it all
                await self._store(list(pending.values()))
            await asyncio.sleep(_POST_EVERY)

    async def _store(self, frames: Sequence[tuple[SessionKey, str]]) -> None:
        rows = [
            (self.worker, next(self._numbers), write_key(key), frame, claim_name(key), self.worker)
            for key, frame in frames
        ]

        def store(database: SharedDatabase) -> None:
            targets = {worker for row in rows for (worker,) in database.execute(_SEND, row)}
            for worker in sorted(targets):
                database.notify_worker(worker)

        await self.writer.submit(store)

    async def _receive(self) -> None:
        is_complete = True
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL.total_seconds() if self._watching else None):
                    await self.arrival.wait()
            self.arrival.clear()
            try:
                found = await self.writer.submit(lambda database: database.execute(_TAKE, (self.worker,)).fetchall())
            except StoreUnavailable:  # the rows may be gone, if only the reply was lost
                is_complete = False
                await asyncio.sleep(POLL.total_seconds())
                continue
            for _, _, key, body in sorted(found):
                self._hand_over(read_key(key), body)
            if not is_complete:
                is_complete = True
                for subscriber in self._subscribers.values():
                    subscriber.refresh()

    def _hand_over(self, key: SessionKey, body: str) -> None:
        if (subscriber := self._subscribers.get(key.channel)) is not None:
            subscriber.receive(key, body)
