"""Threads the bot was mentioned in: they need no second mention until a member addresses another user."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING

from gateway.ports.channel import IntakeResult, IntakeVerdict

if TYPE_CHECKING:
    from gateway.store.records import SqlChannelState


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
