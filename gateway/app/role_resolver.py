"""Judged again when its turn begins: what was true of a sender when they wrote may have ended while it waited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import structlog

from gateway.admission import Admitted, Rejected
from gateway.errors import ParlourError
from gateway.events import ChatKind, InboundKind, InboundMessage, Role, Sender
from gateway.ports import Channel, InboxRow, SupportsSenderLookup

log = structlog.get_logger(__name__)

Judge: TypeAlias = Callable[[InboundMessage], Admitted | Rejected]

_PATIENCE = 15.0  # seconds for a look-up, the channel's own limit aside; then it fails closed
_DECIDES = frozenset({InboundKind.COMMAND, InboundKind.BUTTON})  # may need the role of an admin


class RoleResolver:
    """Says what a row's sender may decide now, by facts that are not older than five minutes.

    The platform is asked (through the channel, which keeps what it heard for five minutes) where the answer matters:
    who is not in by their own id but by a role, a server or a workspace, and whoever decides something in a
    shared chat. An admin is looked up in the same way as a role. What cannot be known grants nothing. Each
    row is looked up in the task of its own turn, so nobody else's message waits for it.
    """

    def __init__(self, judge: Judge, channels: Mapping[str, Channel], *, noted: Judge | None = None) -> None:
        """Judge by *judge*; *noted* is the same judge, whose refusals can be explained afterwards."""
        self._judge = judge
        self._noted = noted or judge
        self._channels = channels

    async def current_role(self, row: InboxRow) -> Role | None:
        """Return what the sender of *row* may decide, None when they may not speak (any more).

        Whether it was addressed to us was settled when it came, and our own jobs are nobody's message.
        """
        if row.message.kind is InboundKind.JOB:
            return row.role
        message = replace(row.message, is_addressed=True)
        channel = self._channels.get(message.key.channel)
        if isinstance(channel, SupportsSenderLookup) and self._asks(message):
            message = replace(message, sender=await _sender_now(channel, message))
        decision = self._noted(message)
        return decision.role if isinstance(decision, Admitted) else None

    def _asks(self, message: InboundMessage) -> bool:
        if message.chat_kind is ChatKind.GROUP and message.kind in _DECIDES:
            return True
        return _has_facts(message) and isinstance(self._judge(replace(message, sender=_unknown(message))), Rejected)


def _has_facts(message: InboundMessage) -> bool:
    """Say whether the platform gives people something by which they could be let in, and which can be taken away."""
    return bool(message.sender.roles or message.sender.team or message.guild)


def _unknown(message: InboundMessage) -> Sender:
    """Return the sender of whom nothing but the id is known: a stranger unless named, and nobody's admin."""
    return replace(message.sender, roles=(), is_admin=False, is_guest=message.sender.is_guest or _has_facts(message))


async def _sender_now(channel: SupportsSenderLookup, message: InboundMessage) -> Sender:
    try:
        async with asyncio.timeout(_PATIENCE):
            return await channel.sender(message)
    except (ParlourError, TimeoutError) as error:
        log.warning("gate.unanswered", key=str(message.key), reason=str(error) or type(error).__name__)
    except Exception:  # the channel boundary: what cannot be known grants nothing
        log.exception("gate.failed", key=str(message.key))
    return _unknown(message)
