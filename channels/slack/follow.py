"""Threads the bot was called into: they need no second mention until their people address somebody else."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict

from gateway.ports import ChannelState

_NOTE = "threads"
_KEPT = 500  # the newest; an older thread needs a mention again


class Threads:
    """Which threads we follow, in one durable note that is written only when that changes."""

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._known: OrderedDict[str, bool] | None = None
        self._writing = asyncio.Lock()

    async def is_followed(self, place: str, *, otherwise: bool) -> bool:
        """Say whether the thread is ours; *otherwise* is the answer for one that we know nothing of."""
        return (await self._load()).get(place, otherwise)

    async def note(self, place: str, *, follow: bool) -> None:
        """Remember durably; raises StoreDown when it could not be stored."""
        async with self._writing:
            known = await self._load()
            if known.get(place) is follow:
                return
            changed = OrderedDict(known)
            changed.pop(place, None)
            changed[place] = follow
            while len(changed) > _KEPT:
                changed.popitem(last=False)
            await self._state.save(_NOTE, json.dumps(changed))
            self._known = changed

    async def _load(self) -> OrderedDict[str, bool]:
        if self._known is None:
            self._known = OrderedDict(json.loads(await self._state.load(_NOTE) or "{}"))
        return self._known
