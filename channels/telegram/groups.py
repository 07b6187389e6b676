"""What has to be known of groups beyond the message: who their admins are, where they moved, which album is ours."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from dataclasses import replace

import structlog
from telegram import Bot
from telegram.error import TelegramError

from channels.telegram.wire import described
from gateway.errors import StoreDown
from gateway.events import ChatKind, InboundKind, InboundMessage, SessionKey
from gateway.ports import ChannelState

log = structlog.get_logger(__name__)

_NOTE = "moved"  # the note that holds old id -> new id, as JSON
_FRESH = 300.0  # seconds that a look-up of admins counts
_FRESH_FAILURE = 30.0
_KEPT = 1000  # groups and albums that are remembered


class Groups:
    """Facts of one bot's groups. Look-ups fail closed: who cannot be looked up is no admin."""

    def __init__(self, bot: Bot, state: ChannelState) -> None:
        self._bot = bot
        self._state = state
        self._admins: OrderedDict[str, tuple[float, frozenset[str]]] = OrderedDict()
        self._albums: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._moved: dict[str, int] | None = None

    async def with_facts(self, message: InboundMessage) -> InboundMessage:
        """Return *message* with what its update could not say."""
        if message.chat_kind is not ChatKind.GROUP:
            return message
        message = self._with_album(message)
        if message.sender.id and message.is_addressed and _decides(message):
            admins = await self._admins_of(message.key.parent.chat)
            message = replace(message, sender=replace(message.sender, is_admin=message.sender.id in admins))
        return message

    async def destination(self, key: SessionKey) -> int:
        """Return the chat in which *key* is now: a group that became a supergroup has another id."""
        if self._moved is None:
            self._moved = await self._load()
        return self._moved.get(key.parent.chat, int(key.parent.chat))

    async def has_moved(self, old: int, new: int) -> None:
        """Remember for good that the group *old* is *new*."""
        log.warning(
            "telegram.group_moved",
            old=str(old),
            new=str(new),
            mend="the group became a supergroup; where allow_from or chats name the old id, name the new one",
        )
        self._moved = {**(self._moved or {}), str(old): new}
        try:
            await self._state.save(_NOTE, json.dumps(self._moved))
        except StoreDown:
            log.warning("telegram.note_not_saved")  # Telegram says it again at the next send

    async def _load(self) -> dict[str, int]:
        note = await self._state.load(_NOTE)
        return {str(old): int(new) for old, new in json.loads(note).items()} if note else {}

    def _with_album(self, message: InboundMessage) -> InboundMessage:
        """Only one part of an album has the words that name us: the others are addressed with it."""
        if not message.album:
            return message
        album = (message.key.chat, message.album)
        if message.is_addressed:
            self._albums[album] = None
            while len(self._albums) > _KEPT:
                self._albums.popitem(last=False)
        return replace(message, is_addressed=album in self._albums)

    async def _admins_of(self, chat: str) -> frozenset[str]:
        now = asyncio.get_running_loop().time()
        until, known = self._admins.get(chat, (0.0, frozenset()))
        if now < until:
            return known
        fresh = _FRESH
        try:
            found = await self._bot.get_chat_administrators(int(chat), read_timeout=5.0)
            known = frozenset(str(member.user.id) for member in found)
        except TelegramError as error:
            log.info("telegram.admins_unknown", chat=chat, reason=described(error))
            known, fresh = frozenset(), _FRESH_FAILURE
        self._admins[chat] = (now + fresh, known)
        while len(self._admins) > _KEPT:
            self._admins.popitem(last=False)
        return known


def _decides(message: InboundMessage) -> bool:
    """Say whether it can matter that the sender is an admin: for commands and buttons."""
    return message.kind is InboundKind.BUTTON or message.text.lstrip().startswith(("/", "!", "@"))
