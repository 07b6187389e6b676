"""Spans of time, times that a phrase names, and conversations by their place."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

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
