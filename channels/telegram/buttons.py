"""Buttons below messages, and the answers to presses.

A button keeps turning until Telegram gets an answer to the press. The answer can carry a line that only the presser
sees, so a short private answer goes there; a later or longer one is sent like any private answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from telegram import Bot, InlineKeyboardButton, InlineKeyboardMarkup
from telegram.error import TelegramError

from channels.kit.parts import PendingPresses
from channels.telegram.api import describe_error
from channels.telegram.chats import TelegramChats
from channels.telegram.codec import callback_query_id, remaining_rows
from channels.telegram.rate_limits import TelegramRateLimits
from channels.telegram.reactions import TelegramReactions
from gateway.events import InboundMessage, MessageButton, MessagePart
from gateway.text import button_rows

log = structlog.get_logger(__name__)

_ALERT_LIMIT = 200  # characters of a line that comes with the answer


@dataclass(slots=True)
class _PendingPress:
    query: str
    message: InboundMessage
    rows: Sequence[Sequence[Mapping[str, Any]]]  # of buttons that stay when this one is settled
    is_open: bool = True  # Telegram still waits for an answer

    @property
    def chat(self) -> str:
        """Return the chat of the press."""
        return self.message.key.parent.chat


class TelegramButtons:
    """The pending presses of one bot."""

    def __init__(
        self, bot: Bot, chats: TelegramChats, reactions: TelegramReactions, limits: TelegramRateLimits, *, wait: float
    ) -> None:
        """Answer through *bot*; a press without an answer of the turn is answered after *wait* seconds."""
        self._bot = bot
        self._chats = chats
        self._reactions = reactions
        self._limits = limits
        self._wait = wait
        self._presses: PendingPresses[_PendingPress] = PendingPresses()

    def hold_press(self, update: Mapping[str, Any], message: InboundMessage) -> None:
        """Hold a press that was accepted."""
        press = _PendingPress(callback_query_id(update), message, remaining_rows(update))
        self._presses.hold(message, press)
        self._reactions.tasks.start(partial(self._close_later, press), "button")

    def refuse_press(self, update: Mapping[str, Any], message: InboundMessage, line: str) -> None:
        """Show *line* to the presser alone."""
        answer = partial(self._bot.answer_callback_query, callback_query_id(update), line[:_ALERT_LIMIT])
        self._reactions.start_call(partial(answer, show_alert=True), "button", chat=message.key.parent.chat)

    async def send_alert(self, part: MessagePart, text: str) -> str:
        """Show *part* to the presser with the answer to the press; return "" if that is not possible."""
        press = self._presses.get(part)
        if press is None or not press.is_open or not part.visible_to or len(text) > _ALERT_LIMIT or part.choices:
            return ""
        press.is_open = False
        try:
            await self._limits.acquire(part.key)
            await self._bot.answer_callback_query(press.query, text, show_alert=True)
        except TelegramError as error:
            log.info("telegram.press_unanswered", reason=describe_error(error))
            return ""
        return f"press:{press.query}"

    def settle(self, part: MessagePart) -> None:
        """Close the press that *part* answers; remove its row of buttons if *part* settles the question."""
        press = self._presses.take(part)
        if press is None:
            return
        self._close(press)
        if part.settles and press.message.reply_to:
            self._reactions.start_call(partial(self._redraw, press), "buttons", chat=press.chat)

    async def _close_later(self, press: _PendingPress) -> None:
        await asyncio.sleep(self._wait)
        self._close(press)

    def _close(self, press: _PendingPress) -> None:
        if press.is_open:
            press.is_open = False
            self._reactions.start_call(partial(self._bot.answer_callback_query, press.query), "button", chat=press.chat)

    async def _redraw(self, press: _PendingPress) -> None:
        rows = [
            [InlineKeyboardButton(str(button["text"]), callback_data=str(button["callback_data"])) for button in row]
            for row in press.rows
        ]
        await self._bot.edit_message_reply_markup(
            await self._chats.resolve_chat(press.message.key),
            int(press.message.reply_to),
            reply_markup=InlineKeyboardMarkup(rows) if rows else None,
        )


def keyboard(choices: Sequence[MessageButton]) -> InlineKeyboardMarkup | None:
    """Return *choices* as Telegram's buttons; a press sends back the command."""
    if not choices:
        return None
    return InlineKeyboardMarkup(
        [[InlineKeyboardButton(each.label, callback_data=each.command) for each in row] for row in button_rows(choices)]
    )
