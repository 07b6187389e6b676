"""Small things that show a message was taken: a reaction, a line. None of them is worth a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import structlog
from telegram import Bot, LinkPreviewOptions
from telegram.error import TelegramError

from channels.telegram.groups import Groups
from channels.telegram.pace import Pace
from channels.telegram.wire import described
from gateway.events import InboundMessage, OutboundKind, Part, SessionKey

log = structlog.get_logger(__name__)

_MOST_SIGNS = 100  # messages of one chat whose reaction is remembered


class Gestures:
    """Made beside the way of a message, in order, and never raising."""

    def __init__(self, bot: Bot, groups: Groups, pace: Pace, reaction: str) -> None:
        self._bot = bot
        self._groups = groups
        self._pace = pace
        self._reaction = reaction
        self._signs: dict[SessionKey, list[int]] = {}  # messages that show our reaction, until they are answered
        self._in_order = asyncio.Lock()  # or a reaction could be put after it was taken away
        self._tasks: set[asyncio.Task[None]] = set()

    def taken(self, heard: InboundMessage) -> None:
        """Show that *heard* was admitted and stored."""
        if self._reaction and heard.message_id and not heard.revision and not _is_command(heard):
            self.spawn(self._react(heard.key, int(heard.message_id)), "reaction")

    def answered(self, part: Part) -> None:
        """Take the reaction from what *part* answers, and from what was said before it."""
        if self._reaction and part.kind is not OutboundKind.PREVIEW and part.reply_to.isdecimal():
            self.spawn(self._unreact(part.key, int(part.reply_to)), "reaction")

    def tell(self, key: SessionKey, line: str) -> None:
        """Say one line in the chat, outside of every turn."""
        self.spawn(self._tell(key, line), "line")

    def spawn(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Do *work* in the background, until `close`."""
        task = asyncio.create_task(work, name=f"telegram {what}")
        self._tasks.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._tasks.discard)

    async def quietly(self, call: Callable[[], Awaitable[object]]) -> None:
        """Make a call whose failure costs nobody anything."""
        try:
            await self._pace.turn()
            await call()
        except TelegramError as error:
            log.info("telegram.gesture_failed", reason=described(error))

    async def close(self) -> None:
        """End what is under way."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _react(self, key: SessionKey, ident: int) -> None:
        async with self._in_order:
            self._signs[key] = [*self._signs.get(key, ()), ident][-_MOST_SIGNS:]
            chat = await self._groups.destination(key)
            await self.quietly(lambda: self._bot.set_message_reaction(chat, ident, self._reaction))

    async def _unreact(self, key: SessionKey, up_to: int) -> None:
        async with self._in_order:
            waiting = self._signs.pop(key, [])
            if later := [ident for ident in waiting if ident > up_to]:
                self._signs[key] = later
            chat = await self._groups.destination(key)
            for ident in waiting:
                if ident <= up_to:
                    await self.quietly(partial(self._bot.set_message_reaction, chat, ident, None))

    async def _tell(self, key: SessionKey, line: str) -> None:
        chat = await self._groups.destination(key)
        thread = int(key.thread) if key.thread else None
        quiet = LinkPreviewOptions(is_disabled=True)
        await self.quietly(
            lambda: self._bot.send_message(chat, line, message_thread_id=thread, link_preview_options=quiet)
        )


def _is_command(heard: InboundMessage) -> bool:
    return heard.command.startswith(("/", "!"))
