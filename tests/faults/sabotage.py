"""Gateways that break one promise each: what the matrix must notice, or it would prove nothing.

Each patches the class in its own process, a forked child, and so harms nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent.tools.registry import Toolbox
from gateway.events import InboundMessage
from gateway.ports import Accepted, Lease, Step
from gateway.store.journal import SqliteJournal
from tests.fakes.door import OpenDoor
from tests.fakes.relay import RelayChannel


def _acks_early() -> None:
    """Confirm an update to the platform before it is stored."""
    receive = RelayChannel.run

    async def run(self: RelayChannel) -> None:
        intake = self._intake

        class Eager(OpenDoor):
            async def receive(self, message: InboundMessage) -> Accepted:
                channel._accepted = int(message.message_id)
                await channel._call("GET", f"/updates?after={message.message_id}&wait=0")
                return await intake.receive(message)

        channel = self
        self._intake = Eager()
        await receive(self)

    RelayChannel.run = run  # type: ignore[method-assign]


def _forgets_steps() -> None:
    """Store no step, so that a second attempt begins at the beginning."""

    async def step(self: SqliteJournal, lease: Lease, step: Step) -> None:
        """Store nothing."""

    SqliteJournal.step = step  # type: ignore[method-assign]


def _repeats_tools() -> None:
    """Take every tool for repeatable."""
    Toolbox.is_repeatable = lambda self, name: True  # type: ignore[method-assign]


def _marks_nothing() -> None:
    """Send again what may stand there, without a word."""
    send = RelayChannel.send

    async def unmarked(self: RelayChannel, part: Any, *, marked: bool = False) -> Any:
        return await send(self, part)

    RelayChannel.send = unmarked  # type: ignore[method-assign]


SABOTAGES: Mapping[str, Callable[[], None]] = {
    "acks_early": _acks_early,
    "forgets_steps": _forgets_steps,
    "repeats_tools": _repeats_tools,
    "marks_nothing": _marks_nothing,
}
