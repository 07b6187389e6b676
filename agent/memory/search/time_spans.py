"""Resolve times in words to spans, relative to a moment: "last Saturday", "vor vier Tagen", "the second Sunday".

A date without a year is the latest one that has begun. Weeks begin on Monday. Times that are part of a longer one are
placed in it: "Saturday" in "last week", "the second Sunday" in "May".
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, date, datetime, timedelta

from agent.memory.search.language_data import MONTHS
from agent.memory.search.time_words import (
    FEASTS,
    FEW,
    HALVES,
    LAST_ORDINALS,
    NUMBERS,
    ORDINALS,
    PARTS_OF_DAY,
    SEASONS,
    SHORT_WEEKDAYS,
    SPANISH_DAYS,
    UNITS,
    WEEKDAYS,
)

DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)


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


_LONG = frozenset({TimeGrain.WEEK, TimeGrain.MONTH, TimeGrain.SEASON, TimeGrain.YEAR})
_YEAR = frozenset({TimeGrain.YEAR})
_MONTHS = frozenset({TimeGrain.MONTH, TimeGrain.SEASON, TimeGrain.YEAR})


@dataclass(frozen=True, slots=True)
class NamedTime:
    """A time that a phrase names. Alone it is *span*, None if it is one only within a longer time or beside a day."""

    span: TimeSpan | None
    grain: TimeGrain
    place: Callable[[TimeSpan, TimeGrain], TimeSpan] | None = None  # in a longer time; ValueError if it has none
    inside: frozenset[TimeGrain] = frozenset()  # the longer times that it may be placed in
    is_complete: bool = True  # False: "the week" of "the end of the week" needs another time beside it
    move: Callable[[datetime], datetime] | None = None  # "a week ago" beside a day: to the day of that time


Groups = Mapping[str, str]
Resolver = Callable[[Groups, datetime], NamedTime | ConversationReference]


def _midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def _days(start: datetime, count: int = 1) -> TimeSpan:
    return TimeSpan(start, start + count * DAY)


def _months(start: datetime, count: int = 1) -> TimeSpan:
    return TimeSpan(start, _shifted(start, count))


def _shifted(at: datetime, months: int) -> datetime:
    """Return the first day of the month *months* after that of *at*."""
    number = at.year * 12 + at.month - 1 + months
    if not 12 <= number < 12 * MAXYEAR:
        raise ValueError(f"there is no month {number}")
    return _midnight(at).replace(year=number // 12, month=number % 12 + 1, day=1)


def _part_of(day: datetime, part: str) -> TimeSpan:
    """Return a part of the day that begins at *day*; the whole day without one."""
    if not part:
        return _days(day)
    first, last = PARTS_OF_DAY[part]
    return TimeSpan(day + timedelta(hours=first), day + timedelta(hours=last))


def _day(day: datetime, part: str = "") -> NamedTime:
    return NamedTime(_part_of(day, part), TimeGrain.PART if part else TimeGrain.DAY)


def move_to_year(at: datetime, year: int) -> datetime:
    """Return *at* in *year*; 29 February is 1 March in other years than leap years."""
    is_leap_day = (at.month, at.day) == (2, 29) and not _is_leap(year)
    return at.replace(year=year, month=3, day=1) if is_leap_day else at.replace(year=year)


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def read_number(text: str) -> int:
    """Return the number that digits or words are."""
    return int(text) if text.isdecimal() else NUMBERS[text]


def read_ordinal(text: str) -> int:
    """Return the place that an ordinal names, from the end below 0. Raises KeyError."""
    digits = text.rstrip(".ºªstndrhe")
    if digits.isdecimal():
        return int(digits)
    return ORDINALS.get(text) or LAST_ORDINALS[text]


def _day_number(groups: Groups) -> int:
    text = groups.get("day", "0")
    return SPANISH_DAYS[text] if text in SPANISH_DAYS else read_ordinal(text) if text != "0" else 0


def read_year(text: str) -> int:
    """Return a year of two or four digits."""
    return int(text) if len(text) == 4 else 2_000 + int(text.lstrip("'’"))


# -- near today ------------------------------------------------------------------------------------


def resolve_relative(offset: int) -> Resolver:
    """Resolve "today" (0), "yesterday evening" (-1): the day *offset* days from now, or a part of it."""
    return lambda groups, now: _day(_midnight(now) + offset * DAY, groups.get("part", ""))


def resolve_part(groups: Groups, now: datetime) -> NamedTime:  # noqa: ARG001 - a resolver
    """Resolve "in the morning", which needs a day beside it."""
    return NamedTime(
        None, TimeGrain.PART, lambda day, _: _part_of(_start_of(day), groups["part"]), frozenset({TimeGrain.DAY})
    )


def resolve_clock(groups: Groups, now: datetime) -> NamedTime:  # noqa: ARG001 - a resolver
    """Resolve "at 3 pm", which needs a day or a part of one beside it: half an hour on both sides."""
    hour, minute = int(groups["hour"]), int(groups.get("minute", 0))
    half = groups.get("half", "").replace(".", "")

    def place(day: TimeSpan, grain: TimeGrain) -> TimeSpan:
        start = _start_of(day)
        is_late = half == "pm" or (not half and grain is TimeGrain.PART and start.hour >= 12)
        at = _midnight(start).replace(hour=hour % 12 + 12 * is_late if half or is_late else hour, minute=minute)
        return TimeSpan(at - timedelta(minutes=30), at + timedelta(minutes=30))

    return NamedTime(None, TimeGrain.MOMENT, place, frozenset({TimeGrain.DAY, TimeGrain.PART}))


def resolve_earlier(groups: Groups, now: datetime) -> NamedTime:
    """Resolve the "earlier" of "earlier this week": its time until now; or "later", from now on."""
    is_later = groups["when"] in {"later", "später", "más tarde"}

    def place(whole: TimeSpan, grain: TimeGrain) -> TimeSpan:
        start, end = _start_of(whole), whole.end or now
        if not start <= now < end or grain is TimeGrain.DAY:
            return whole
        return TimeSpan(now, end) if is_later else TimeSpan(start, now + _SECOND)

    grains = {TimeGrain.PART, TimeGrain.DAY, TimeGrain.WEEK, TimeGrain.MONTH, TimeGrain.SEASON, TimeGrain.YEAR}
    return NamedTime(None, TimeGrain.DAYS, place, frozenset(grains))


def _start_of(span: TimeSpan) -> datetime:
    if span.start is None:
        raise ValueError("it has no beginning")
    return span.start


# -- so and so long ago ----------------------------------------------------------------------------


def _move(at: datetime, unit: str, count: int) -> datetime:
    """Return *at* moved by *count* units; a day that its month does not have is the month's last."""
    match unit:
        case "minute":
            return at + count * timedelta(minutes=1)
        case "hour":
            return at + count * timedelta(hours=1)
        case "week" | "fortnight":
            return at + count * (7 if unit == "week" else 14) * DAY
        case "month" | "quarter" | "year" | "decade":
            month = _shifted(at, count * {"month": 1, "quarter": 3, "year": 12, "decade": 120}[unit])
            last = (_shifted(month, 1) - DAY).day
            return at.replace(year=month.year, month=month.month, day=min(at.day, last))
    return at + count * DAY


def _is_few(text: str) -> bool:
    return text in FEW


def resolve_ago(direction: int) -> Resolver:
    """Resolve "four days ago" (-1) or "in four days" (1): that day; that week, month or year for the longer units."""

    def resolve(groups: Groups, now: datetime) -> NamedTime:
        unit, amount = UNITS[groups["unit"]], groups.get("count", "1")
        if amount in HALVES or "half" in groups:
            halves = HALVES[amount] if amount in HALVES else read_number(amount) + 0.5
            return _half_ago(unit, direction * halves, now)
        if _is_few(amount):
            return _few_ago(unit, direction, now)
        first = direction * read_number(amount)
        last = direction * read_number(groups["most"]) if "most" in groups else first
        spans = [_ago(unit, count, now, groups.get("part", "")) for count in (first, last)]
        whole = TimeSpan(min(map(_start_of, spans)), max(each.end or now for each in spans))
        grain = _GRAINS[unit] if first == last else TimeGrain.DAYS
        if grain is TimeGrain.DAY and "part" in groups:
            grain = TimeGrain.PART
        return NamedTime(whole, grain, move=lambda at: _move(at, unit, first))

    return resolve


_GRAINS: Mapping[str, TimeGrain] = {
    "minute": TimeGrain.MOMENT,
    "hour": TimeGrain.MOMENT,
    "day": TimeGrain.DAY,
    "night": TimeGrain.PART,
    "weekend": TimeGrain.DAYS,
    "week": TimeGrain.WEEK,
    "fortnight": TimeGrain.WEEK,
    "month": TimeGrain.MONTH,
    "quarter": TimeGrain.SEASON,
    "year": TimeGrain.YEAR,
    "decade": TimeGrain.YEAR,
}


def _ago(unit: str, count: int, now: datetime, part: str) -> TimeSpan:
    day = _midnight(now)
    match unit:
        case "minute":
            at, about = _move(now, unit, count), timedelta(minutes=max(2.0, abs(count) / 2))
            return TimeSpan(at - about, at + about)
        case "hour":
            at = _move(now, unit, count)
            return TimeSpan(at - timedelta(minutes=30), at + timedelta(minutes=30))
        case "day":
            return _part_of(day + count * DAY, part)
        case "night":
            return _part_of(day + count * DAY, "night")
        case "month":
            return _months(_shifted(now, count))
        case "quarter":
            return _months(_shifted(now, 3 * count - (now.month - 1) % 3), 3)
        case "year":
            return _months(_shifted(now, 12 * count - now.month + 1), 12)
        case "decade":
            return _months(_shifted(now, 120 * count - 24), 48)
        case "weekend":
            saturday = day - ((day.weekday() - 5) % 7 or 7) * DAY
            return _days(saturday + 7 * (count + (1 if count < 0 else 0)) * DAY, 2)
    return _days(_move(day, unit, count) - 3 * DAY, 7)


def _half_ago(unit: str, count: float, now: datetime) -> NamedTime:
    """Return the time around "half a year ago"."""
    day, sign = _midnight(now), 1 if count > 0 else -1
    if unit in {"minute", "hour", "day"}:
        at = now + count * {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": DAY}[unit]
        about = timedelta(minutes=15) if unit != "day" else timedelta(hours=3)
        return NamedTime(TimeSpan(at - about, at + about), TimeGrain.MOMENT)
    if unit in {"year", "decade"}:
        months = round(count * (12 if unit == "year" else 120))
        middle = _move(day, "month", months)
        return NamedTime(TimeSpan(middle - 15 * DAY, middle + 16 * DAY), TimeGrain.DAYS)
    if unit == "month":
        middle = _move(day, "month", int(count)) + sign * 15 * DAY
        return NamedTime(TimeSpan(middle - 4 * DAY, middle + 5 * DAY), TimeGrain.DAYS)
    middle = day + round(count * 7) * DAY
    return NamedTime(TimeSpan(middle - DAY, middle + 2 * DAY), TimeGrain.DAYS)


def _few_ago(unit: str, direction: int, now: datetime) -> NamedTime:
    """Return the time of "a few days ago": one to six days back; two to six of the longer units."""
    if unit in {"minute", "hour"}:
        least, most = (_move(now, unit, direction * n) for n in ((1, 6) if unit == "hour" else (1, 15)))
    else:
        day = _midnight(now)
        near = direction * (1 if unit in {"day", "night"} else 2)
        least, most = _move(day, unit, near), _move(day, unit, 6 * direction)
    start, end = min(least, most), max(least, most)
    if unit == "year":
        start = start.replace(month=1, day=1)
    return NamedTime(TimeSpan(start, end + DAY if unit not in {"minute", "hour"} else end), TimeGrain.DAYS)


def resolve_within(direction: int) -> Resolver:
    """Resolve "the last three weeks" (-1), up to now, or "the next few days" (1), from tomorrow on."""

    def resolve(groups: Groups, now: datetime) -> NamedTime:
        unit, amount = UNITS[groups["unit"]], groups.get("count", "1")
        if amount in HALVES or "half" in groups:
            count = HALVES[amount] if amount in HALVES else read_number(amount) + 0.5
        else:
            count = 6 if _is_few(amount) else read_number(amount)
        length = {
            "minute": timedelta(minutes=1), "hour": timedelta(hours=1), "week": 7 * DAY, "fortnight": 14 * DAY,
            "weekend": 7 * DAY, "month": 30 * DAY, "quarter": 91 * DAY, "year": 365 * DAY, "decade": 3652 * DAY,
        }.get(unit, DAY)  # fmt: skip
        day = now if unit in {"minute", "hour"} else _midnight(now)
        if unit == "day" and amount in {"1", "a", "one"}:
            day = now  # the past day: 24 hours
        if direction > 0:
            return NamedTime(TimeSpan(now, day + count * length + (0 if day == now else 1) * DAY), TimeGrain.DAYS)
        return NamedTime(TimeSpan(day - count * length, now + _SECOND), TimeGrain.DAYS)

    return resolve


# -- calendar periods ------------------------------------------------------------------------------


def _period(unit: str, day: datetime, offset: int) -> TimeSpan:
    """Return the week, month or year *offset* after that of *day*."""
    monday = day - day.weekday() * DAY
    match unit:
        case "month":
            return _months(_shifted(day, offset))
        case "quarter":
            return _months(_shifted(day, 3 * offset - (day.month - 1) % 3), 3)
        case "year":
            return _months(_shifted(day, 12 * offset - day.month + 1), 12)
        case "decade":
            return _months(_shifted(day, 120 * offset - day.month + 1 - 12 * (day.year % 10)), 120)
        case "weekend":
            # On a Sunday, "last weekend" is the one before.
            return _days(monday + (7 * offset + 5) * DAY, 2)
        case "week":
            return _days(monday + 7 * offset * DAY, 7)
        case "fortnight":
            return _days(monday + 14 * offset * DAY, 14)
        case "night":
            return _part_of(day + offset * DAY, "night")
    return _days(day + offset * DAY)


def resolve_period(offset: int) -> Resolver:
    """Resolve "last week" (-1), "this month" (0), "the weekend before last" (-2)."""

    def resolve(groups: Groups, now: datetime) -> NamedTime:
        unit = UNITS[groups["unit"]]
        return NamedTime(_period(unit, _midnight(now), offset), _GRAINS[unit])

    return resolve


def resolve_present(groups: Groups, now: datetime) -> NamedTime:
    """Resolve the "the week" of "the end of the week"."""
    unit = UNITS[groups["unit"]]
    return NamedTime(_period(unit, _midnight(now), 0), _GRAINS[unit], is_complete=False)


def resolve_weekend(groups: Groups, now: datetime) -> NamedTime:  # noqa: ARG001 - a resolver
    """Resolve "at the weekend": the present one, or the latest."""
    span = _period("weekend", _midnight(now), 0)
    return NamedTime(span if _start_of(span) <= now else _period("weekend", _midnight(now), -1), TimeGrain.DAYS)


def resolve_quarter(groups: Groups, now: datetime) -> NamedTime:
    """Resolve "Q3 2026" and "the second half of 2025"; without a year the latest that has begun."""
    number = int(groups["quarter"]) if "quarter" in groups else read_ordinal(groups["ordinal"])
    length = 6 if "semester" in groups else 3
    if not 1 <= number <= 12 // length:
        raise ValueError(f"no part {number} of a year")

    def place(year: TimeSpan, _: TimeGrain) -> TimeSpan:
        return _months(_shifted(_start_of(year), length * (number - 1)), length)

    return _of_year(groups, now, place, TimeGrain.SEASON)


def resolve_week_number(groups: Groups, now: datetime) -> NamedTime:
    """Resolve "week 23 of 2026", as numbered by ISO 8601."""
    number = int(groups["number"])

    def place(year: TimeSpan, _: TimeGrain) -> TimeSpan:
        monday = date.fromisocalendar(_start_of(year).year, number, 1)
        return _days(_midnight(now).replace(year=monday.year, month=monday.month, day=monday.day), 7)

    return _of_year(groups, now, place, TimeGrain.WEEK)


def _of_year(
    groups: Groups,
    now: datetime,
    place: Callable[[TimeSpan, TimeGrain], TimeSpan],
    grain: TimeGrain,
    *,
    years_between: int = 1,
) -> NamedTime:
    """Return a time of a named year; else the latest that has begun, the one before or the next one."""
    year = _period("year", _midnight(now), 0)
    if "year" in groups:
        start = _start_of(year).replace(year=read_year(groups["year"]))
        return NamedTime(place(_months(start, 12), TimeGrain.YEAR), grain)

    def of(offset: int) -> TimeSpan:
        return place(_period("year", _midnight(now), offset), TimeGrain.YEAR)

    offsets = range(1, -9, -1) if years_between > 1 else (1, 0, -1, -2)
    spans = []
    for offset in offsets:
        try:
            spans.append(of(offset))
        except ValueError:  # 29 February
            continue
    begun = [span for span in spans if _start_of(span) <= now]
    which = groups.get("which", "")
    if which in _NEXT:
        future = [span for span in spans if _start_of(span) > now]
        return NamedTime(future[-1], grain)
    if which in _BEFORE_LAST:
        return NamedTime(begun[1], grain)
    if which in _THIS:
        return NamedTime(of(0), grain)
    is_over = [span for span in begun if span.end is not None and span.end <= now]
    span = is_over[0] if which in _LAST else begun[0]
    return NamedTime(span, grain, place, _YEAR)


_LAST = frozenset(
    [
        "last",
        "previous",
        "past",
        "letzte",
        "letzten",
        "letzter",
        "letztes",
        "letztem",
        "vorige",
        "vorigen",
        "voriger",
        "voriges",
        "vorigem",
        "vergangene",
        "vergangenen",
        "vergangener",
        "vergangenes",
        "vergangenem",
        "pasado",
        "pasada",
        "pasados",
        "pasadas",
        "último",
        "última",
        "去年",
        "上",
    ]
)
_BEFORE_LAST = frozenset({"before last", "vorletzte", "vorletzten", "vorletzter", "vorletztes", "vorletztem"})
_BEFORE_LAST |= {"antepasado", "antepasada", "前年"}
_THIS = frozenset(["this", "diese", "diesen", "dieser", "dieses", "diesem", "este", "esta", "今年"])
_NEXT = frozenset(
    [
        "next",
        "coming",
        "upcoming",
        "nächste",
        "nächsten",
        "nächster",
        "nächstes",
        "nächstem",
        "kommende",
        "kommenden",
        "kommender",
        "kommendes",
        "kommendem",
        "próximo",
        "próxima",
        "proximo",
        "proxima",
        "que",
        "viene",
    ]
) | {"que viene", "this coming", "this upcoming", "明年", "下"}


# -- weekdays --------------------------------------------------------------------------------------


def _weekday_number(groups: Groups) -> int:
    text = groups["weekday"].rstrip(".")
    return SHORT_WEEKDAYS[text] if text in SHORT_WEEKDAYS else WEEKDAYS[text]


def resolve_weekday(weeks_before: int | None = None) -> Resolver:
    """Resolve a weekday: its latest before today, or that of the week *weeks_before* the present one."""

    def resolve(groups: Groups, now: datetime) -> NamedTime:
        day, number, part = _midnight(now), _weekday_number(groups), groups.get("part", "")
        which = groups.get("which", "")
        if weeks_before is not None:
            back = day.weekday() - number + 7 * weeks_before
        elif which in _NEXT:
            back = -((number - day.weekday() - 1) % 7 + 1)
        elif which in _THIS:
            back = day.weekday() - number
        else:
            back = (day.weekday() - number - 1) % 7 + 1
        if groups["weekday"] == "末":  # 周末, the weekend
            return NamedTime(_days(day - (back + 1) * DAY, 2), TimeGrain.DAYS)
        start = day - back * DAY

        def place(week: TimeSpan, _: TimeGrain) -> TimeSpan:
            first = _start_of(week)
            return _part_of(first + (number - first.weekday()) % 7 * DAY, part)

        grain = TimeGrain.PART if part else TimeGrain.DAY
        return NamedTime(_part_of(start, part), grain, place, frozenset({TimeGrain.WEEK}))

    return resolve


def resolve_weekdays_ago(groups: Groups, now: datetime) -> NamedTime:
    """Resolve "three Sundays ago"; the Sunday before today is one Sunday ago."""
    latest = resolve_weekday()(groups, now)
    start = latest.span.start if isinstance(latest, NamedTime) and latest.span else None
    return _day((start or now) - 7 * (read_number(groups["count"]) - 1) * DAY)


def _nth_weekday(whole: TimeSpan, weekday: int, place: int) -> datetime:
    """Return the first (1) or last (-1) such weekday of a time."""
    start, end = _start_of(whole), whole.end or _start_of(whole)
    if place > 0:
        found = start + ((weekday - start.weekday()) % 7 + 7 * (place - 1)) * DAY
    else:
        last = end - DAY
        found = last - ((last.weekday() - weekday) % 7 + 7 * (-place - 1)) * DAY
    if not start <= found < end:
        raise ValueError("there are fewer")
    return found


def resolve_nth_weekday(groups: Groups, now: datetime) -> NamedTime:
    """Resolve "the second Sunday" of a longer time; alone, "the last Sunday" is the latest."""
    ordinal, number, day = read_ordinal(groups["ordinal"]), _weekday_number(groups), _midnight(now)
    span = None
    if ordinal == -1:
        span = _days(day - ((day.weekday() - number - 1) % 7 + 1) * DAY)
    elif ordinal < 0:
        span = _days(day - (day.weekday() - number - 7 * ordinal) * DAY)
    return NamedTime(span, TimeGrain.DAY, lambda whole, _: _days(_nth_weekday(whole, number, ordinal)), _MONTHS)


def resolve_nth(groups: Groups, now: datetime) -> NamedTime:
    """Resolve "the second week", "the first three days" of a longer time; alone, "the last month" is a period."""
    ordinal, amount = read_ordinal(groups["ordinal"]), groups.get("count", "1")
    name = groups.get("unit", "half")
    unit = UNITS[name] if name != "half" else name
    is_few = _is_few(amount) or ("count" not in groups and name in {"days", "tage", "tagen", "días", "dias"})
    count = 3 if is_few else read_number(amount)
    inside = _PARTS_OF[unit]
    is_period = ordinal < 0 and count == 1 and unit in {"week", "weekend", "month", "quarter"}
    span = _period(unit, _midnight(now), ordinal) if is_period else None
    grain = _GRAINS.get(unit, TimeGrain.DAYS) if count == 1 else TimeGrain.DAYS
    return NamedTime(span, grain, lambda whole, of: _nth_part(whole, of, unit, ordinal, count), inside)


_PARTS_OF: Mapping[str, frozenset[TimeGrain]] = {
    "day": _LONG,
    "week": _MONTHS,
    "weekend": _MONTHS,
    "fortnight": _MONTHS,
    "month": frozenset({TimeGrain.SEASON, TimeGrain.YEAR}),
    "quarter": _YEAR,
    "half": _MONTHS,
}


def _nth_part(whole: TimeSpan, grain: TimeGrain, unit: str, ordinal: int, count: int) -> TimeSpan:
    """Return the part of *whole* that is *count* units long, at the place *ordinal*. Raises ValueError."""
    start, end = _start_of(whole), whole.end or _start_of(whole)
    if unit == "half":
        middle = {TimeGrain.MONTH: start + 15 * DAY, TimeGrain.YEAR: _shifted(start, 6)}.get(
            grain, start + (end - start) / 2
        )
        return TimeSpan(start, middle) if ordinal == 1 else TimeSpan(middle, end)
    if unit == "weekend":
        return _days(_nth_weekday(whole, 5, ordinal), 2)
    if unit in {"month", "quarter"}:
        months = count * (1 if unit == "month" else 3)
        span = _months(
            _shifted(start, (ordinal - 1) * months) if ordinal > 0 else _shifted(end, ordinal * months), months
        )
    else:
        length = count * {"week": 7, "fortnight": 14}.get(unit, 1)
        first = start + (ordinal - 1) * length * DAY if ordinal > 0 else end + ordinal * length * DAY
        span = TimeSpan(first, min(first + length * DAY, end))
    if not start <= _start_of(span) < end:
        raise ValueError("there are fewer")
    return span


# -- dates -----------------------------------------------------------------------------------------


def resolve_week_of(groups: Groups, now: datetime) -> NamedTime:
    """Resolve "the week of 13 January": the calendar week of that day."""
    day = _start_of(resolve_date(groups, now).span or TimeSpan(now, now))
    return NamedTime(_days(day - day.weekday() * DAY, 7), TimeGrain.WEEK)


def resolve_date(groups: Groups, now: datetime) -> NamedTime:
    """Resolve "13 January" or "May 2024": a day or the month."""
    name = groups["month"].rstrip(".")
    number = MONTHS.get(name) or int(name)
    day, part = _day_number(groups), groups.get("part", "")

    def place(year: TimeSpan, _: TimeGrain) -> TimeSpan:
        start = _start_of(year).replace(month=number, day=1)
        return _part_of(start.replace(day=day), part) if day else _months(start)

    grain = TimeGrain.MONTH if not day else TimeGrain.PART if part else TimeGrain.DAY
    return _of_year(groups, now, place, grain, years_between=4 if (day, number) == (29, 2) else 1)


def resolve_day_of_month(groups: Groups, now: datetime) -> NamedTime:
    """Resolve "the 20th": the latest that has begun, or that of the month beside it."""
    day = _day_number(groups)

    def place(month: TimeSpan, _: TimeGrain) -> TimeSpan:
        return _days(_start_of(month).replace(day=day))

    span = None
    for back in (0, 1, 2):
        try:
            span = place(_months(_shifted(now, -back)), TimeGrain.MONTH)
        except ValueError:
            continue
        if _start_of(span) <= now:
            break
    is_alone = "only" not in groups
    return NamedTime(span if is_alone else None, TimeGrain.DAY, place, frozenset({TimeGrain.MONTH}))


def resolve_third(groups: Groups, now: datetime) -> NamedTime:  # noqa: ARG001 - a resolver
    """Resolve the "early", "mid" or "end of" of a longer time: days 1 to 10, 11 to 20, from 21 on of a month."""
    words = groups["third"]
    if any(part in words for part in ("mid", "mitt", "medi")):
        third = 1
    elif any(part in words for part in ("end", "late", "clos", "fin", "spät")):
        third = 2
    else:
        third = 0

    def place(whole: TimeSpan, grain: TimeGrain) -> TimeSpan:
        start, end = _start_of(whole), whole.end or _start_of(whole)
        match grain:
            case TimeGrain.WEEK:
                first, last = ((0, 3), (2, 5), (4, 7))[third]
                return TimeSpan(start + first * DAY, start + last * DAY)
            case TimeGrain.MONTH:
                return (
                    TimeSpan(start, start + 10 * DAY),
                    TimeSpan(start + 10 * DAY, start + 20 * DAY),
                    TimeSpan(start + 20 * DAY, end),
                )[third]
            case TimeGrain.SEASON:
                return _months(_shifted(start, third), 1)
            case TimeGrain.YEAR:
                return (_months(start, 3), _months(_shifted(start, 4), 4), _months(_shifted(start, 9), 3))[third]
        length = (end - start) / 3
        return TimeSpan(start + third * length, start + (third + 1) * length)

    return NamedTime(None, TimeGrain.DAYS, place, _LONG | {TimeGrain.PART})


def resolve_days_of_month(groups: Groups, now: datetime) -> NamedTime:
    """Resolve "3 to 9 May", both inclusive."""
    first = resolve_date({**groups, "day": groups["first"]}, now)
    last = resolve_date({**groups, "day": groups["last"]}, now)

    def between(start: TimeSpan, end: TimeSpan) -> TimeSpan:
        if start.start is not None and end.end is not None and end.end <= start.start:
            end = TimeSpan(None, move_to_year(end.end, end.end.year + 1))
        return TimeSpan(start.start, end.end)

    if first.span is None or last.span is None:
        raise ValueError("not two dates")
    if first.place is None or last.place is None:
        return NamedTime(between(first.span, last.span), TimeGrain.DAYS)
    one, other = first.place, last.place
    return NamedTime(
        between(first.span, last.span),
        TimeGrain.DAYS,
        lambda year, grain: between(one(year, grain), other(year, grain)),
        _YEAR,
    )


def resolve_slashes(groups: Groups, now: datetime) -> NamedTime:
    """Resolve 5/3/2024: month first, unless it is above 12."""
    if int(groups["month"]) > 12:
        groups = {**groups, "month": groups["day"], "day": groups["month"]}
    return resolve_date(groups, now)


def resolve_season(groups: Groups, now: datetime) -> NamedTime:
    """Resolve "last summer" or "winter 2023": three months, by the north."""
    month = SEASONS[groups["season"]]
    return _of_year(
        groups, now, lambda year, _: _months(_start_of(year).replace(month=month, day=1), 3), TimeGrain.SEASON
    )


def resolve_year(groups: Groups, now: datetime) -> NamedTime:
    """Resolve "in 2023"."""
    start = _midnight(now).replace(year=read_year(groups["year"]), month=1, day=1)
    return NamedTime(_months(start, 12), TimeGrain.YEAR)


def resolve_feast(groups: Groups, now: datetime) -> NamedTime:
    """Resolve "Christmas" and "Easter": the latest that have begun."""
    when = FEASTS[groups["feast"].replace("’", "'")]

    def place(year: TimeSpan, _: TimeGrain) -> TimeSpan:
        start = _start_of(year)
        if len(when) == 3:
            return _days(start.replace(month=when[0], day=when[1]), when[2])
        if len(when) == 4:
            return _days(_nth_weekday(_months(start.replace(month=when[0])), when[1], when[2]), when[3])
        return _days(_easter(start) + when[0] * DAY, when[1])

    return _of_year(groups, now, place, TimeGrain.DAYS)


def _easter(at: datetime) -> datetime:
    """Return Easter Sunday of the year of *at*, by the Gregorian calendar (the algorithm of Meeus, Jones, Butcher)."""
    year = at.year
    golden, century = year % 19, year // 100
    epact = (19 * golden + century - century // 4 - (century - (century + 8) // 25 + 1) // 3 + 15) % 30
    weekday = (32 + 2 * (century % 4) + 2 * (year % 100 // 4) - epact - year % 100 % 4) % 7
    correction = (golden + 11 * epact + 22 * weekday) // 451
    month, day = divmod(epact + weekday - 7 * correction + 114, 31)
    return _midnight(at).replace(month=month, day=day + 1)
