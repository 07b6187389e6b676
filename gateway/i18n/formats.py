"""Format dates, times and file sizes for a language; the patterns are in the catalogue area `formats`."""

from __future__ import annotations

from datetime import date, datetime
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
