"""A turn as claim derives it, for tests of what comes after."""

from __future__ import annotations

from typing import Any

from agent.turns.turn import Turn
from gateway.events import InboundMessage, PlatformAccount, Role
from gateway.ports.access import MessageContext
from gateway.ports.journal import InboxRow, SessionRow, TurnLease

SENDER = PlatformAccount(kind="telegram", id="7")


def turn_of(message: InboundMessage, *, role: Role, scope: str, profile: Any = None) -> Turn:
    """Return the turn of *message*; no test that uses it looks at the profile unless it gives one."""
    row = InboxRow(seq=1, message=message, accepted_at=message.sent_at, role=role)
    session = SessionRow(key=message.key, transcript="x" * 16, next_index=0, created_at=message.sent_at)
    turn = Turn(lease=TurnLease(key=message.key, turn="t1", epoch=0, rows=(row,), session=session))
    facts = MessageContext(scope=scope, account=SENDER, person="telegram%3a7")
    turn.identify(facts, role=role, is_admitted=True, is_named=True, profile=profile)
    turn.language, turn.zone = "en", "UTC"
    return turn
