"""Native commands and pressed buttons that wait for their response, for which Discord gives fifteen minutes.

The response token is stored once the command or press is durable. Editing the response is idempotent. An answer for
the whole chat is an ordinary message with a send key; a private answer to a press is a follow-up. The row of a pressed
button is removed once the answer settles its question.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from channels.discord import codec
from channels.discord.api import DiscordApi
from channels.discord.reactions import DiscordReactions
from channels.kit.pending_responses import PendingPresses, PendingResponses
from gateway.errors import OutcomeUnknown, SendFailed, SendRefused
from gateway.events import ChatKind, InboundMessage, MessagePart
from gateway.i18n import translate
from gateway.ports import ChannelContext, channel_wide_key

log = structlog.get_logger(__name__)

LIFETIME = timedelta(minutes=14, seconds=45)  # of a response token: of fifteen minutes
_PREFIX = "interaction/"
_FIRST = ".1"  # suffix of a turn's first part


@dataclass(frozen=True, slots=True)
class _PendingCommand:
    """A command that shows "is thinking" until its response replaces that."""

    token: str
    is_shared: bool  # in a shared chat, where only the sender sees it


class DiscordInteractions:
    """The pending commands of one channel, by turn."""

    def __init__(self, context: ChannelContext, api: DiscordApi) -> None:
        self._name = context.name
        self._api = api
        self._language = context.language(channel_wide_key(context.name))
        self._pending = PendingResponses(context, _PendingCommand, _PREFIX, lifetime=LIFETIME)

    async def defer(self, payload: Mapping[str, Any], message: InboundMessage) -> None:
        """Defer the response to *message*, which is durable; raises StoreUnavailable."""
        token = str(payload["token"])
        await self._pending.hold(message, _PendingCommand(token, message.chat_kind is not ChatKind.DIRECT))
        await acknowledge(self._api, self._name, payload, message)

    async def refuse(self, payload: Mapping[str, Any]) -> None:
        """Tell the sender where the bot answers; failures are logged."""
        try:
            await self.respond_once(payload, translate("discord.not_among_others", self._language))
        except SendFailed as error:
            log.info("discord.interaction_not_refused", channel=self._name, reason=str(error))

    async def respond_once(self, payload: Mapping[str, Any], line: str) -> None:
        """Respond with *line*, which only the sender sees."""
        await self._api.respond(str(int(payload["id"])), str(payload["token"]), codec.final_response(line))

    async def send(self, part: MessagePart, text: str) -> str:
        """Send a part as the response to its command; return "" if none is pending. Raises SendFailed."""
        pending = await self._pending.get(part)
        if pending is None or not _takes(pending, part):
            return ""
        try:
            if part.id.endswith(_FIRST):
                return await self._api.edit_original(pending.token, text, codec.render_buttons(part.choices))
            return await self._api.follow_up(pending.token, text) if pending.is_shared else ""
        except SendRefused as error:
            log.info("discord.interaction_ended", channel=self._name, reason=str(error))
            await self._pending.take(part)
            return ""

    async def clear(self, part: MessagePart) -> None:
        """Remove "is thinking" after an answer for the whole chat. Raises SendFailed."""
        pending = await self._pending.get(part)
        if pending is not None and pending.is_shared and not part.visible_to:
            await self._pending.take(part)
            await self._api.delete_original(pending.token)

    async def is_pending(self, part: MessagePart) -> bool:
        """Return True if *part* belongs into a pending response; raise OutcomeUnknown if a retry could double it."""
        pending = await self._pending.get(part)
        if pending is None or not _takes(pending, part):
            return False
        if not part.id.endswith(_FIRST):
            raise OutcomeUnknown("a follow-up cannot be asked for")
        return True


async def acknowledge(api: DiscordApi, channel: str, payload: Mapping[str, Any], message: InboundMessage) -> None:
    """Defer the response to the interaction *payload* of *message*; failures are logged."""
    try:
        await api.respond(str(int(payload["id"])), str(payload["token"]), codec.initial_response(message))
    except SendRefused as error:
        # Too late, or a repeated event: it must not replace the first response.
        log.info("discord.interaction_not_held", channel=channel, reason=str(error))
    except SendFailed as error:
        log.info("discord.interaction_unsure", channel=channel, reason=str(error))


def _takes(pending: _PendingCommand, part: MessagePart) -> bool:
    """Return True if *part* belongs into *pending*: a private part, or in a direct chat any."""
    return bool(part.visible_to) if pending.is_shared else True


@dataclass(frozen=True, slots=True)
class _DiscordPress:
    token: str
    is_shared: bool  # in a shared chat, where a follow-up is seen by the presser alone
    rows: str  # of buttons that stay once it is settled, as JSON


class DiscordButtons:
    """The pending presses of one channel, by turn."""

    def __init__(self, context: ChannelContext, api: DiscordApi, reactions: DiscordReactions) -> None:
        self._name = context.name
        self._api = api
        self.presses = PendingPresses(context, _DiscordPress, lifetime=LIFETIME, tasks=reactions.tasks, end=self._end)

    async def hold_press(self, payload: Mapping[str, Any], message: InboundMessage) -> None:
        """Hold and acknowledge the press *message*, which is durable; raises StoreUnavailable."""
        rows = json.dumps(codec.remaining_rows(payload))
        press = _DiscordPress(str(payload["token"]), message.chat_kind is not ChatKind.DIRECT, rows)
        is_settled = await self.presses.hold(message, press)
        await acknowledge(self._api, self._name, payload, message)
        if is_settled:
            await self._redraw(press)

    async def send_privately(self, part: MessagePart, text: str) -> str:
        """Show *part* to the presser alone; return "" if it answers no press in a shared chat. Raises SendFailed."""
        press = await self._press_of(part)
        if press is None:
            return ""
        try:
            return await self._api.follow_up(press.token, text)
        except SendRefused as error:
            log.info("discord.press_unanswered", channel=self._name, reason=str(error))
            return ""

    async def check_sent(self, part: MessagePart) -> None:
        """Raise OutcomeUnknown if *part* may have been sent by `send_privately`, which cannot be looked up."""
        if await self._press_of(part) is not None:
            raise OutcomeUnknown("a follow-up cannot be asked for")

    async def _press_of(self, part: MessagePart) -> _DiscordPress | None:
        press = await self.presses.get(part) if part.visible_to else None
        return press if press is not None and press.is_shared else None

    async def _end(self, press: _DiscordPress, is_settled: bool) -> None:
        if is_settled:
            await self._redraw(press)

    async def _redraw(self, press: _DiscordPress) -> None:
        await self._api.redraw_original(press.token, json.loads(press.rows))
