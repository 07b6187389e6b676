"""The role of a sender when their turn starts: membership and admin rights may have ended while it was queued."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import structlog

from gateway.admission import Admitted, Rejected, RejectionReason
from gateway.app.channels import Judge
from gateway.errors import ParlourError
from gateway.events import ChatKind, InboundKind, InboundMessage, Sender
from gateway.ports import Channel, InboxRow, MessageContext, SupportsSenderLookup, is_set_by_person

log = structlog.get_logger(__name__)

_TIMEOUT = 15.0  # seconds for a look-up; after that it fails closed
_BY_ROLES = frozenset({RejectionReason.STRANGER, RejectionReason.PLACE_PENDING})  # unless a role admits the sender
_DECIDES = frozenset({InboundKind.COMMAND, InboundKind.BUTTON})  # may need the role of an admin


def has_lost_access(judge: Judge, message: InboundMessage) -> bool:
    """Return True if the sender of *message*, a job that they set, is no longer admitted. Nothing is looked up.

    In a server, a role that only the platform knows may admit them: there, unknown senders have not lost access.
    """
    decision = judge(_as_addressed(message), None)
    return isinstance(decision, Rejected) and not (message.guild and decision.reason in _BY_ROLES)


class RoleResolver:
    """Resolves the current role of a row's sender, by facts that are at most five minutes old.

    The channel looks the sender up on its platform (and caches the result for five minutes) only where this matters:
    for senders who are admitted by a role, guild or workspace, and for commands and buttons in a group. A failed
    look-up grants nothing. Each look-up runs in the task of its turn, so no other message waits for it.
    """

    def __init__(self, judge: Judge, channels: Mapping[str, Channel], *, decide: Judge | None = None) -> None:
        """*judge* decides without logging; *decide* is the same decision with rejections logged."""
        self._judge = judge
        self._decide = decide or judge
        self._lookups = {name: each for name, each in channels.items() if isinstance(each, SupportsSenderLookup)}

    async def current_admission(self, row: InboxRow, context: MessageContext | None = None) -> Admitted | None:
        """Return the admission of the sender of *row*; None when they are no longer admitted.

        Messages passed the check for being addressed to the bot when they arrived. A job that a person set is admitted
        as their own message, other jobs keep the role of their row.
        """
        if row.message.kind is InboundKind.JOB and not is_set_by_person(row.message):
            decision = self._judge(_as_addressed(row.message), context)
            return Admitted(role=row.role, is_named=isinstance(decision, Admitted) and decision.is_named)
        message = _as_addressed(row.message)
        channel = self._lookups.get(message.key.channel)
        if channel is not None and self._asks(message, context):
            message = replace(message, sender=await _look_up_sender(channel, message))
        decision = self._decide(message, context)
        return decision if isinstance(decision, Admitted) else None

    def _asks(self, message: InboundMessage, context: MessageContext | None) -> bool:
        if message.chat_kind is ChatKind.GROUP and (message.kind in _DECIDES or is_set_by_person(message)):
            return True
        if not _has_facts(message):
            return False
        return isinstance(self._judge(replace(message, sender=_unknown(message)), context), Rejected)


def _as_addressed(message: InboundMessage) -> InboundMessage:
    """Return *message* as one that addresses the bot; in a direct chat nothing depends on it."""
    is_settled = message.is_addressed or message.chat_kind is ChatKind.DIRECT
    return message if is_settled else replace(message, is_addressed=True)


def _has_facts(message: InboundMessage) -> bool:
    """Return True if the sender has facts of the platform that may admit them and may change."""
    return bool(message.sender.roles or message.sender.team or message.guild)


def _unknown(message: InboundMessage) -> Sender:
    """Return the sender with their id alone: not admitted unless listed by id, and no admin."""
    return replace(message.sender, roles=(), is_admin=False, is_guest=message.sender.is_guest or _has_facts(message))


async def _look_up_sender(channel: SupportsSenderLookup, message: InboundMessage) -> Sender:
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await channel.sender(message)
    except (ParlourError, TimeoutError) as error:
        log.warning("sender_lookup.timed_out", key=str(message.key), reason=str(error) or type(error).__name__)
    except Exception:  # the channel boundary: a failed look-up grants nothing
        log.exception("sender_lookup.failed", key=str(message.key))
    return _unknown(message)
