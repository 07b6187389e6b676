"""Find time zones by IANA name or by city."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

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
