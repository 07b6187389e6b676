"""Acknowledging reactions, single lines outside of any turn, buttons, and the command menu."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import structlog
from cachetools import FIFOCache
from telegram import Bot, BotCommand, InlineKeyboardButton, InlineKeyboardMarkup, LinkPreviewOptions
from telegram.error import TelegramError

from channels.kit.reactions import AckReaction, AckReactions, PendingPresses
from channels.telegram.api import describe_error, map_send_errors
from channels.telegram.chats import TelegramChats
from channels.telegram.parse import callback_query_id, remaining_rows
from channels.telegram.rate_limits import Decoration, TelegramRateLimits
from gateway.channel import ChannelContext
from gateway.errors import RetryLater
from gateway.events import InboundMessage, MessageButton, MessagePart, SessionKey
from gateway.i18n import LANGUAGES, load_catalogue, translate
from gateway.ports.channel import IntakeResult
from gateway.text import button_rows, render_plain

log = structlog.get_logger(__name__)


class TelegramReactions:
    """The reactions of one bot. Its methods return at once; failures are logged."""

    def __init__(self, context: ChannelContext, bot: Bot, chats: TelegramChats, limits: TelegramRateLimits) -> None:
        self._bot = bot
        self._chats = chats
        self._limits = limits
        self._emoji: str = context.settings.reaction
        self.acks = AckReactions(context, self._react)
        self.tasks = self.acks.tasks

    def acknowledge(self, message: InboundMessage, result: IntakeResult) -> None:
        """React to a message that was accepted; edits and commands get no reaction, nor do messages of a crowd."""
        is_command = message.command.startswith(("/", "!"))
        is_crowded = self._limits.calls.delay(reserve=Decoration.REACTION) > 0
        if self._emoji and message.message_id and not message.revision and not is_command and not is_crowded:
            self.acks.add(message.key, message.key.parent.chat, message.message_id, result)

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
        if seconds := self._limits.calls.try_acquire(reserve=Decoration.REACTION):
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


# -- buttons ---------------------------------------------------------------------------------------
# Buttons below messages, and the answers to presses.
#
# A button keeps turning until Telegram gets an answer to the press. The answer can carry a line that only the presser
# sees, so a short private answer goes there; a later or longer one is sent like any private answer.

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


# -- commands --------------------------------------------------------------------------------------
# The command menu of Telegram's apps.

_HELP = "commands.help_"
_LIMIT = 8
_FIRST = ("new", "stop", "status", "help", "queue", "retry", "timezone", "usage", "start")
_LONGEST = 256  # characters of a description


def commands() -> Sequence[str]:
    """Return the names of all commands: each has a help line in the catalogue."""
    names = (key.removeprefix(_HELP) for key in load_catalogue("en") if key.startswith(_HELP))
    return sorted(name for name in names if name != "title")


async def set_command_menu(bot: Bot, language: str) -> None:
    """Show the most useful commands in *language*, and in each supported language to apps that use it.

    Only menus that differ are sent. Failures are logged.
    """
    known = commands()
    names = [name for name in _FIRST if name in known] + [name for name in known if name not in _FIRST]
    try:
        await _set_menu(bot, names[:_LIMIT], language, None)
        for other in LANGUAGES:
            await _set_menu(bot, names[:_LIMIT], other, other)
    except TelegramError as error:
        log.info("telegram.menu_failed", reason=describe_error(error))


async def _set_menu(bot: Bot, names: Sequence[str], language: str, code: str | None) -> None:
    """Show *names* in *language* to apps in the language *code*; None means all apps without a menu for theirs."""
    menu = [BotCommand(name, render_plain(translate(f"{_HELP}{name}", language))[:_LONGEST]) for name in names]
    if list(await bot.get_my_commands(language_code=code)) != menu:
        await bot.set_my_commands(menu, language_code=code)
