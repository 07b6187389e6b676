"""What has to be known of groups beyond the message: where they moved, which album is ours."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import replace

import structlog

from gateway.errors import StoreUnavailable
from gateway.events import ChatKind, InboundMessage, SessionKey
from gateway.ports import ChannelState

log = structlog.get_logger(__name__)

_NOTE = "moved"  # the note that holds old id -> new id, as JSON
_KEPT = 1000  # albums that are remembered


class TelegramChats:
    """Facts of one bot's groups."""

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._albums: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._moved: dict[str, int] | None = None

    async def resolve_chat(self, key: SessionKey) -> int:
        """Return the chat in which *key* is now: a group that became a supergroup has another id."""
        if self._moved is None:
            self._moved = await self._load()
        return self._moved.get(key.parent.chat, int(key.parent.chat))

    async def has_moved(self, old: int, new: int) -> None:
        """Remember that the group *old* is *new*; said once. Raises StoreUnavailable before anything is known."""
        if self._moved is None:
            self._moved = await self._load()
        if self._moved.get(str(old)) == new:
            return
        log.warning(
            "telegram.group_moved",
            old=str(old),
            new=str(new),
            mend="the group became a supergroup; where allow_from or chats name the old id, name the new one",
        )
        self._moved = {**self._moved, str(old): new}
        try:
            await self._state.save(_NOTE, json.dumps(self._moved))
        except StoreUnavailable:
            log.warning("telegram.note_not_saved")  # Telegram says it again at the next send

    async def _load(self) -> dict[str, int]:
        note = await self._state.load(_NOTE)
        return {str(old): int(new) for old, new in json.loads(note).items()} if note else {}

    def with_album(self, message: InboundMessage) -> InboundMessage:
        """Only one part of an album has the words that name us: the others are addressed with it."""
        if not message.album or message.chat_kind is not ChatKind.GROUP:
            return message
        album = (message.key.chat, message.album)
        if message.is_addressed:
            self._albums[album] = None
            while len(self._albums) > _KEPT:
                self._albums.popitem(last=False)
        return replace(message, is_addressed=album in self._albums)
