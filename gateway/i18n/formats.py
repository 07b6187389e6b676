"""Format dates, times, file sizes and the use of models for a language; patterns are in the area `formats`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from gateway.i18n import translate
from gateway.i18n.languages import DECIMAL, FALLBACK


def format_day(when: date, language: str = FALLBACK) -> str:
    """Return *when* as a date; a datetime is not converted to another zone."""
    return translate("formats.day", language, year=when.year, month=when.month, day=when.day)


def format_moment(at: datetime, zone: str, language: str = FALLBACK) -> str:
    """Return date and time of *at* in *zone*."""
    local = at.astimezone(ZoneInfo(zone))
    return translate("formats.moment", language, day=format_day(local, language), hour=local.hour, minute=local.minute)


def format_time_of_day(at: datetime, zone: str, language: str = FALLBACK) -> str:
    """Return the time of day of *at* in *zone*."""
    local = at.astimezone(ZoneInfo(zone))
    return translate("formats.clock", language, hour=local.hour, minute=local.minute)


def format_file_size(count: int, language: str = FALLBACK) -> str:
    """Return *count* bytes in the largest unit that fits, powers of 1,000."""
    for unit, bytes_ in (("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)):
        if count >= bytes_:
            number = f"{count / bytes_:.1f}".removesuffix(".0").replace(".", DECIMAL[language])
            return f"{number} {unit}"
    return f"{count} B"


def format_usage(rows: Sequence[Mapping[str, Any]], language: str = FALLBACK) -> dict[str, Any]:
    """Return the sums of usage *rows* as fields of sentences: calls, tokens, cached_percent and cost.

    The last is in words: a call whose price is unknown is not counted as free.
    """
    names = ("calls", "tokens_in", "tokens_out", "tokens_cached", "known_cost", "unpriced_calls")
    calls, tokens_in, tokens_out, cached, known, unpriced = (sum(row[name] for row in rows) for name in names)
    cost = f"${known:.4f}"
    if unpriced:
        word = "commands.cost_part" if known else "commands.cost_unknown"
        cost = translate(word, language, cost=cost, calls=unpriced)
    percent = round(100 * cached / tokens_in) if tokens_in else 0
    return {"calls": calls, "tokens": tokens_in + tokens_out, "cached_percent": percent, "cost": cost}
