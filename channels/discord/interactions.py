"""Acknowledging reactions, single lines to a sender, native commands, and buttons with their answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from channels.discord.api import DiscordApi
from channels.discord.parse import final_response, initial_response
from channels.discord.render import remaining_rows, render_buttons
from channels.discord.shards import BotShard
from channels.kit.background import utc_now
from channels.kit.reactions import AckReaction, AckReactions, PendingPresses, PendingResponses
from gateway.channel import ChannelContext
from gateway.errors import OutcomeUnknown, SendFailed, SendRefused
from gateway.events import ChatKind, InboundKind, InboundMessage, MessagePart
from gateway.i18n import FALLBACK, HELP, command_names, translate
from gateway.ports.channel import AcceptedMessage, IntakeResult, IntakeVerdict, channel_wide_key
from gateway.text import render_plain

if TYPE_CHECKING:
    from gateway.store.records import SqlChannelState


log = structlog.get_logger(__name__)

_FRESH = timedelta(minutes=10)  # a reaction on an older message would only surprise


def _chat_of(message: AcceptedMessage) -> str:
    """Return the Discord channel of a message. The one that starts a thread is beside it, not in it."""
    thread = message.key.thread
    return thread if thread and thread != message.message_id else message.key.parent.chat


class DiscordReactions:
    """The reactions of one channel. Its methods return at once; failures are logged."""

    def __init__(self, context: ChannelContext, api: DiscordApi) -> None:
        self._api = api
        self._emoji: str = context.settings.reaction
        self.acks = AckReactions(context, self._react, _chat_of)
        self.tasks = self.acks.tasks

    def show_result(self, chat: str, message: InboundMessage, result: IntakeResult) -> None:
        """React to an accepted message in *chat*, and send the sender the line of *result*."""
        if result.line:
            nonce = f"line{message.message_id}"
            post = partial(self._api.post, chat, result.line, nonce=nonce, reply_to=message.message_id)
            self.tasks.start(post, "line")
        is_new = message.kind is InboundKind.MESSAGE and not message.revision
        is_fresh = utc_now() - message.sent_at < _FRESH
        if self._emoji and result.verdict is IntakeVerdict.ACCEPTED and is_new and is_fresh:
            self.acks.add(message.key, chat, message.message_id, result)

    async def _react(self, reaction: AckReaction, is_on: bool) -> None:
        await self._api.react(reaction.chat, reaction.message_id, self._emoji, on=is_on)


# -- interactions ----------------------------------------------------------------------------------
# Native commands and pressed buttons that wait for their response, for which Discord gives fifteen minutes.
#
# The response token is stored once the command or press is durable. Editing the response is idempotent. An answer for
# the whole chat is an ordinary message with a send key; a private answer to a press is a follow-up. The row of a
# pressed button is removed once the answer settles its question.

LIFETIME = timedelta(minutes=14, seconds=45)  # of a response token: of fifteen minutes
_PREFIX = "interaction/"
_FIRST = ".1"  # suffix of a turn's first part


@dataclass(frozen=True, slots=True)
class _PendingCommand:
    """A command that shows "is thinking" until its response replaces that."""

    token: str
    is_shared: bool  # in a shared chat, where only the sender sees it


@dataclass(frozen=True, slots=True)
class _DiscordPress:
    token: str
    is_shared: bool  # in a shared chat, where a follow-up is seen by the presser alone
    rows: str  # of buttons that stay once it is settled, as JSON


class DiscordInteractions:
    """The pending commands and presses of one channel, by turn."""

    def __init__(self, context: ChannelContext, api: DiscordApi, reactions: DiscordReactions) -> None:
        self._name = context.name
        self._api = api
        self._language = context.language(channel_wide_key(context.name))
        self._commands = PendingResponses(context, _PendingCommand, _PREFIX, lifetime=LIFETIME)
        self.presses = PendingPresses(context, _DiscordPress, lifetime=LIFETIME, tasks=reactions.tasks, end=self._end)

    async def hold(self, payload: Mapping[str, Any], message: InboundMessage) -> None:
        """Hold and acknowledge the command or press *message*, which is durable; raises StoreUnavailable."""
        token, is_shared = str(payload["token"]), message.chat_kind is not ChatKind.DIRECT
        if message.kind is not InboundKind.BUTTON:
            await self._commands.hold(message, _PendingCommand(token, is_shared))
            await self._acknowledge(payload, message)
            return
        press = _DiscordPress(token, is_shared, json.dumps(remaining_rows(payload)))
        is_settled = await self.presses.hold(message, press)
        await self._acknowledge(payload, message)
        if is_settled:
            await self._redraw(press)

    async def refuse(self, payload: Mapping[str, Any]) -> None:
        """Tell the sender where the bot answers; failures are logged."""
        try:
            await self.respond_once(payload, translate("discord.not_among_others", self._language))
        except SendFailed as error:
            log.info("discord.interaction_not_refused", channel=self._name, reason=str(error))

    async def respond_once(self, payload: Mapping[str, Any], line: str) -> None:
        """Respond with *line*, which only the sender sees."""
        await self._api.respond(str(int(payload["id"])), str(payload["token"]), final_response(line))

    async def send(self, part: MessagePart, text: str) -> str:
        """Send a part as the response to its command or press; return "" if none is pending. Raises SendFailed."""
        if (press := await self._private_press(part)) is not None:
            try:
                return await self._api.follow_up(press.token, text)
            except SendRefused as error:
                log.info("discord.press_unanswered", channel=self._name, reason=str(error))
        command = await self._command(part)
        if command is None:
            return ""
        try:
            if part.id.endswith(_FIRST):
                return await self._api.edit_original(command.token, text, render_buttons(part.choices))
            return await self._api.follow_up(command.token, text) if command.is_shared else ""
        except SendRefused as error:
            log.info("discord.interaction_ended", channel=self._name, reason=str(error))
            await self._commands.take(part)
            return ""

    async def clear(self, part: MessagePart) -> None:
        """Remove "is thinking" after an answer for the whole chat. Raises SendFailed."""
        command = await self._commands.get(part)
        if command is not None and command.is_shared and not part.visible_to:
            await self._commands.take(part)
            await self._api.delete_original(command.token)

    async def is_pending(self, part: MessagePart) -> bool:
        """Return True if *part* belongs into a command's response; raise OutcomeUnknown if a retry could double it."""
        command = None if (press := await self._private_press(part)) else await self._command(part)
        if press is not None or (command is not None and not part.id.endswith(_FIRST)):
            raise OutcomeUnknown("a follow-up cannot be asked for")
        return command is not None

    async def _command(self, part: MessagePart) -> _PendingCommand | None:
        """Return the command that *part* answers: a private part, or any in a direct chat."""
        command = await self._commands.get(part)
        return command if command is not None and (part.visible_to or not command.is_shared) else None

    async def _private_press(self, part: MessagePart) -> _DiscordPress | None:
        """Return the press in a shared chat that *part* answers for its presser alone."""
        press = await self.presses.get(part) if part.visible_to else None
        return press if press is not None and press.is_shared else None

    async def _acknowledge(self, payload: Mapping[str, Any], message: InboundMessage) -> None:
        """Defer the response to the interaction *payload* of *message*; failures are logged."""
        try:
            await self._api.respond(str(int(payload["id"])), str(payload["token"]), initial_response(message))
        except SendRefused as error:
            # Too late, or a repeated event: it must not replace the first response.
            log.info("discord.interaction_not_held", channel=self._name, reason=str(error))
        except SendFailed as error:
            log.info("discord.interaction_unsure", channel=self._name, reason=str(error))

    async def _end(self, press: _DiscordPress, is_settled: bool) -> None:
        if is_settled:
            await self._redraw(press)

    async def _redraw(self, press: _DiscordPress) -> None:
        await self._api.redraw_original(press.token, json.loads(press.rows))


# -- commands --------------------------------------------------------------------------------------
# Native slash commands of Discord's apps.

_DESCRIPTION_LIMIT = 100  # characters
_COMMAND_LIMIT = 100
_NOTE = "commands"
_EVERYWHERE = ""
_IN_GUILDS_AND_OWN_CHATS = {"integration_types": [0], "contexts": [0, 1]}  # not in chats of people without the bot
# Our languages as Discord's apps name them (docs.discord.com/developers/reference, locales).
_LOCALES = {"en": ("en-US", "en-GB"), "de": ("de",), "es": ("es-ES", "es-419"), "zh": ("zh-CN",)}
_NONE: tuple[dict[str, Any], ...] = ()


def definition(language: str = FALLBACK) -> Sequence[dict[str, Any]]:
    """Return the definitions of all commands, described by their help lines in the catalogue.

    Apps in another supported language show that one, all others *language*.
    """
    option = {"type": 3, "name": "text", **_descriptions("discord.option", language), "required": False}
    return [
        {"type": 1, "name": name, **_descriptions(f"{HELP}{name}", language), "options": [option]}
        for name in command_names()[:_COMMAND_LIMIT]
    ]


def _descriptions(key: str, language: str) -> dict[str, Any]:
    localized = {
        code: _short(translate(key, each)) for each, codes in _LOCALES.items() if each != language for code in codes
    }
    return {"description": _short(translate(key, language)), "description_localizations": localized}


def _short(text: str) -> str:
    return render_plain(text)[:_DESCRIPTION_LIMIT]


class DiscordCommands:
    """Registers the commands of a channel; sends only what changed."""

    def __init__(self, name: str, state: SqlChannelState, api: DiscordApi, *, where: str, language: str) -> None:
        """Register them `global`, in each `guild` (at once, but not in direct messages), or `off`."""
        self._name = name
        self._state = state
        self._api = api
        self._where = where
        self._language = language
        self._lock = asyncio.Lock()  # sessions may follow each other quickly

    async def register(self, guilds: Sequence[str], shard: BotShard = BotShard()) -> None:  # noqa: B008 - immutable
        """Update the registered commands of *shard*, which has *guilds*: those for everywhere are the first's.

        A failed call is retried with the next session. Raises StoreUnavailable.
        """
        async with self._lock:
            try:
                await self._register(guilds, shard)
            except SendFailed as error:
                log.info("discord.commands_later", reason=str(error))

    async def _register(self, guilds: Sequence[str], shard: BotShard) -> None:
        note = shard.note(_NOTE)
        registered: dict[str, str] = json.loads(await self._state.load(note) or "{}")
        wanted = {"global": (_EVERYWHERE,), "guild": tuple(guilds)}.get(self._where, ())
        places = [place for place in wanted if shard.has(place)]
        commands = definition(self._language)
        for place in (*places, *(set(registered) - set(places))):
            definitions = commands if place in places else _NONE
            if place == _EVERYWHERE:  # the commands of a guild have no contexts
                definitions = [{**each, **_IN_GUILDS_AND_OWN_CHATS} for each in definitions]
            text = json.dumps([self._api.me, *definitions])
            mark = hashlib.sha256(text.encode()).hexdigest()[:16] if definitions else ""
            if registered.get(place, "") != mark and await self._put(place, definitions):
                registered[place] = mark
                kept = {place: mark for place, mark in registered.items() if mark}
                await self._state.save(note, json.dumps(kept) if kept else None)

    async def _put(self, guild: str, commands: Sequence[dict[str, Any]]) -> bool:
        try:
            await self._api.put_commands(guild, commands)
        except SendRefused as error:
            hint = "invite the bot with the scope applications.commands"
            log.warning("discord.commands_refused", channel=self._name, guild=guild, reason=str(error), mend=hint)
            return False
        log.info("discord.commands_registered", channel=self._name, guild=guild, commands=len(commands))
        return True
