"""Resolve times in words to spans, relative to a moment: "last Saturday", "four days ago", "the second Sunday".

A resolver takes the values of a rule's groups (`time_grammar`) and the moment. A date without a year is the latest one
that has begun. Weeks begin on Monday. Times that are part of a longer one are placed in it: "Saturday" in "last week".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any

from agent.memory.search.time_spans import (
    DAY,
    LONG,
    MONTHS_AND_LONGER,
    UNITS,
    YEAR,
    ConversationReference,
    NamedTime,
    Place,
    TimeGrain,
    TimeSpan,
    days_from,
    easter_of,
    first_of_month,
    limits_of,
    midnight,
    months_from,
    move_by_units,
    move_to_year,
    nth_weekday,
    part_of_day,
    period_of,
    start_of,
)

_SECOND = timedelta(seconds=1)
Values = Mapping[str, Any]  # of the groups of a rule, by their names
Resolver = Callable[[Values, datetime], NamedTime | ConversationReference]
_NIGHT = (18, 28)


def _day(day: datetime, part: tuple[int, int] | None = None) -> NamedTime:
    return NamedTime(part_of_day(day, part), TimeGrain.PART if part else TimeGrain.DAY)


# -- near today, and so and so long ago -------------------------------------------------------------


def resolve_relative(values: Values, now: datetime) -> NamedTime:
    """Resolve "today" and "yesterday evening": so many days from now, or a part of that day."""
    offset, *part = values["daypart"] if "daypart" in values else (values["offset"],)
    return _day(midnight(now) + offset * DAY, tuple(part) or values.get("part"))


def resolve_part(values: Values, now: datetime) -> NamedTime:  # noqa: ARG001 - a resolver
    """Resolve "in the morning", which needs a day beside it."""
    place: Place = lambda day, _: part_of_day(start_of(day), values["part"])  # noqa: E731
    return NamedTime(None, TimeGrain.PART, place, frozenset({TimeGrain.DAY}))


def resolve_clock(values: Values, now: datetime) -> NamedTime:  # noqa: ARG001 - a resolver
    """Resolve "at 3 pm", which needs a day or a part of one beside it: half an hour on both sides."""
    hour, minute = values.get("time") or (values["hour"], 0)
    half = values.get("half")
    if hour > 23:
        raise ValueError("not an hour")

    def place(day: TimeSpan, grain: TimeGrain) -> TimeSpan:
        start = start_of(day)
        late = half if half is not None else 12 if grain is TimeGrain.PART and start.hour >= 12 and hour < 12 else None
        at = midnight(start).replace(hour=hour if late is None else hour % 12 + late, minute=minute)
        return TimeSpan(at - timedelta(minutes=30), at + timedelta(minutes=30))

    return NamedTime(None, TimeGrain.MOMENT, place, frozenset({TimeGrain.DAY, TimeGrain.PART}))


def resolve_earlier(values: Values, now: datetime) -> NamedTime:
    """Resolve the "earlier" of "earlier this week": its time until now; or "later", from now on."""

    def place(whole: TimeSpan, grain: TimeGrain) -> TimeSpan:
        start, end = limits_of(whole)
        if not start <= now < end or grain is TimeGrain.DAY:
            return whole
        return TimeSpan(now, end) if values["when"] == "later" else TimeSpan(start, now + _SECOND)

    return NamedTime(None, TimeGrain.DAYS, place, LONG | {TimeGrain.PART, TimeGrain.DAY})


def _amount(values: Values) -> float:
    """Return the number of units, with a half; 0 for uncounted ones."""
    if "few" in values or ("plural" in values and "count" not in values and "part_of" not in values):
        return 0
    return float(values.get("part_of", values.get("count", 1))) + (0.5 if "plus" in values else 0)


def _unit(values: Values) -> str:
    return str(values["plural"] if "plural" in values else values["unit"])


def resolve_ago(values: Values, now: datetime) -> NamedTime:
    """Resolve "four days ago" and "in four days": that day; that week, month or year for the longer units."""
    unit, amount, direction = _unit(values), _amount(values), values["direction"]
    if direction > 0 and "from" not in values and unit not in {"day", "week", "fortnight", "month", "year"}:
        raise ValueError("what is said to be in an hour is seldom a time")
    if not amount:
        return _few_ago(unit, direction, now)
    if amount != int(amount):
        return _half_ago(unit, direction * amount, now)
    first, last = direction * int(amount), direction * int(values.get("most", amount))
    spans = [limits_of(_ago(unit, count, now, values.get("part"))) for count in (first, last)]
    whole = TimeSpan(min(start for start, _ in spans), max(end for _, end in spans))
    grain = UNITS[unit].grain if first == last else TimeGrain.DAYS
    if grain is TimeGrain.DAY and "part" in values:
        grain = TimeGrain.PART
    return NamedTime(whole, grain, move=lambda at: move_by_units(at, unit, first))


def _ago(unit: str, count: int, now: datetime, part: tuple[int, int] | None) -> TimeSpan:
    day, made_of = midnight(now), UNITS[unit]
    if made_of.grain is TimeGrain.MOMENT:
        at = move_by_units(now, unit, count)
        about = timedelta(minutes=30) if unit == "hour" else max(2 * made_of.length, abs(count) / 2 * made_of.length)
        return TimeSpan(at - about, at + about)
    if unit in {"day", "night"}:
        return part_of_day(day + count * DAY, _NIGHT if unit == "night" else part)
    if unit == "decade":
        return months_from(first_of_month(now, 120 * count - 24), 48)
    if unit == "weekend":
        latest = day - ((day.weekday() - 5) % 7 or 7) * DAY
        return days_from(latest + 7 * (count + (1 if count < 0 else 0)) * DAY, 2)
    return period_of(unit, day, count) if made_of.months else days_from(move_by_units(day, unit, count) - 3 * DAY, 7)


def _half_ago(unit: str, count: float, now: datetime) -> NamedTime:
    """Return the time around "half a year ago"."""
    day, made_of = midnight(now), UNITS[unit]
    if made_of.length <= DAY:
        at = now + count * made_of.length
        about = timedelta(hours=3) if unit == "day" else timedelta(minutes=15)
        return NamedTime(TimeSpan(at - about, at + about), TimeGrain.MOMENT)
    if made_of.months > 1:
        middle, before, after = move_by_units(day, "month", round(count * made_of.months)), 15, 16
    elif made_of.months:
        middle, before, after = move_by_units(day, "month", int(count)) + (15 if count > 0 else -15) * DAY, 4, 5
    else:
        middle, before, after = day + round(count * made_of.length / DAY) * DAY, 1, 2
    return NamedTime(TimeSpan(middle - before * DAY, middle + after * DAY), TimeGrain.DAYS)


def _few_ago(unit: str, direction: int, now: datetime) -> NamedTime:
    """Return the time of "a few days ago": one to six days back; two to six of the longer units."""
    is_moment = UNITS[unit].grain is TimeGrain.MOMENT
    near, far = (1, 15 if unit == "minute" else 6) if is_moment or UNITS[unit].length == DAY else (2, 6)
    day = now if is_moment else midnight(now)
    start, end = sorted((move_by_units(day, unit, direction * near), move_by_units(day, unit, direction * far)))
    if unit == "year":
        start = start.replace(month=1, day=1)
    return NamedTime(TimeSpan(start, end if is_moment else end + DAY), TimeGrain.DAYS)


def resolve_within(values: Values, now: datetime) -> NamedTime:
    """Resolve "the last three weeks", up to now, or "the next few days", from now on."""
    unit, count, day = _unit(values), _amount(values) or 6, midnight(now)
    length = UNITS[unit].length
    if unit == "weekend" and count == 1:
        return resolve_period(values | {"offset": values["direction"]}, now)  # type: ignore[operator]
    if length < DAY or (unit == "day" and count == 1):
        day = now  # the past day: 24 hours
    if values["direction"] > 0:
        return NamedTime(TimeSpan(now, day + count * length + (0 if day == now else 1) * DAY), TimeGrain.DAYS)
    return NamedTime(TimeSpan(day - count * length, now + _SECOND), TimeGrain.DAYS)


# -- calendar periods ------------------------------------------------------------------------------


def resolve_period(values: Values, now: datetime) -> NamedTime:
    """Resolve "last week", "this month", "the weekend before last"."""
    unit = _unit(values)
    if unit == "hour" and values["offset"] == -1:
        return resolve_within(values | {"direction": -1}, now)  # type: ignore[operator]
    return NamedTime(period_of(unit, midnight(now), values["offset"]), UNITS[unit].grain)


def resolve_present(values: Values, now: datetime) -> NamedTime:
    """Resolve the "the week" of "the end of the week"."""
    return replace(resolve_period({**values, "offset": 0}, now), is_complete=False)


def resolve_weekend(values: Values, now: datetime) -> NamedTime:  # noqa: ARG001 - a resolver
    """Resolve "at the weekend": the present one, or the latest."""
    span = period_of("weekend", midnight(now), 0)
    return NamedTime(span if start_of(span) <= now else period_of("weekend", midnight(now), -1), TimeGrain.DAYS)


def _of_year(values: Values, now: datetime, place: Place, grain: TimeGrain, *, is_rare: bool = False) -> NamedTime:
    """Return a time of a named year; else the latest that has begun, the one before or the next one."""

    def of(offset: int) -> TimeSpan:
        return place(period_of("year", midnight(now), offset), TimeGrain.YEAR)

    if "year" in values:
        year = values["year"] + (2_000 if values["year"] < 100 else 0)
        return NamedTime(of(year - now.year), grain)
    spans = []
    for offset in range(1, -9 if is_rare else -3, -1):
        try:
            spans.append(of(offset))
        except ValueError:  # 29 February
            continue
    begun = [span for span in spans if start_of(span) <= now]
    if "next" in values:
        return NamedTime([span for span in spans if start_of(span) > now][-1], grain)
    if "this" in values:
        return NamedTime(of(0), grain)
    if "before_last" in values:
        return NamedTime(begun[1], grain)
    if "last" in values:
        begun = [span for span in begun if limits_of(span)[1] <= now]
    return NamedTime(begun[0], grain, place, YEAR)


def resolve_quarter(values: Values, now: datetime) -> NamedTime:
    """Resolve "Q3 2026" and "the second half-year of 2025"; without a year the latest that has begun."""
    length, number = values["quarter"] if "quarter" in values else (UNITS[_unit(values)].months, values["ordinal"])
    if length not in {3, 6} or not 1 <= number <= 12 // length:
        raise ValueError("not a part of a year")
    place: Place = lambda year, _: months_from(first_of_month(start_of(year), length * (number - 1)), length)  # noqa: E731
    return _of_year(values, now, place, TimeGrain.SEASON)


def resolve_week_number(values: Values, now: datetime) -> NamedTime:
    """Resolve "week 23 of 2026", as numbered by ISO 8601."""
    if values.get("unit", "week") != "week":
        raise ValueError("not a week")

    def place(year: TimeSpan, _: TimeGrain) -> TimeSpan:
        monday = date.fromisocalendar(start_of(year).year, values["number"], 1)
        return days_from(midnight(now).replace(year=monday.year, month=monday.month, day=monday.day), 7)

    return _of_year(values, now, place, TimeGrain.WEEK)


def resolve_third(values: Values, now: datetime) -> NamedTime:  # noqa: ARG001 - a resolver
    """Resolve the "early", "mid" or "end of" of a longer time: days 1 to 10, 11 to 20, from 21 on of a month."""
    third = values["third"]

    def place(whole: TimeSpan, grain: TimeGrain) -> TimeSpan:
        start, end = limits_of(whole)
        match grain:
            case TimeGrain.WEEK:
                first, last = ((0, 3), (2, 5), (4, 7))[third]
                return TimeSpan(start + first * DAY, start + last * DAY)
            case TimeGrain.MONTH:
                return TimeSpan(start + 10 * third * DAY, end if third == 2 else start + 10 * (third + 1) * DAY)
            case TimeGrain.SEASON:
                return months_from(first_of_month(start, third), 1)
            case TimeGrain.YEAR:
                first, count = ((0, 3), (4, 4), (9, 3))[third]
                return months_from(first_of_month(start, first), count)
        length = (end - start) / 3
        return TimeSpan(start + third * length, start + (third + 1) * length)

    return NamedTime(None, TimeGrain.DAYS, place, LONG | {TimeGrain.PART})


def resolve_nth(values: Values, now: datetime) -> NamedTime:
    """Resolve "the second week", "the first three days" of a longer time; alone, "the last month" is a period."""
    ordinal, unit, count = values["ordinal"], _unit(values), int(_amount(values)) or 3
    made_of = UNITS[unit]
    if unit in {"quarter", "half year"} and ordinal > 0 and count == 1:
        return resolve_quarter(values, now)
    if not made_of.inside:
        raise ValueError("not counted in a longer time")
    is_period = ordinal < 0 and count == 1 and unit in {"week", "weekend", "month", "quarter"}
    span = period_of(unit, midnight(now), ordinal) if is_period else None
    grain = made_of.grain if count == 1 else TimeGrain.DAYS
    return NamedTime(span, grain, lambda whole, of: _nth_part(whole, of, unit, ordinal, count), made_of.inside)


def _nth_part(whole: TimeSpan, grain: TimeGrain, unit: str, ordinal: int, count: int) -> TimeSpan:
    """Return the part of *whole* that is *count* units long, at the place *ordinal*. Raises ValueError."""
    start, end = limits_of(whole)
    if unit == "half":
        middle = {TimeGrain.MONTH: start + 15 * DAY, TimeGrain.YEAR: first_of_month(start, 6)}.get(
            grain, start + (end - start) / 2
        )
        return TimeSpan(start, middle) if ordinal == 1 else TimeSpan(middle, end)
    if unit == "weekend":
        return days_from(nth_weekday(whole, 5, ordinal), 2)
    if months := count * UNITS[unit].months:
        span = months_from(
            first_of_month(start, (ordinal - 1) * months) if ordinal > 0 else first_of_month(end, ordinal * months),
            months,
        )
    else:
        length = count * UNITS[unit].length
        first = start + (ordinal - 1) * length if ordinal > 0 else end + ordinal * length
        span = TimeSpan(first, min(first + length, end))
    if not start <= start_of(span) < end:
        raise ValueError("there are fewer")
    return span


# -- weekdays and dates ----------------------------------------------------------------------------


def resolve_weekday(values: Values, now: datetime) -> NamedTime:
    """Resolve a weekday: its latest before today, the next one, or that of the week so many weeks before this one."""
    day, number, part = midnight(now), values["weekday"], values.get("part")
    weeks = values.get("weeks", 2 if "before_last" in values else 0 if "this" in values else None)
    if weeks is not None:
        start = day - (day.weekday() - number + 7 * weeks) * DAY
    elif "next" in values:
        start = day + ((number - day.weekday() - 1) % 7 + 1) * DAY
    else:
        start = day - ((day.weekday() - number - 1) % 7 + 1) * DAY

    def place(week: TimeSpan, _: TimeGrain) -> TimeSpan:
        first = start_of(week)
        return part_of_day(first + (number - first.weekday()) % 7 * DAY, part)

    return replace(_day(start, part), place=place, inside=frozenset({TimeGrain.WEEK}))


def resolve_weekdays_ago(values: Values, now: datetime) -> NamedTime:
    """Resolve "three Sundays ago"; the Sunday before today is one Sunday ago."""
    latest = resolve_weekday({"weekday": values["weekday"]}, now).span
    return _day((start_of(latest) if latest else now) - 7 * (values["count"] - 1) * DAY)


def resolve_nth_weekday(values: Values, now: datetime) -> NamedTime:
    """Resolve "the second Sunday" of a longer time; alone, "the last Sunday" is the latest."""
    ordinal, number = values["ordinal"], values["weekday"]
    weeks = {"weeks": -ordinal} if ordinal < -1 else {}
    span = resolve_weekday({"weekday": number, **weeks}, now).span if ordinal < 0 else None
    return NamedTime(
        span, TimeGrain.DAY, lambda whole, _: days_from(nth_weekday(whole, number, ordinal)), MONTHS_AND_LONGER
    )


def resolve_date(values: Values, now: datetime) -> NamedTime:
    """Resolve "13 January" or "May 2024": a day or the month."""
    values = {**values, **values.get("date", {})}
    month, day, part = values["month"], values.get("day", 0), values.get("part")

    def place(year: TimeSpan, _: TimeGrain) -> TimeSpan:
        start = start_of(year).replace(month=month, day=1)
        return part_of_day(start.replace(day=day), part) if day else months_from(start)

    grain = TimeGrain.MONTH if not day else TimeGrain.PART if part else TimeGrain.DAY
    return _of_year(values, now, place, grain, is_rare=(month, day) == (2, 29))


def resolve_week_of(values: Values, now: datetime) -> NamedTime:
    """Resolve "the week of 13 January": the calendar week of that day."""
    if values["unit"] != "week":
        raise ValueError("not a week")
    day = start_of(resolve_date(values, now).span or TimeSpan(now, now))
    return NamedTime(period_of("week", day, 0), TimeGrain.WEEK)


def resolve_days_of_month(values: Values, now: datetime) -> NamedTime:
    """Resolve "3 to 9 May", both inclusive."""
    first, last = (resolve_date({**values, "day": values[name]}, now) for name in ("first", "last"))

    def between(start: TimeSpan | None, end: TimeSpan | None) -> TimeSpan:
        if start is None or end is None:
            raise ValueError("not two dates")
        begin, over = start_of(start), limits_of(end)[1]
        return TimeSpan(begin, over if over > begin else move_to_year(over, over.year + 1))

    one, other = first.place, last.place
    if one is None or other is None:
        return NamedTime(between(first.span, last.span), TimeGrain.DAYS)
    place: Place = lambda year, grain: between(one(year, grain), other(year, grain))  # noqa: E731
    return NamedTime(between(first.span, last.span), TimeGrain.DAYS, place, YEAR)


def resolve_day_of_month(values: Values, now: datetime) -> NamedTime:
    """Resolve "the 20th": the latest that has begun, or that of the month beside it."""

    def place(month: TimeSpan, _: TimeGrain) -> TimeSpan:
        return days_from(start_of(month).replace(day=values["day"]))

    span = None
    for back in range(3):
        try:
            span = place(months_from(first_of_month(now, -back)), TimeGrain.MONTH)
        except ValueError:
            continue
        if start_of(span) <= now:
            break
    return NamedTime(span, TimeGrain.DAY, place, frozenset({TimeGrain.MONTH}))


def resolve_season(values: Values, now: datetime) -> NamedTime:
    """Resolve "last summer" or "winter 2023": three months, by the north."""
    place: Place = lambda year, _: months_from(start_of(year).replace(month=values["season"], day=1), 3)  # noqa: E731
    return _of_year(values, now, place, TimeGrain.SEASON)


def resolve_bare_season(values: Values, now: datetime) -> NamedTime:
    """Resolve "summer", which is a time only beside another one: "early summer", "summer of last year"."""
    return replace(resolve_season(values, now), is_complete=False)


def resolve_year(values: Values, now: datetime) -> NamedTime:
    """Resolve "in 2023"."""
    return NamedTime(period_of("year", midnight(now), values["year"] - now.year), TimeGrain.YEAR)


def resolve_feast(values: Values, now: datetime) -> NamedTime:
    """Resolve "Christmas" and "Easter": the latest that have begun.

    A feast is a month, a day and a number of days; days after Easter Sunday, and a number of days; or a month, a
    weekday, which of these in the month, and a number of days.
    """
    when = values["feast"]

    def place(year: TimeSpan, _: TimeGrain) -> TimeSpan:
        start = start_of(year)
        if len(when) == 3:
            return days_from(start.replace(month=when[0], day=when[1]), when[2])
        if len(when) == 4:
            return days_from(nth_weekday(months_from(start.replace(month=when[0])), when[1], when[2]), when[3])
        return days_from(easter_of(start) + when[0] * DAY, when[1])

    return _of_year(values, now, place, TimeGrain.DAYS)


# -- conversations ---------------------------------------------------------------------------------


def resolve_conversation(values: Values, now: datetime) -> ConversationReference:  # noqa: ARG001 - a resolver
    """Resolve "our fourth talk", "talks 5 through 7", "our last three talks", "three talks ago"."""
    first = -values["ago"] if "ago" in values else values["ordinal"]
    last = values.get("final", first)
    if "count" in values or "few" in values:
        count = values.get("count", 3)
        first, last = (first, first + count - 1) if first > 0 else (first - count + 1, first)
    if not first or (first > 0 and last < first):
        raise ValueError("not a range of conversations")
    return ConversationReference(first, last)
