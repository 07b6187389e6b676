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
_MOST_DIRECT = 200  # direct chats that are read after a new session, the last used ones


class Marks:
    """The notes of one block."""

    def __init__(self, state: ChannelState, now: Callable[[], datetime]) -> None:
        self._state = state
        self._now = now
        self._marks: dict[str, int] = {}
        self._unsaved: set[str] = set()
        self._lasting: set[str] = set()  # chats that have a durable mark
        self._account = 0
        self._direct: dict[str, None] = {}  # in order of use
        self._is_new_direct = False

    async def open(self) -> None:
        """Read what an earlier run noted."""
        self._account = int(await self._state.load("account") or 0)
        self._direct = dict.fromkeys(json.loads(await self._state.load("direct") or "[]"))

    @property
    def direct(self) -> tuple[str, ...]:
        """The direct chats to read after a new session: Discord lists none."""
        return tuple(self._direct)

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

    def note_direct(self, chat: str) -> None:
        """Remember a direct chat."""
        if next(reversed(self._direct), None) == chat:
            return
        self._is_new_direct = self._is_new_direct or chat not in self._direct
        self._direct.pop(chat, None)
        self._direct[chat] = None
        while len(self._direct) > _MOST_DIRECT:
            del self._direct[next(iter(self._direct))]

    async def save(self) -> None:
        """Write what changed; raises StoreDown."""
        if self._is_new_direct:
            await self._save_direct()
        for chat in list(self._unsaved):
            await self._save_one(chat)

    async def settle(self, chat: str) -> None:
        """Write a chat's first mark at once: without one, nobody would know after a crash where to read on."""
        if chat in self._unsaved and chat not in self._lasting:
            await self._save_one(chat)
        if self._is_new_direct:
            await self._save_direct()

    async def _save_one(self, chat: str) -> None:
        mark = self._marks[chat]
        await self._state.save(f"mark/{chat}", str(mark))
        self._lasting.add(chat)
        if self._marks[chat] == mark:
            self._unsaved.discard(chat)

    async def _save_direct(self) -> None:
        await self._state.save("direct", json.dumps(list(self._direct)))
        self._is_new_direct = False

    async def save_account(self, heard: datetime) -> None:
        """Note that everything up to *heard* was handed over, in chats that have no mark too."""
        self._account = max(self._account, snowflake_at(heard - _MARGIN))
        await self._state.save("account", str(self._account))
