"""Buttons below messages, and the answers to presses.

A button keeps turning until Telegram gets an answer to the press. The answer can carry a line that only the presser
sees, so a short private answer goes there; a later or longer one is sent like any private answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import structlog
from cachetools import FIFOCache
from telegram import Bot, InlineKeyboardButton, InlineKeyboardMarkup
from telegram.error import TelegramError

from channels.kit.pending_responses import PendingPresses
from channels.telegram.api import describe_error
from channels.telegram.chats import TelegramChats
from channels.telegram.codec import callback_query_id, remaining_rows
from channels.telegram.rate_limits import TelegramRateLimits
from channels.telegram.reactions import TelegramReactions
from gateway.events import InboundMessage, MessageButton, MessagePart, SessionKey
from gateway.ports import ChannelContext
from gateway.text import button_rows

log = structlog.get_logger(__name__)

_LIFETIME = timedelta(days=1)
_ANSWERED = 500
_ALERT_LIMIT = 200  # characters of a line that comes with the answer


@dataclass(frozen=True, slots=True)
class _TelegramPress:
    query: str
    key: str  # of the press's message
    message_id: str  # of the message whose button was pressed
    rows: str  # of buttons that stay once it is settled: their texts and data, as JSON


class TelegramButtons:
    """The pending presses of one bot, by turn."""

    def __init__(
        self,
        context: ChannelContext,
        bot: Bot,
        chats: TelegramChats,
        reactions: TelegramReactions,
        limits: TelegramRateLimits,
        *,
        wait: float,
    ) -> None:
        """Answer through *bot*; a press without an answer of the turn is answered after *wait* seconds."""
        self._bot = bot
        self._chats = chats
        self._reactions = reactions
        self._limits = limits
        self._wait = wait
        self.presses = PendingPresses(context, _TelegramPress, lifetime=_LIFETIME, tasks=reactions.tasks, end=self._end)
        self._answered: FIFOCache[str, bool] = FIFOCache(_ANSWERED)  # queries that this worker has answered

    async def hold_press(self, update: Mapping[str, Any], message: InboundMessage) -> None:
        """Hold a press that was accepted; raises StoreUnavailable."""
        rows = json.dumps(
            [[[str(each["text"]), str(each["callback_data"])] for each in row] for row in remaining_rows(update)]
        )
        press = _TelegramPress(callback_query_id(update), str(message.key), message.reply_to, rows)
        is_settled = await self.presses.hold(message, press)
        self._reactions.tasks.start(partial(self._close_later, press), "button")
        if is_settled:
            self._redraw(press)

    def refuse_press(self, update: Mapping[str, Any], message: InboundMessage, line: str) -> None:
        """Show *line* to the presser alone."""
        answer = partial(self._bot.answer_callback_query, callback_query_id(update), line[:_ALERT_LIMIT])
        self._reactions.start_call(partial(answer, show_alert=True), "button", chat=message.key.parent.chat)

    async def send_alert(self, part: MessagePart, text: str) -> str:
        """Show *part* to the presser with the answer to the press; return "" if that is not possible."""
        if not part.visible_to or len(text) > _ALERT_LIMIT or part.choices:
            return ""
        press = await self.presses.get(part)
        if press is None or press.query in self._answered:
            return ""
        self._answered[press.query] = True
        try:
            await self._limits.acquire(part.key)
            await self._bot.answer_callback_query(press.query, text, show_alert=True)
        except TelegramError as error:
            log.info("telegram.press_unanswered", reason=describe_error(error))
            return ""
        return f"press:{press.query}"

    async def _end(self, press: _TelegramPress, is_settled: bool) -> None:
        self._close(press)
        if is_settled:
            self._redraw(press)

    async def _close_later(self, press: _TelegramPress) -> None:
        await asyncio.sleep(self._wait)
        self._close(press)

    def _close(self, press: _TelegramPress) -> None:
        if press.query not in self._answered:
            self._answered[press.query] = True
            chat = SessionKey.parse(press.key).parent.chat
            self._reactions.start_call(partial(self._bot.answer_callback_query, press.query), "button", chat=chat)

    def _redraw(self, press: _TelegramPress) -> None:
        if press.message_id:
            chat = SessionKey.parse(press.key).parent.chat
            self._reactions.start_call(partial(self._set_rows, press), "buttons", chat=chat)

    async def _set_rows(self, press: _TelegramPress) -> None:
        rows = [
            [InlineKeyboardButton(text, callback_data=data) for text, data in row] for row in json.loads(press.rows)
        ]
        await self._bot.edit_message_reply_markup(
            await self._chats.resolve_chat(SessionKey.parse(press.key)),
            int(press.message_id),
            reply_markup=InlineKeyboardMarkup(rows) if rows else None,
        )


def keyboard(choices: Sequence[MessageButton]) -> InlineKeyboardMarkup | None:
    """Return *choices* as Telegram's buttons; a press sends back the command."""
    if not choices:
        return None
    return InlineKeyboardMarkup(
        [[InlineKeyboardButton(each.label, callback_data=each.command) for each in row] for row in button_rows(choices)]
    )
