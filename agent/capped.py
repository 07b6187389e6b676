"""What a turn says and does when a cap is reached (gateway/ports/caps.py)."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.events import InboundKind
from gateway.ports import InboxRow
from gateway.ports.caps import Past
from gateway.words import say
from gateway.words.figures import clock, moment


def line_of(past: Past, zone: str, language: str) -> str:
    """Return the one line: which cap it is, and when it ends by the clock of *zone*."""
    until = moment(past.until, zone, language) if past.cap.is_daily else clock(past.until, zone, language)
    return say(f"caps.{past.cap.word}", language, limit=past.limit, until=until)


def behind(waiting: Iterable[InboxRow], head: InboxRow, past: Past) -> tuple[InboxRow, ...]:
    """Return what waits behind *head* and falls under the same cap: refused with it, it holds up nobody's message.

    Commands stay: they are never capped.
    """
    return tuple(
        row
        for row in waiting
        if not row.turn
        and row.seq != head.seq
        and row.message.kind is InboundKind.MESSAGE
        and (not past.cap.is_personal or row.message.sender.id == head.message.sender.id)
    )
