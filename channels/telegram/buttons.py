"""Buttons below messages: what is drawn, and what becomes of a press.

Telegram wants each press answered soon, or the button keeps turning. The answer can carry a line that its presser alone
sees, so a private answer goes there; one that comes later, or is longer, goes the way of all private answers.
What is held here is for that moment only: after a restart a button stays, and pressing it again is told what happened.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from telegram import Bot, InlineKeyboardButton, InlineKeyboardMarkup
from telegram.error import TelegramError

from channels.telegram.api import describe_error
from channels.telegram.chats import TelegramChats
from channels.telegram.codec import callback_query_id, rows_left
from channels.telegram.rate_limit import TelegramRateLimits
from channels.telegram.reactions import TelegramReactions
from gateway.events import InboundMessage, MessageButton, MessagePart, turn_id
from gateway.text import button_rows

log = structlog.get_logger(__name__)

_LONGEST = 200  # characters of a line that comes with the answer
_KEPT = 500


@dataclass(slots=True)
class _PendingPress:
    query: str
    message: InboundMessage
    left: Sequence[Sequence[Mapping[str, Any]]]  # rows of buttons that stay when this one is done
    is_open: bool = True  # Telegram still waits for an answer


class TelegramButtons:
    """The presses of one bot that are being answered."""

    def __init__(
        self, bot: Bot, groups: TelegramChats, gestures: TelegramReactions, pace: TelegramRateLimits, *, turns: float
    ) -> None:
        """Answer through *bot*; a button turns for *turns* seconds at most."""
        self._bot = bot
        self._groups = groups
        self._gestures = gestures
        self._pace = pace
        self._turns = turns
        self._held: OrderedDict[str, _PendingPress] = OrderedDict()  # by the turn that answers it

    def hold_press(self, update: Mapping[str, Any], heard: InboundMessage) -> None:
        """Hold a press that was admitted and stored."""
        press = _PendingPress(callback_query_id(update), heard, rows_left(update))
        self._held[turn_id(heard)] = press
        while len(self._held) > _KEPT:
            self._held.popitem(last=False)
        self._gestures.spawn(self._answer_late(press), "button")

    def refuse_press(self, update: Mapping[str, Any], line: str) -> None:
        """Tell whoever pressed, and nobody else, the one line they may be shown."""
        query = callback_query_id(update)
        self._gestures.spawn(
            self._gestures.run_ignoring_errors(
                lambda: self._bot.answer_callback_query(query, line[:_LONGEST], show_alert=True)
            ),
            "button",
        )

    async def tell(self, part: MessagePart, text: str) -> str:
        """Show *part* to whoever pressed, with the answer to the press; "" where that cannot be (any more)."""
        press = self._held.get(part.turn)
        if press is None or not press.is_open or not part.visible_to or len(text) > _LONGEST or part.choices:
            return ""
        press.is_open = False
        try:
            await self._pace.wait_turn()
            await self._bot.answer_callback_query(press.query, text, show_alert=True)
        except TelegramError as error:
            log.info("telegram.press_unanswered", reason=describe_error(error))
            return ""
        return f"press:{press.query}"

    def answered(self, part: MessagePart) -> None:
        """Notice that the answer to a press stands: its row of buttons goes, if *part* says that it is settled."""
        press = self._held.pop(part.turn, None)
        if press is None:
            return
        if press.is_open:
            press.is_open = False
            self._gestures.spawn(
                self._gestures.run_ignoring_errors(lambda: self._bot.answer_callback_query(press.query)), "button"
            )
        if part.settles and press.message.reply_to:
            self._gestures.spawn(self._redraw(press), "buttons")

    async def _answer_late(self, press: _PendingPress) -> None:
        await asyncio.sleep(self._turns)
        if press.is_open:
            press.is_open = False
            await self._gestures.run_ignoring_errors(lambda: self._bot.answer_callback_query(press.query))

    async def _redraw(self, press: _PendingPress) -> None:
        chat = await self._groups.resolve_chat(press.message.key)
        buttons = [
            [InlineKeyboardButton(str(each["text"]), callback_data=str(each["callback_data"])) for each in row]
            for row in press.left
        ]
        await self._gestures.run_ignoring_errors(
            lambda: self._bot.edit_message_reply_markup(
                chat,
                int(press.message.reply_to),
                reply_markup=InlineKeyboardMarkup(buttons) if buttons else None,
            )
        )


def keyboard(choices: Sequence[MessageButton]) -> InlineKeyboardMarkup | None:
    """Return *choices* as Telegram's buttons; the command is what a press sends back."""
    if not choices:
        return None
    return InlineKeyboardMarkup(
        [[InlineKeyboardButton(each.label, callback_data=each.command) for each in row] for row in button_rows(choices)]
    )
