"""Acknowledging reactions, and single lines outside of any turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

from telegram import Bot, LinkPreviewOptions

from channels.kit.reactions import AckReaction, AckReactions
from channels.telegram.api import map_send_errors
from channels.telegram.chats import TelegramChats
from channels.telegram.rate_limits import Decoration, TelegramRateLimits
from gateway.errors import RetryLater
from gateway.events import InboundMessage, SessionKey
from gateway.ports import ChannelContext


class TelegramReactions:
    """The reactions of one bot. Its methods return at once; failures are logged."""

    def __init__(self, context: ChannelContext, bot: Bot, chats: TelegramChats, limits: TelegramRateLimits) -> None:
        self._bot = bot
        self._chats = chats
        self._limits = limits
        self._emoji: str = context.settings.reaction
        self.acks = AckReactions(context, self._react)
        self.tasks = self.acks.tasks

    def acknowledge(self, message: InboundMessage, *, is_repeated: bool) -> None:
        """React to a message that was accepted; edits and commands get no reaction, nor do messages of a crowd."""
        is_command = message.command.startswith(("/", "!"))
        is_crowded = self._limits.calls.delay(reserve=Decoration.REACTION) > 0
        if self._emoji and message.message_id and not message.revision and not is_command and not is_crowded:
            self.acks.add(message.key, message.key.parent.chat, message.message_id, is_repeated=is_repeated)

    def send_line(self, key: SessionKey, line: str) -> None:
        """Send one line to the chat."""
        self.start_call(partial(self._send_line, key, line), "line", chat=key.parent.chat)

    def start_call(self, call: Callable[[], Awaitable[object]], name: str, *, chat: str) -> None:
        """Make *call* in the background, as one of the calls of *chat*."""
        self.tasks.start(partial(self._call, call, chat), name)

    async def _call(self, call: Callable[[], Awaitable[object]], chat: str) -> None:
        await self._limits.calls.acquire(chat)
        with map_send_errors():
            await call()

    async def _react(self, reaction: AckReaction, is_on: bool) -> None:
        chat, emoji = await self._chats.resolve_chat(reaction.key), self._emoji if is_on else None
        if seconds := self._limits.try_acquire_call(Decoration.REACTION):
            raise RetryLater(timedelta(seconds=seconds), "answers need the bot's calls")
        with map_send_errors():
            await self._bot.set_message_reaction(chat, int(reaction.message_id), emoji)

    async def _send_line(self, key: SessionKey, line: str) -> None:
        await self._bot.send_message(
            await self._chats.resolve_chat(key),
            line,
            message_thread_id=int(key.thread) if key.thread else None,
            link_preview_options=LinkPreviewOptions(is_disabled=True),
        )
