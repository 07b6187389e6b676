"""Pressed buttons: private answers as follow-ups, and the row that is removed once the answer settles the question."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import structlog

from channels.discord import codec
from channels.discord.api import DiscordApi
from channels.discord.interactions import LIFETIME, acknowledge
from channels.discord.reactions import DiscordReactions
from channels.kit.pending_responses import PRESSES, PendingResponses
from gateway.errors import OutcomeUnknown, SendRefused
from gateway.events import ChatKind, InboundMessage, MessagePart
from gateway.ports import ChannelContext

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _DiscordPress:
    token: str
    is_shared: bool  # in a shared chat, where a follow-up is seen by the presser alone
    rows: str  # of buttons that stay once it is settled, as JSON


class DiscordButtons:
    """The pending presses of one channel, by turn."""

    def __init__(
        self, context: ChannelContext, api: DiscordApi, reactions: DiscordReactions, now: Callable[[], datetime]
    ) -> None:
        self._name = context.name
        self._api = api
        self._reactions = reactions
        self._presses = PendingResponses(context, _DiscordPress, PRESSES, lifetime=LIFETIME, now=now)

    async def hold_press(self, payload: Mapping[str, Any], message: InboundMessage) -> None:
        """Hold and acknowledge the press *message*, which is durable; raises StoreUnavailable."""
        rows = json.dumps(codec.remaining_rows(payload))
        press = _DiscordPress(str(payload["token"]), message.chat_kind is not ChatKind.DIRECT, rows)
        is_settled = await self._presses.hold(message, press)
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

    def settle(self, part: MessagePart) -> None:
        """Forget the press that *part*, which was delivered, answers; remove its buttons if *part* settles it."""
        if part.settles or self._presses.holds(part):
            self._reactions.tasks.start(partial(self._settle, part), "buttons")

    async def _press_of(self, part: MessagePart) -> _DiscordPress | None:
        press = await self._presses.get(part) if part.visible_to else None
        return press if press is not None and press.is_shared else None

    async def _settle(self, part: MessagePart) -> None:
        press = await self._presses.take(part)
        if press is not None and part.settles:
            await self._redraw(press)

    async def _redraw(self, press: _DiscordPress) -> None:
        await self._api.redraw_original(press.token, json.loads(press.rows))
