"""Facts about groups that a message does not carry: their current id, their admins, and what was said in them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog
from cachetools import FIFOCache
from telegram import Bot

from channels.kit.chat_facts import LookupCache, is_from_member
from channels.telegram.api import map_send_errors
from gateway.errors import SendFailed, StoreUnavailable
from gateway.events import ChatKind, InboundKind, InboundMessage, Sender, SessionKey
from gateway.ports.channel import IntakeResult, IntakeVerdict

if TYPE_CHECKING:
    from gateway.store.records import SqlChannelState


log = structlog.get_logger(__name__)

_NOTE = "moved"  # the note that holds old id -> new id, as JSON
_ALBUMS = 1_000


class TelegramChats:
    """Facts about one bot's groups."""

    def __init__(self, state: SqlChannelState) -> None:
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


# -- members ---------------------------------------------------------------------------------------
# The admins of groups, asked of Telegram only when a sender makes a decision.
#
# A failed look-up makes no sender an admin.

_ADMINS_TIMEOUT = 3.0  # seconds; the sender of a command waits for it
_FAILURE_LIFETIME = 30.0  # seconds in which a failed look-up is not repeated
_ADMINS_SIZE = 1_000  # groups


class TelegramMembers:
    """The admins of one bot's groups."""

    def __init__(self, bot: Bot, chats: TelegramChats) -> None:
        self._bot = bot
        self._chats = chats
        self.admins: LookupCache[int, frozenset[str]] = LookupCache(
            "telegram admins",
            self._fetch_admins,
            size=_ADMINS_SIZE,
            timeout=_ADMINS_TIMEOUT,
            failure_lifetime=_FAILURE_LIFETIME,
        )

    async def sender(self, message: InboundMessage) -> Sender:
        """Return the sender of *message* with their current rights; see `SupportsSenderLookup`.

        A sender who writes as the group itself has no id and is never admitted.
        """
        if message.chat_kind is not ChatKind.GROUP or not message.sender.id:
            return message.sender
        admins = await self.admins_of(await self._chats.resolve_chat(message.key))
        return replace(message.sender, is_admin=message.sender.id in admins)

    async def admins_of(self, chat: int) -> frozenset[str]:
        """Return the user ids of a group's owner and admins; empty if the look-up fails."""
        try:
            return await self.admins.get(chat)
        except SendFailed as error:
            log.info("telegram.admins_unknown", chat=str(chat), reason=str(error))
            return frozenset()

    async def _fetch_admins(self, chat: int) -> frozenset[str]:
        with map_send_errors():
            members = await self._bot.get_chat_administrators(chat, read_timeout=self.admins.timeout)
        return frozenset(str(member.user.id) for member in members)


# -- history ---------------------------------------------------------------------------------------
# Group messages that were not addressed to the bot, since its start: Telegram gives bots no history.
#
# They are kept in memory only, within limits.

_CHAT_LIMIT = 100  # messages
_TOTAL_LIMIT = 5_000
_HISTORY_LIFETIME = timedelta(hours=24)


class TelegramHistory:
    """The newest messages of each group and topic by id, as they read after their last edit."""

    def __init__(self, *, chat_limit: int = _CHAT_LIMIT, total_limit: int = _TOTAL_LIMIT) -> None:
        self._chat_limit = chat_limit
        self._total_limit = total_limit
        self._chats: OrderedDict[SessionKey, OrderedDict[str, InboundMessage]] = OrderedDict()
        self._count = 0

    def update(self, message: InboundMessage, result: IntakeResult) -> None:
        """Keep a group message that its members wrote to each other; drop one that was edited to be for the bot."""
        if message.chat_kind is not ChatKind.GROUP or message.kind is not InboundKind.MESSAGE:
            return
        if result.verdict is IntakeVerdict.REJECTED and is_from_member(result):
            self.add(message)
        else:
            self.remove(message)

    def add(self, message: InboundMessage) -> None:
        """Keep *message* and drop the oldest of its chat, or the chat that has been quiet for longest, if too many."""
        if not message.message_id:
            return
        messages = self._chats.setdefault(message.key, OrderedDict())
        self._chats.move_to_end(message.key)
        if message.message_id not in messages:
            self._count += 1
        messages[message.message_id] = message
        if len(messages) > self._chat_limit:
            messages.popitem(last=False)
            self._count -= 1
        while self._count > self._total_limit:
            _, quiet = self._chats.popitem(last=False)
            self._count -= len(quiet)

    def remove(self, message: InboundMessage) -> None:
        """Drop the message with the id of *message*."""
        if self._chats.get(message.key, OrderedDict()).pop(message.message_id, None) is not None:
            self._count -= 1

    def album_of(self, message: InboundMessage) -> Sequence[InboundMessage]:
        """Return the other parts of the album of *message*, oldest first."""
        parts = [
            each
            for each in self._chats.get(message.key, OrderedDict()).values()
            if message.album and each.album == message.album and each.message_id != message.message_id
        ]
        return sorted(parts, key=_order)

    def messages_before(
        self, message: InboundMessage, *, since: datetime | None, limit: int
    ) -> Sequence[InboundMessage]:
        """Return the messages of the same chat before *message*, oldest first; none is older than a day."""
        oldest = message.sent_at - _HISTORY_LIFETIME
        matches = [
            each
            for each in self._chats.get(message.key, OrderedDict()).values()
            if _order(each) < _order(message) and each.sent_at > oldest and (since is None or each.sent_at > since)
        ]
        return sorted(matches, key=_order)[-limit:]


def _order(message: InboundMessage) -> int:
    return int(message.message_id) if message.message_id.isdecimal() else 0
