"""Days, moments, spans and sizes as the people of a chat write them; the patterns stand in the catalogue."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from gateway.i18n import translate
from gateway.i18n.languages import DECIMAL, FALLBACK


def format_day(when: date, language: str = FALLBACK) -> str:
    """Return a day; of a datetime the day it has in its own zone."""
    return translate("formats.day", language, year=when.year, month=when.month, day=when.day)


def format_moment(at: datetime, zone: str, language: str = FALLBACK) -> str:
    """Return a day and the time of day in *zone*."""
    there = at.astimezone(ZoneInfo(zone))
    return translate("formats.moment", language, day=format_day(there, language), hour=there.hour, minute=there.minute)


def format_time_of_day(at: datetime, zone: str, language: str = FALLBACK) -> str:
    """Return the time of day in *zone*."""
    there = at.astimezone(ZoneInfo(zone))
    return translate("formats.clock", language, hour=there.hour, minute=there.minute)


def format_duration(length: timedelta, language: str = FALLBACK) -> str:
    """Return a length of time in days, hours and minutes; what is less than a minute is 0 minutes."""
    minutes = int(length.total_seconds()) // 60
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    name = "formats.days" if days else "formats.hours"
    return translate(name, language, days=days, hours=hours, minutes=minutes)


def format_file_size(count: int, language: str = FALLBACK) -> str:
    """Return a number of bytes."""
    for unit, bytes_ in (("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)):
        if count >= bytes_:
            number = f"{count / bytes_:.1f}".removesuffix(".0").replace(".", DECIMAL[language])
            return f"{number} {unit}"
    return f"{count} B"
