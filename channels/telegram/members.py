"""The admins of groups, asked of Telegram only when a sender makes a decision.

A failed look-up makes no sender an admin.
"""

from __future__ import annotations

from dataclasses import replace

import structlog
from telegram import Bot

from channels.kit.lookups import LookupCache
from channels.telegram.api import map_send_errors
from channels.telegram.chats import TelegramChats
from gateway.errors import SendFailed
from gateway.events import ChatKind, InboundMessage, Sender

log = structlog.get_logger(__name__)

_TIMEOUT = 3.0  # seconds; the sender of a command waits for it
_FAILURE_LIFETIME = 30.0  # seconds in which a failed look-up is not repeated
_SIZE = 1_000  # groups


class TelegramMembers:
    """The admins of one bot's groups."""

    def __init__(self, bot: Bot, chats: TelegramChats) -> None:
        self._bot = bot
        self._chats = chats
        self.admins: LookupCache[int, frozenset[str]] = LookupCache(
            "telegram admins", self._fetch_admins, size=_SIZE, timeout=_TIMEOUT, failure_lifetime=_FAILURE_LIFETIME
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
