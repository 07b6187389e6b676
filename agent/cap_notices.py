"""What a turn says and does when a cap is reached (gateway/ports/caps.py)."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.events import InboundKind
from gateway.i18n import translate
from gateway.i18n.formats import format_moment, format_time_of_day
from gateway.ports import InboxRow
from gateway.ports.caps import ExceededCap


def cap_line(past: ExceededCap, zone: str, language: str) -> str:
    """Return the one line: which cap it is, and when it ends by the clock of *zone*."""
    until = (
        format_moment(past.until, zone, language)
        if past.cap.is_daily
        else format_time_of_day(past.until, zone, language)
    )
    return translate(f"caps.{past.cap.word}", language, limit=past.limit, until=until)


def rows_under_same_cap(waiting: Iterable[InboxRow], head: InboxRow, past: ExceededCap) -> tuple[InboxRow, ...]:
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
