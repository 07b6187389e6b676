"""Spans of time and of the calendar, times that a phrase names, and conversations by their place.

Weeks begin on Monday.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, datetime, timedelta

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A half-open interval of time; a missing end is open."""

    start: datetime | None
    end: datetime | None

    def covers(self, at: datetime) -> bool:
        """Return True if *at* is in the span."""
        return (self.start is None or self.start <= at) and (self.end is None or at < self.end)

    def widened(self) -> TimeSpan:
        """Return the span with a day more on both sides."""
        return TimeSpan(self.start and self.start - DAY, self.end and self.end + DAY)


@dataclass(frozen=True, slots=True)
class ConversationReference:
    """Conversations that a query names by their place: from 1 on, or before the present one, from -1 on."""

    first: int
    last: int


class TimeGrain(enum.IntEnum):
    """Length of a time."""

    MOMENT = 1
    PART = 2  # of a day
    DAY = 3
    DAYS = 4  # a weekend, the end of a month
    WEEK = 5
    MONTH = 6
    SEASON = 7  # a quarter, a half of a year
    YEAR = 8


Place = Callable[[TimeSpan, TimeGrain], TimeSpan]


@dataclass(frozen=True, slots=True)
class NamedTime:
    """A time that a phrase names. Alone it is *span*, None if it is one only within a longer time or beside a day."""

    span: TimeSpan | None
    grain: TimeGrain
    place: Place | None = None  # in a longer time; ValueError if it has none
    inside: frozenset[TimeGrain] = frozenset()  # the longer times that it may be placed in
    is_complete: bool = True  # False: "the week" of "the end of the week" needs another time beside it
    move: Callable[[datetime], datetime] | None = None  # "a week ago" beside a day: to the day of that time


LONG = frozenset({TimeGrain.WEEK, TimeGrain.MONTH, TimeGrain.SEASON, TimeGrain.YEAR})
YEAR = frozenset({TimeGrain.YEAR})
MONTHS_AND_LONGER = frozenset({TimeGrain.MONTH, TimeGrain.SEASON, TimeGrain.YEAR})


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """Length of a unit of time, its grain, and the longer times whose parts it counts."""

    length: timedelta
    months: int = 0
    grain: TimeGrain = TimeGrain.DAY
    inside: frozenset[TimeGrain] = frozenset()


UNITS: Mapping[str, TimeUnit] = {
    "minute": TimeUnit(timedelta(minutes=1), grain=TimeGrain.MOMENT),
    "quarter hour": TimeUnit(timedelta(minutes=15), grain=TimeGrain.MOMENT),
    "hour": TimeUnit(timedelta(hours=1), grain=TimeGrain.MOMENT),
    "day": TimeUnit(DAY, inside=LONG),
    "night": TimeUnit(DAY, grain=TimeGrain.PART),
    "week": TimeUnit(7 * DAY, grain=TimeGrain.WEEK, inside=MONTHS_AND_LONGER),
    "weekend": TimeUnit(7 * DAY, grain=TimeGrain.DAYS, inside=MONTHS_AND_LONGER),
    "fortnight": TimeUnit(14 * DAY, grain=TimeGrain.WEEK, inside=MONTHS_AND_LONGER),
    "month": TimeUnit(30 * DAY, 1, TimeGrain.MONTH, MONTHS_AND_LONGER - {TimeGrain.MONTH}),
    "quarter": TimeUnit(91 * DAY, 3, TimeGrain.SEASON, YEAR),
    "half year": TimeUnit(182 * DAY, 6, TimeGrain.SEASON, YEAR),
    "half": TimeUnit(DAY, grain=TimeGrain.DAYS, inside=MONTHS_AND_LONGER),
    "year": TimeUnit(365 * DAY, 12, TimeGrain.YEAR),
    "decade": TimeUnit(3_652 * DAY, 120, TimeGrain.YEAR),
}


def midnight(at: datetime) -> datetime:
    """Return the beginning of the day of *at*."""
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def days_from(start: datetime, count: float = 1) -> TimeSpan:
    """Return *count* days from *start* on."""
    return TimeSpan(start, start + count * DAY)


def months_from(start: datetime, count: int = 1) -> TimeSpan:
    """Return the time from *start* to the end of *count* months."""
    return TimeSpan(start, first_of_month(start, count))


def first_of_month(at: datetime, months: int) -> datetime:
    """Return the first day of the month *months* after that of *at*."""
    number = at.year * 12 + at.month - 1 + months
    if not 12 <= number < 12 * MAXYEAR:
        raise ValueError(f"there is no month {number}")
    return midnight(at).replace(year=number // 12, month=number % 12 + 1, day=1)


def move_by_units(at: datetime, unit: str, count: int) -> datetime:
    """Return *at* moved by *count* units; a day that its month does not have is the month's last."""
    made_of = UNITS[unit]
    if not made_of.months:
        return at + count * made_of.length
    month = first_of_month(at, count * made_of.months)
    return at.replace(year=month.year, month=month.month, day=min(at.day, (first_of_month(month, 1) - DAY).day))


def move_to_year(at: datetime, year: int) -> datetime:
    """Return *at* in *year*; 29 February is 1 March in other years than leap years."""
    try:
        return at.replace(year=year)
    except ValueError:
        return at.replace(year=year, month=3, day=1)


def limits_of(span: TimeSpan) -> tuple[datetime, datetime]:
    """Return beginning and end. Raises ValueError if one is open."""
    if span.start is None or span.end is None:
        raise ValueError("it has no limits")
    return span.start, span.end


def start_of(span: TimeSpan) -> datetime:
    """Return the beginning. Raises ValueError if the span is open."""
    return limits_of(span)[0]


def part_of_day(day: datetime, part: tuple[int, int] | None) -> TimeSpan:
    """Return the hours *part* of the day that begins at *day*, by default all of it."""
    first, last = part or (0, 24)
    return TimeSpan(day + timedelta(hours=first), day + timedelta(hours=last)) if part else days_from(day)


def period_of(unit: str, day: datetime, offset: int) -> TimeSpan:
    """Return the week, month or year *offset* after that of *day*."""
    if months := UNITS[unit].months:
        in_unit = (day.year % 10) * 12 + day.month - 1 if unit == "decade" else (day.month - 1) % months
        return months_from(first_of_month(day, months * offset - in_unit), months)
    monday = day - day.weekday() * DAY
    match unit:
        case "weekend":  # on a Sunday, "last weekend" is the one before
            return days_from(monday + (7 * offset + 5) * DAY, 2)
        case "week" | "fortnight":
            length = UNITS[unit].length
            return TimeSpan(monday + offset * length, monday + (offset + 1) * length)
    raise ValueError("not a period of the calendar")


def nth_weekday(whole: TimeSpan, weekday: int, place: int) -> datetime:
    """Return the first (1) or last (-1) such weekday of a time."""
    start, end = limits_of(whole)
    if place > 0:
        found = start + ((weekday - start.weekday()) % 7 + 7 * (place - 1)) * DAY
    else:
        found = end - DAY - (((end - DAY).weekday() - weekday) % 7 + 7 * (-place - 1)) * DAY
    if not start <= found < end:
        raise ValueError("there are fewer")
    return found


def easter_of(at: datetime) -> datetime:
    """Return Easter Sunday of the year of *at*, by the Gregorian calendar (the algorithm of Meeus, Jones, Butcher)."""
    year = at.year
    golden, century = year % 19, year // 100
    epact = (19 * golden + century - century // 4 - (century - (century + 8) // 25 + 1) // 3 + 15) % 30
    weekday = (32 + 2 * (century % 4) + 2 * (year % 100 // 4) - epact - year % 100 % 4) % 7
    correction = (golden + 11 * epact + 22 * weekday) // 451
    month, day = divmod(epact + weekday - 7 * correction + 114, 31)
    return midnight(at).replace(month=month, day=day + 1)
