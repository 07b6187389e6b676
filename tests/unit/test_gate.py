"""Judged again when its turn begins: what an event said of its sender holds for five minutes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from gateway.admission import Admitted, Entry, Policy, Rejected, admit
from gateway.app.channels import Gate
from gateway.errors import RetryLater
from gateway.events import ChatKind, InboundKind, InboundMessage, Role, Sender, SessionKey
from gateway.ports import Channel, InboxRow
from tests.fakes.clock import EPOCH, Clock

POLICY = Policy(channel="pocket", entries=frozenset({Entry.parse("role:7"), Entry.parse("42")}))
MESSAGE = InboundMessage(
    key=SessionKey("pocket", "hall"),
    message_id="1",
    sender=Sender(id="9", roles=("7",)),
    text="hello",
    sent_at=EPOCH,
    chat_kind=ChatKind.GROUP,
)


class Roll:
    """A channel that knows who has which roles now, or cannot say."""

    def __init__(self, roles: tuple[str, ...] | None) -> None:
        self.roles = roles
        self.asked = 0

    async def sender(self, message: InboundMessage) -> Sender:
        """Return the sender with the roles of now; None never answers."""
        self.asked += 1
        if self.roles is None:
            await asyncio.Event().wait()
        if self.roles == ("busy",):
            raise RetryLater(timedelta(seconds=5))
        if self.roles == ("bug",):
            raise ZeroDivisionError
        return replace(message.sender, roles=self.roles or ())


def judge(message: InboundMessage) -> Admitted | Rejected:
    """Judge by the policy alone."""
    return admit(message, POLICY)


async def judged(clock: Clock, channel: Any, message: InboundMessage = MESSAGE, *, age: float = 600.0) -> bool:
    """Judge a row that waited for *age* seconds."""
    row = InboxRow(seq=1, message=message, accepted_at=clock.now() - timedelta(seconds=age), role=Role.ANYONE)
    gate = Gate(judge, {"pocket": cast("Channel", channel)}, clock.now)
    return await gate.still_admits(row)


async def test_a_role_that_was_taken_away_no_longer_counts(clock: Clock) -> None:
    """And one that is still there does."""
    assert await judged(clock, Roll(("7",)))
    assert not await judged(clock, Roll(()))


@pytest.mark.parametrize("roles", [None, ("busy",), ("bug",)], ids=["silent", "busy", "broken"])
async def test_what_cannot_be_known_grants_nothing(clock: Clock, roles: tuple[str, ...] | None) -> None:
    """Fails closed, within seconds; but who is named by their own id needs no role."""
    assert not await judged(clock, Roll(roles))
    assert clock.seconds <= 15
    named = replace(MESSAGE, sender=Sender(id="42", roles=("7",)))
    assert await judged(clock, Roll(roles), named)


async def test_nobody_is_asked_without_need(clock: Clock) -> None:
    """Not for what was said just now, nor for people without roles, nor for our own jobs."""
    roll = Roll(())
    assert await judged(clock, roll, age=299.0)
    assert await judged(clock, roll, replace(MESSAGE, sender=Sender(id="42")))
    assert await judged(clock, roll, replace(MESSAGE, kind=InboundKind.JOB))
    assert roll.asked == 0
    assert await judged(clock, object())  # a channel that knows nothing beyond its events
