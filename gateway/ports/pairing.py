"""Pairing: unknown senders and new chats that wait for an owner's decision."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gateway.errors import UserError


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


class PairingRefused(UserError):
    """Nothing is decided: no such request is pending or, with *minutes*, no code is accepted for so long."""

    def __init__(self, text: str, minutes: int = 0) -> None:
        super().__init__(text)
        self.minutes = minutes
