"""Pairing: unknown senders and new chats that wait for an owner's decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

from gateway.ports.access import DecisionActor


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingRequest:
    """An account or chat without an owner's decision. Holds no message text."""

    ref: str  # reference in buttons and on the command line; stable over restarts
    channel: str  # the channel's name
    who: str  # an admission entry: a user id, or chat:ID, guild:ID
    name: str  # display name in one safe line; decides nothing
    at: datetime
    until: datetime | None = None  # expiry of the code; chats wait as long as the bot is in them
    is_place: bool = False
    by: str = ""  # for chats: id of the user who added the bot, if known
    by_name: str = ""


@dataclass(frozen=True, slots=True)
class PairingDecision:
    """It is decided, now or by an earlier attempt of the same turn."""

    waiting: PairingRequest
    is_yes: bool


@dataclass(frozen=True, slots=True)
class PairingNotFound:
    """Nothing of that name waits: it was decided, its time is over, or there never was such a code."""


@dataclass(frozen=True, slots=True)
class PairingLocked:
    """Too many wrong codes; none is looked at for so many *minutes*."""

    minutes: int


Outcome: TypeAlias = PairingDecision | PairingNotFound | PairingLocked


class PairingRequests(Protocol):
    """Owners' view of pairing requests; each decision is one transaction with its audit entry."""

    def pending_requests(self) -> Sequence[PairingRequest]:
        """Return the pending accounts and chats, the longest waiting first."""

    async def by_ref(self, ref: str, decider: DecisionActor, *, is_yes: bool) -> Outcome:
        """Decide about the one whose `ref` this is."""

    async def by_code(self, code: str, decider: DecisionActor, *, is_yes: bool = True) -> Outcome:
        """Decide about the person who was given *code*; wrong codes are counted against the decider."""
