"""Read cursors: one per chat, and one for the account on each shard.

A cursor is a message id: everything up to it was accepted or rejected. Cursors may lag behind, because the journal
ignores repeated messages; they are never ahead.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from channels.discord.codec import snowflake_at
from channels.discord.shards import BotShard
from channels.kit.background import utc_now
from gateway.ports import ChannelState

OLDEST = timedelta(hours=24)  # older messages are not backfilled
_MARGIN = timedelta(minutes=1)  # between an event's own time and its arrival
_RECENT = 200  # chats of each kind that are read after a new session


class _RecentChats:
    """The most recently used chats of one kind, in order of use; saved when one is added."""

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
        while len(self.chats) > _RECENT:
            del self.chats[next(iter(self.chats))]


class DiscordReadCursors:
    """The read cursors of one shard."""

    def __init__(self, state: ChannelState, shard: BotShard) -> None:
        self._state = state
        self._shard = shard
        self._marks: dict[str, int] = {}
        self._unsaved: set[str] = set()
        self._stored: set[str] = set()  # chats with a stored cursor
        self._account = 0
        self._recents = (_RecentChats("direct"), _RecentChats(shard.note("used")))

    async def open(self) -> None:
        """Load the notes of an earlier run."""
        self._account = int(await self._state.load(self._shard.note("account")) or 0)
        for recent in self._recents:
            recent.chats = dict.fromkeys(json.loads(await self._state.load(recent.note) or "[]"))

    @property
    def direct(self) -> tuple[str, ...]:
        """The direct chats to read after a new session: Discord does not list them."""
        return tuple(self._recents[0].chats) if self._shard.has("") else ()

    @property
    def used(self) -> tuple[str, ...]:
        """The recently used chats of guilds, in which messages may have been edited."""
        return tuple(self._recents[1].chats)

    def is_in_use(self, chat: str) -> bool:
        """Return True if *chat* is in `used`."""
        return chat in self._recents[1].chats

    async def floor(self, chat: str) -> int:
        """Return the id after which to read *chat*; 0 on the very first start, which reads nothing."""
        if chat not in self._marks:
            noted = await self._state.load(f"mark/{chat}")
            self._marks[chat] = int(noted or 0)
            if noted:
                self._stored.add(chat)
        known = max(self._marks[chat], self._account)
        return max(known, snowflake_at(utc_now() - OLDEST)) if known else 0

    def covers(self, chat: str, newest: int) -> bool:
        """Return True if *chat*, whose newest message is *newest*, needs no reading as far as is known."""
        known = max(self._marks.get(chat, 0), self._account)
        return bool(known) and newest <= max(known, snowflake_at(utc_now() - OLDEST))

    def advance(self, chat: str, message_id: str, *, durably: bool) -> None:
        """Record that *chat* was processed up to *message_id*; *durably* False leaves no stored trace."""
        if int(message_id) > self._marks.get(chat, 0):
            self._marks[chat] = int(message_id)
            if durably:
                self._unsaved.add(chat)

    def note_used(self, chat: str, *, is_direct: bool) -> None:
        """Remember a chat in which a message was accepted."""
        self._recents[0 if is_direct else 1].use(chat)

    async def save(self) -> None:
        """Store what changed; raises StoreUnavailable."""
        await self._save_recents()
        for chat in list(self._unsaved):
            await self._save_one(chat)

    async def settle(self, chat: str) -> None:
        """Store a chat's first cursor at once: without one, a crash would lose the position."""
        if chat in self._unsaved and chat not in self._stored:
            await self._save_one(chat)
        await self._save_recents()

    async def _save_one(self, chat: str) -> None:
        mark = self._marks[chat]
        await self._state.save(f"mark/{chat}", str(mark))
        self._stored.add(chat)
        if self._marks[chat] == mark:
            self._unsaved.discard(chat)

    async def _save_recents(self) -> None:
        for recent in self._recents:
            if recent.is_new:
                await self._state.save(recent.note, json.dumps(list(recent.chats)))
                recent.is_new = False

    async def save_account(self, received_at: datetime) -> None:
        """Store that everything up to *received_at* was processed, in chats without a cursor too."""
        self._account = max(self._account, snowflake_at(received_at - _MARGIN))
        await self._state.save(self._shard.note("account"), str(self._account))
