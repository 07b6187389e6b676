"""Time zones as people name them: by their IANA name, or by a city of it."""

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
    """What a name can mean: one zone, or none and those that may be meant."""

    name: str = ""
    near: tuple[str, ...] = ()


def is_zone(name: str) -> bool:
    """Say whether *name* is an IANA time zone, to the letter. Reads a file the first time."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def find_zone(text: str) -> ZoneMatch:
    """Return the zone that *text* means: "Europe/Berlin", "berlin", "New York". Reads folders the first time: blocks.

    A city of several zones means the shortest name when their clocks agree, and none when they do not.
    """
    wanted = _folded(text)
    by_name, by_city = _known()
    if wanted in by_name:
        return ZoneMatch(by_name[wanted])
    found = by_city.get(wanted, ())
    if found and len({_clock(name) for name in found}) == 1:
        return ZoneMatch(min(found, key=len))
    return ZoneMatch(near=tuple(sorted(found))[:_MOST] or _near(wanted))


def _near(wanted: str) -> tuple[str, ...]:
    by_name, by_city = _known()
    close = get_close_matches(wanted, [*by_name, *by_city], n=_MOST, cutoff=0.75)
    names = (each for word in close for each in ([by_name[word]] if word in by_name else by_city[word]))
    return tuple(dict.fromkeys(names))[:_MOST]


@cache
def _known() -> tuple[dict[str, str], dict[str, Sequence[str]]]:
    """Return the zones by their folded name, and by the folded last part of it."""
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
