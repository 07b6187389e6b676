"""Small things that show a message was taken: a reaction, a line. None of them is worth a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog
from telegram import Bot, LinkPreviewOptions
from telegram.error import TelegramError

from channels.reactions import AckReaction, AckReactions
from channels.telegram.api import describe_error, send_failure
from channels.telegram.chats import TelegramChats
from channels.telegram.rate_limit import TelegramRateLimits
from gateway.events import InboundMessage, MessagePart, OutboundKind, SessionKey
from gateway.ports import ChannelContext

log = structlog.get_logger(__name__)


class TelegramReactions:
    """Made beside the way of a message, in order, and never raising."""

    def __init__(self, context: ChannelContext, bot: Bot, groups: TelegramChats, pace: TelegramRateLimits) -> None:
        self._bot = bot
        self._groups = groups
        self._pace = pace
        self._reaction: str = context.settings.reaction
        self.reactions = AckReactions(context, self._react)
        self._tasks: set[asyncio.Task[None]] = set()

    def acknowledge(self, heard: InboundMessage) -> None:
        """Show that *heard* was admitted and stored."""
        if self._reaction and heard.message_id and not heard.revision and not _is_command(heard):
            self.reactions.add(heard.key, heard.key.parent.chat, heard.message_id)

    def answered(self, part: MessagePart) -> None:
        """Take the reactions from what *part* answers, and from whatever else of its session has ended."""
        if part.kind is not OutboundKind.PREVIEW:
            self.reactions.settle(part.key)

    def tell(self, key: SessionKey, line: str) -> None:
        """Say one line in the chat, outside of every turn."""
        self.spawn(self._tell(key, line), "line")

    def spawn(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Do *work* in the background, until `close`."""
        task = asyncio.create_task(work, name=f"telegram {what}")
        self._tasks.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._tasks.discard)

    async def run_ignoring_errors(self, call: Callable[[], Awaitable[object]]) -> None:
        """Make a call whose failure costs nobody anything."""
        try:
            await self._pace.wait_turn()
            await call()
        except TelegramError as error:
            log.info("telegram.gesture_failed", reason=describe_error(error))

    async def close(self) -> None:
        """End what is under way."""
        await self.reactions.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _react(self, reaction: AckReaction, is_on: bool) -> None:
        chat = await self._groups.resolve_chat(reaction.key)
        await self._pace.wait_turn()
        try:
            emoji = self._reaction if is_on else None
            await self._bot.set_message_reaction(chat, int(reaction.message_id), emoji)
        except TelegramError as error:
            raise send_failure(error, is_formatted=False) from None

    async def _tell(self, key: SessionKey, line: str) -> None:
        chat = await self._groups.resolve_chat(key)
        thread = int(key.thread) if key.thread else None
        quiet = LinkPreviewOptions(is_disabled=True)
        await self.run_ignoring_errors(
            lambda: self._bot.send_message(chat, line, message_thread_id=thread, link_preview_options=quiet)
        )


def _is_command(heard: InboundMessage) -> bool:
    return heard.command.startswith(("/", "!"))
