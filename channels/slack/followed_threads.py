"""Threads the bot was called into: they need no second mention until their people address somebody else."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict

from gateway.ports import ChannelState

_NOTE = "threads"
_KEPT = 500  # the newest; an older thread needs a mention again
_ALWAYS = "0.000000"


class SlackFollowedThreads:
    """Which threads we follow, in one durable note that is written only when that changes.

    A thread's value is the ts of the message that called us in, "" when its people turned to somebody else.
    """

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._known: OrderedDict[str, str] | None = None
        self._writing = asyncio.Lock()

    async def is_followed(self, place: str, *, otherwise: bool) -> bool:
        """Say whether the thread is ours; *otherwise* is the answer for one that we know nothing of."""
        since = (await self._load()).get(place)
        return otherwise if since is None else bool(since)

    async def since(self, place: str) -> str:
        """Return the ts of the message that called us in; "" when we do not follow the thread."""
        return (await self._load()).get(place, "")

    async def follow(self, place: str, ts: str) -> None:
        """Follow from the message *ts* on; a second call changes nothing. Raises StoreUnavailable."""
        if not await self.since(place):
            await self._note(place, ts)

    async def leave(self, place: str) -> None:
        """Follow no longer. Raises StoreUnavailable."""
        await self._note(place, "")

    async def _note(self, place: str, since: str) -> None:
        async with self._writing:
            known = await self._load()
            if known.get(place) == since:
                return
            changed = OrderedDict(known)
            changed.pop(place, None)
            changed[place] = since
            while len(changed) > _KEPT:
                changed.popitem(last=False)
            await self._state.save(_NOTE, json.dumps(changed))
            self._known = changed

    async def _load(self) -> OrderedDict[str, str]:
        if self._known is None:
            kept = json.loads(await self._state.load(_NOTE) or "{}")
            # Earlier notes said yes or no.
            self._known = OrderedDict((place, _since(since)) for place, since in kept.items())
        return self._known


def _since(kept: object) -> str:
    return kept if isinstance(kept, str) else _ALWAYS if kept else ""
