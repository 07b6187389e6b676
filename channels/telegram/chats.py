"""Facts about groups that a message does not carry: their current id, and albums that are addressed to the bot."""

from __future__ import annotations

import json
from dataclasses import replace

import structlog
from cachetools import FIFOCache

from gateway.errors import StoreUnavailable
from gateway.events import ChatKind, InboundMessage, SessionKey
from gateway.ports import ChannelState

log = structlog.get_logger(__name__)

_NOTE = "moved"  # the note that holds old id -> new id, as JSON
_ALBUMS = 1_000


class TelegramChats:
    """Facts about one bot's groups."""

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._albums: FIFOCache[tuple[str, str], None] = FIFOCache(_ALBUMS)  # those addressed to the bot
        self._migrations: dict[str, int] | None = None

    async def resolve_chat(self, key: SessionKey) -> int:
        """Return the current id of the chat of *key*: a group that became a supergroup has another one."""
        if not key.parent.chat.startswith("-"):
            return int(key.parent.chat)  # a direct chat never moves; owners are told there while the store hangs
        return (await self._load()).get(key.parent.chat, int(key.parent.chat))

    async def save_migration(self, old: int, new: int) -> None:
        """Remember that the group *old* is now *new*; idempotent. Raises StoreUnavailable if the note is unread."""
        migrations = await self._load()
        if migrations.get(str(old)) == new:
            return
        log.warning(
            "telegram.group_moved",
            old=str(old),
            new=str(new),
            mend="the group became a supergroup; where allow_from or chats name the old id, name the new one",
        )
        self._migrations = {**migrations, str(old): new}
        try:
            await self._state.save(_NOTE, json.dumps(self._migrations))
        except StoreUnavailable:
            log.warning("telegram.note_not_saved")  # Telegram says it again at the next send

    def address_album(self, message: InboundMessage) -> InboundMessage:
        """Return *message*, addressed to the bot if its album is: only one part carries the words that name it."""
        if not message.album or message.chat_kind is not ChatKind.GROUP:
            return message
        album = (message.key.chat, message.album)
        if message.is_addressed:
            self._albums[album] = None
        return replace(message, is_addressed=album in self._albums)

    async def _load(self) -> dict[str, int]:
        if self._migrations is None:
            note = await self._state.load(_NOTE)
            self._migrations = {str(old): int(new) for old, new in json.loads(note or "{}").items()}
        return self._migrations
