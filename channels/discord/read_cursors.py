"""How far each chat was handed over: one durable mark per chat, and one for the account.

A mark is a message id: everything up to it was taken in or refused. Marks may lag behind, since the journal
knows what comes twice; they are never ahead.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta

from channels.discord.codec import snowflake_at
from gateway.ports import ChannelState

OLDEST = timedelta(hours=24)  # what was said longer ago is not read back
_MARGIN = timedelta(minutes=1)  # between an event's own time and our hearing of it
_MOST_USED = 200  # chats of each kind that are read after a new session, the last used ones


class _RecentChats:
    """The chats of one kind that were used last, in order of use; saved when one joins."""

    def __init__(self, note: str) -> None:
        self.note = note
        self.chats: dict[str, None] = {}
        self.is_new = False

    def use(self, chat: str) -> None:
        if next(reversed(self.chats), None) == chat:
            return
        self.is_new = self.is_new or chat not in self.chats
        self.chats.pop(chat, None)
        self.chats[chat] = None
        while len(self.chats) > _MOST_USED:
            del self.chats[next(iter(self.chats))]


class DiscordReadCursors:
    """The notes of one block."""

    def __init__(self, state: ChannelState, now: Callable[[], datetime]) -> None:
        self._state = state
        self._now = now
        self._marks: dict[str, int] = {}
        self._unsaved: set[str] = set()
        self._lasting: set[str] = set()  # chats that have a durable mark
        self._account = 0
        self._recents = (_RecentChats("direct"), _RecentChats("used"))

    async def open(self) -> None:
        """Read what an earlier run noted."""
        self._account = int(await self._state.load("account") or 0)
        for recent in self._recents:
            recent.chats = dict.fromkeys(json.loads(await self._state.load(recent.note) or "[]"))

    @property
    def direct(self) -> tuple[str, ...]:
        """The direct chats to read after a new session: Discord lists none."""
        return tuple(self._recents[0].chats)

    @property
    def used(self) -> tuple[str, ...]:
        """The chats of servers that were used last: what was answered there may have been edited meanwhile."""
        return tuple(self._recents[1].chats)

    def is_in_use(self, chat: str) -> bool:
        """Say whether *chat* is one of `used`."""
        return chat in self._recents[1].chats

    async def floor(self, chat: str) -> int:
        """Return the id after which *chat* is to be read; 0 on the very first start: nothing is."""
        if chat not in self._marks:
            noted = await self._state.load(f"mark/{chat}")
            self._marks[chat] = int(noted or 0)
            if noted:
                self._lasting.add(chat)
        known = max(self._marks[chat], self._account)
        return max(known, snowflake_at(self._now() - OLDEST)) if known else 0

    def covers(self, chat: str, newest: int) -> bool:
        """Say whether *chat*, whose newest message is *newest*, needs no reading, as far as is known without asking."""
        known = max(self._marks.get(chat, 0), self._account)
        return bool(known) and newest <= max(known, snowflake_at(self._now() - OLDEST))

    def advance(self, chat: str, ident: str, *, durably: bool) -> None:
        """Note that *chat* was handed over up to *ident*; what was refused leaves no durable trace."""
        if int(ident) > self._marks.get(chat, 0):
            self._marks[chat] = int(ident)
            if durably:
                self._unsaved.add(chat)

    def note_used(self, chat: str, *, is_direct: bool) -> None:
        """Remember a chat in which we were spoken to."""
        self._recents[0 if is_direct else 1].use(chat)

    async def save(self) -> None:
        """Write what changed; raises StoreUnavailable."""
        await self._save_recents()
        for chat in list(self._unsaved):
            await self._save_one(chat)

    async def settle(self, chat: str) -> None:
        """Write a chat's first mark at once: without one, nobody would know after a crash where to read on."""
        if chat in self._unsaved and chat not in self._lasting:
            await self._save_one(chat)
        await self._save_recents()

    async def _save_one(self, chat: str) -> None:
        mark = self._marks[chat]
        await self._state.save(f"mark/{chat}", str(mark))
        self._lasting.add(chat)
        if self._marks[chat] == mark:
            self._unsaved.discard(chat)

    async def _save_recents(self) -> None:
        for recent in self._recents:
            if recent.is_new:
                await self._state.save(recent.note, json.dumps(list(recent.chats)))
                recent.is_new = False

    async def save_account(self, heard: datetime) -> None:
        """Note that everything up to *heard* was handed over, in chats that have no mark too."""
        self._account = max(self._account, snowflake_at(heard - _MARGIN))
        await self._state.save("account", str(self._account))
