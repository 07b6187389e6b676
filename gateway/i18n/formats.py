"""Dates, times, file sizes and the use of models in a language (area `formats`), and time zones by name or by city."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from gateway.i18n import DECIMAL, FALLBACK, translate


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
    cost = format_cost(known, unpriced, language)
    percent = round(100 * cached / tokens_in) if tokens_in else 0
    return {"calls": calls, "tokens": tokens_in + tokens_out, "cached_percent": percent, "cost": cost}


def format_spent(tokens: int, known_cost: float, unpriced_calls: int, language: str = FALLBACK) -> str:
    """Return tokens and cost in words; "" where no model was asked."""
    if not (tokens or known_cost or unpriced_calls):
        return ""
    cost = format_cost(known_cost, unpriced_calls, language)
    return translate("formats.spent", language, tokens=tokens, cost=cost)


def format_cost(priced: float, unpriced_calls: int, language: str = FALLBACK) -> str:
    """Return dollars in words; calls whose price is unknown are not counted as free."""
    cost = f"${priced:.4f}"
    if not unpriced_calls:
        return cost
    word = "commands.cost_part" if priced else "commands.cost_unknown"
    return translate(word, language, cost=cost, calls=unpriced_calls)


_MOST = 3  # suggestions
_YEAR = tuple(timedelta(days=30 * month) for month in range(12))  # two zones that agree all year round are one


@dataclass(frozen=True, slots=True)
class ZoneMatch:
    """The zone that was found, or "" and similar names."""

    name: str = ""
    near: tuple[str, ...] = ()


def is_zone(name: str) -> bool:
    """Return True if *name* is exactly an IANA time zone. Reads a file the first time."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def find_midnight(at: datetime, zone: ZoneInfo, *, days: int = 0) -> datetime:
    """Return the beginning of the day of *at* in *zone*, or of that *days* later, in UTC."""
    # In UTC, since two times of one zone are compared as clocks show them, not as they follow each other.
    midnight = at.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0) + timedelta(days=days)
    return midnight.astimezone(UTC)


def find_zone(text: str) -> ZoneMatch:
    """Return the zone called *text*: "Europe/Berlin", "berlin", "New York". Blocks the first time: reads folders.

    A city name shared by several zones gives the shortest zone name if their clocks agree all year, else none.
    """
    folded = _folded(text)
    by_name, by_city = _zones_by_name()
    if folded in by_name:
        return ZoneMatch(by_name[folded])
    matches = by_city.get(folded, ())
    if matches and len({_clock(name) for name in matches}) == 1:
        return ZoneMatch(min(matches, key=len))
    return ZoneMatch(near=tuple(sorted(matches))[:_MOST] or _near(folded))


def _near(folded: str) -> tuple[str, ...]:
    by_name, by_city = _zones_by_name()
    close = get_close_matches(folded, [*by_name, *by_city], n=_MOST, cutoff=0.75)
    names = (each for word in close for each in ([by_name[word]] if word in by_name else by_city[word]))
    return tuple(dict.fromkeys(names))[:_MOST]


@cache
def _zones_by_name() -> tuple[dict[str, str], dict[str, Sequence[str]]]:
    """Return the zones by folded name, and by the folded last part of the name."""
    names = sorted(name for name in available_timezones() if name not in ("localtime", "Factory"))
    by_city: dict[str, list[str]] = {}
    for name in names:
        if "/" in name and not name.startswith("Etc/"):  # whose signs are the other way round than people think
            by_city.setdefault(_folded(name.rpartition("/")[2]), []).append(name)
    return {_folded(name): name for name in names}, dict(by_city)


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.replace("_", " ").casefold())
    return "_".join("".join(sign for sign in plain if not unicodedata.combining(sign)).split())


def _clock(name: str) -> tuple[object, ...]:
    zone, now = ZoneInfo(name), datetime.now(UTC)
    return tuple((now + step).astimezone(zone).utcoffset() for step in _YEAR)
