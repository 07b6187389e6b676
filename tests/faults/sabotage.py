"""Gateways that break one promise each: what the matrix must notice, or it would prove nothing.

Each patches the class in its own process, a forked child, and so harms nobody else.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from agent.tools.toolbox import Toolbox
from channels.discord.adapter import DiscordChannel
from channels.discord.api import DiscordApi
from channels.slack.adapter import SlackChannel
from channels.telegram.adapter import TelegramChannel
from gateway.events import DeliveryReceipt, InboundMessage, MessagePart
from gateway.intake import Intake
from gateway.ports.channel import IntakeResult, IntakeVerdict
from gateway.ports.journal import TurnLease, TurnStep
from gateway.store.journal import SqlJournal
from tests.fakes.open_intake import OpenDoor
from tests.fakes.relay import RelayChannel

_MOMENT = 0.3  # seconds; a platform is told within it


def _acks_early() -> None:
    """Confirm an update to the platform before it is stored."""
    receive = RelayChannel.run

    async def run(self: RelayChannel) -> None:
        intake = self._intake

        class Eager(OpenDoor):
            async def receive(self, message: InboundMessage, **options: Any) -> IntakeResult:
                channel._accepted = int(message.message_id)
                await channel._call("GET", f"/updates?after={message.message_id}&wait=0")
                return await intake.receive(message, **options)

        channel = self
        self._intake = Eager()
        await receive(self)

    RelayChannel.run = run  # type: ignore[method-assign]


def _forgets_steps() -> None:
    """Store no step, so that a second attempt begins at the beginning."""

    async def step(self: SqlJournal, lease: TurnLease, *steps: TurnStep) -> None:
        """Store nothing."""

    SqlJournal.step = step  # type: ignore[method-assign]


def _repeats_tools() -> None:
    """Take every tool for repeatable."""
    Toolbox.is_repeatable = lambda self, call: True  # type: ignore[method-assign]


def _marks_nothing() -> None:
    """Send again what may stand there, without a word."""
    send = RelayChannel.send

    async def unmarked(self: RelayChannel, part: Any, *, may_be_duplicate: bool = False) -> Any:
        return await send(self, part)

    RelayChannel.send = unmarked  # type: ignore[method-assign]


def _stores_later() -> None:
    """Say that a message is durable a moment before it is."""
    receive = Intake.receive
    later: set[asyncio.Task[IntakeResult]] = set()

    async def store(self: Intake, message: InboundMessage, options: Mapping[str, Any]) -> IntakeResult:
        await asyncio.sleep(_MOMENT)
        return await receive(self, message, **options)

    async def hasty(self: Intake, message: InboundMessage, **options: Any) -> IntakeResult:
        task = asyncio.create_task(store(self, message, options))
        later.add(task)
        return IntakeResult(verdict=IntakeVerdict.ACCEPTED)

    Intake.receive = hasty  # type: ignore[method-assign]


def _asks_nobody() -> None:
    """Take for granted that what is not known to stand in a chat does not, and send it under another key."""

    async def nothing(self: Any, part: MessagePart) -> DeliveryReceipt | None:
        """Find nothing."""

    for channel in (SlackChannel, DiscordChannel):
        channel.find = nothing  # type: ignore[method-assign]
    post = DiscordApi.post

    async def other(self: DiscordApi, chat: str, text: str, *, nonce: str, **more: Any) -> str:
        return await post(self, chat, text, nonce=secrets.token_hex(8), **more)

    DiscordApi.post = other  # type: ignore[method-assign]


def _telegram_marks_nothing() -> None:
    """Send again what may stand there, without a word."""
    send = TelegramChannel.send

    async def unmarked(self: TelegramChannel, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        return await send(self, part)

    TelegramChannel.send = unmarked  # type: ignore[method-assign]


SABOTAGES: Mapping[str, Callable[[], None]] = {
    "acks_early": _acks_early,
    "forgets_steps": _forgets_steps,
    "repeats_tools": _repeats_tools,
    "marks_nothing": _marks_nothing,
    "stores_later": _stores_later,
    "asks_nobody": _asks_nobody,
    "telegram_marks_nothing": _telegram_marks_nothing,
}
