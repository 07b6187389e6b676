"""What a time in words means at a given moment: "last Saturday", "vor vier Tagen", "entre el 3 y el 9 de mayo".

A date without a year is the latest one that has begun. Weeks begin on Monday.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, datetime, timedelta

from agent.memory.search.language_data import MONTHS

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A half-open interval of time; None is no limit."""

    start: datetime | None
    end: datetime | None

    def covers(self, at: datetime) -> bool:
        """Return True if *at* is in the span."""
        return (self.start is None or self.start <= at) and (self.end is None or at < self.end)


class ConversationReference(enum.Enum):
    """A conversation that a query names by its place among the others."""

    FIRST = "first"
    LAST = "last"  # before the present one
    SECOND_TO_LAST = "second to last"


def _numbered(*lines: str, start: int = 0) -> Mapping[str, int]:
    """Return the number of its line for each word."""
    return {word: number for number, line in enumerate(lines, start) for word in line.split()}


WEEKDAYS = _numbered(
    "monday montag lunes 一",
    "tuesday dienstag martes 二",
    "wednesday mittwoch miércoles miercoles 三",
    "thursday donnerstag jueves 四",
    "friday freitag viernes 五",
    "saturday samstag sonnabend sábado sabado 六",
    "sunday sonntag domingo 日 天 末",
)
NUMBERS = _numbered(
    "a an one ein eine einem einer einen un una uno 一",
    "two couple zwei dos 两 二",
    "three drei tres 三",
    "four vier cuatro 四",
    "five fünf cinco 五",
    "six sechs seis 六",
    "seven sieben siete 七",
    "eight acht ocho 八",
    "nine neun nueve 九",
    "ten zehn diez 十",
    "eleven elf once 十一",
    "twelve zwölf doce 十二",
    start=1,
)
UNITS: Mapping[str, str] = {
    name: unit
    for unit, names in {
        "hour": "hour hours stunde stunden hora horas 小时 钟头",
        "day": "day days tag tage tagen día días dia dias 天 日",
        "week": "week weeks woche wochen semana semanas 周 星期 礼拜",
        "month": "month months monat monate monaten mes meses 月",
        "year": "year years jahr jahre jahren año años 年",
        "weekend": "weekend wochenende fin",
    }.items()
    for name in names.split()
}
PARTS_OF_DAY: Mapping[str, tuple[int, int]] = {
    name: hours
    for hours, names in {
        (5, 12): "morning früh morgen vormittag mañana 早上 早晨 上午",
        (11, 14): "noon midday lunchtime mittag mediodía 中午",
        (12, 18): "afternoon nachmittag tarde 下午",
        (17, 24): "evening abend 傍晚",
        (18, 28): "night tonight nacht noche anoche 晚上 夜里 晚",
    }.items()
    for name in names.split()
}
SEASONS: Mapping[str, int] = {
    name: month
    for month, names in {
        3: "spring frühling frühjahr primavera 春天 春季",
        6: "summer sommer verano 夏天 夏季",
        9: "autumn fall herbst otoño 秋天 秋季",
        12: "winter invierno 冬天 冬季",
    }.items()
    for name in names.split()
}


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


def move_to_year(at: datetime, year: int) -> datetime:
    """Return *at* in *year*; 29 February is 1 March where there is none."""
    is_leap_day = (at.month, at.day) == (2, 29) and not _is_leap(year)
    return at.replace(year=year, month=3, day=1) if is_leap_day else at.replace(year=year)


def _number(groups: Mapping[str, str]) -> int:
    text = groups.get("count", "1")
    return int(text) if text.isdecimal() else NUMBERS[text]


def resolve_relative(offset: int) -> Callable[[Mapping[str, str], datetime], TimeSpan]:
    """Resolve "today" (0), "yesterday evening" (-1): the day *offset* days from now, or a part of it."""
    return lambda groups, now: _part_of(_midnight(now) + offset * DAY, groups.get("part", ""))


def resolve_ago(groups: Mapping[str, str], now: datetime) -> TimeSpan:
    """Resolve "four days ago": that day; that week, month or year for the longer units."""
    count, day = _number(groups), _midnight(now)
    match UNITS[groups["unit"]]:
        case "hour":
            return TimeSpan(now - timedelta(hours=count, minutes=30), now - timedelta(hours=count - 1, minutes=30))
        case "day":
            return _part_of(day - count * DAY, groups.get("part", ""))
        case "month":
            return _months(_shifted(now, -count))
        case "year":
            return _months(_shifted(now, -12 * count - now.month + 1), 12)
    return _days(day - 7 * count * DAY - 3 * DAY, 7)


def resolve_within(groups: Mapping[str, str], now: datetime) -> TimeSpan:
    """Resolve "the last three weeks": up to now."""
    count, end = _number(groups), now + timedelta(seconds=1)
    match UNITS[groups["unit"]]:
        case "hour":
            return TimeSpan(now - timedelta(hours=count), end)
        case "day":
            return TimeSpan(_midnight(now) - count * DAY, end)
        case "month":
            return TimeSpan(_midnight(now) - 30 * count * DAY, end)
        case "year":
            return TimeSpan(_midnight(now) - 365 * count * DAY, end)
    return TimeSpan(_midnight(now) - 7 * count * DAY, end)


def resolve_period(offset: int) -> Callable[[Mapping[str, str], datetime], TimeSpan]:
    """Resolve "last week" (-1), "this month" (0), "the weekend before last" (-2)."""

    def resolve(groups: Mapping[str, str], now: datetime) -> TimeSpan:
        day = _midnight(now)
        monday = day - day.weekday() * DAY
        match UNITS[groups["unit"]]:
            case "month":
                return _months(_shifted(now, offset))
            case "year":
                return _months(_shifted(now, 12 * offset - now.month + 1), 12)
            case "weekend":
                # On a Sunday, "last weekend" is the one before.
                return _days(monday + (7 * offset + 5) * DAY, 2)
            case "week":
                return _days(monday + 7 * offset * DAY, 7)
        return _days(day + offset * DAY)

    return resolve


def resolve_weekday(weeks_before: int | None = None) -> Callable[[Mapping[str, str], datetime], TimeSpan]:
    """Resolve a weekday: its latest before today, or that of the week *weeks_before* the present one."""

    def resolve(groups: Mapping[str, str], now: datetime) -> TimeSpan:
        day, number = _midnight(now), WEEKDAYS[groups["weekday"]]
        if weeks_before is None:
            back = (day.weekday() - number - 1) % 7 + 1
        else:
            back = day.weekday() - number + 7 * weeks_before
        if groups["weekday"] == "末":  # 周末, the weekend
            return _days(day - (back + 1) * DAY, 2)
        return _part_of(day - back * DAY, groups.get("part", ""))

    return resolve


def resolve_weekdays_ago(groups: Mapping[str, str], now: datetime) -> TimeSpan:
    """Resolve "three Sundays ago"; the Sunday before today is one Sunday ago."""
    latest = resolve_weekday()(groups, now).start or now
    return _days(latest - 7 * (_number(groups) - 1) * DAY)


def resolve_week_of(groups: Mapping[str, str], now: datetime) -> TimeSpan:
    """Resolve "the week of 13 January": the calendar week of that day."""
    day = resolve_date(groups, now).start or now
    return _days(day - day.weekday() * DAY, 7)


def resolve_date(groups: Mapping[str, str], now: datetime) -> TimeSpan:
    """Resolve "13 January" or "mid-May 2024": a day, a third of a month, or the month."""
    month = groups["month"]
    number = MONTHS.get(month) or int(month)
    start = _midnight(now).replace(day=1, month=number)
    day = int(groups.get("day", 0))
    if "year" in groups:
        return _from_month(start.replace(year=int(groups["year"])), day, groups)
    if day == 29 and number == 2:
        while not _is_leap(start.year):
            start = start.replace(year=start.year - 1)
    span = _from_month(start, day, groups)
    if span.start is not None and span.start > now:
        span = _from_month(start.replace(year=start.year - (4 if day == 29 and number == 2 else 1)), day, groups)
    return span


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _from_month(start: datetime, day: int, groups: Mapping[str, str]) -> TimeSpan:
    if day:
        return _part_of(start.replace(day=day), groups.get("part", ""))
    end = _shifted(start, 1)
    match groups.get("third", "")[:2]:
        case "":
            return TimeSpan(start, end)
        case "mi" | "me" | "中":
            return TimeSpan(start.replace(day=11), start.replace(day=21))
        case "en" | "la" | "fi" | "底":
            return TimeSpan(start.replace(day=21), end)
    return TimeSpan(start, start.replace(day=11))


def resolve_days_of_month(groups: Mapping[str, str], now: datetime) -> TimeSpan:
    """Resolve "3 to 9 May", both inclusive."""
    first = resolve_date({**groups, "day": groups["first"]}, now)
    last = resolve_date({**groups, "day": groups["last"]}, now)
    if first.start is not None and last.end is not None and last.end <= first.start:
        last = TimeSpan(None, move_to_year(last.end, last.end.year + 1))
    return TimeSpan(first.start, last.end)


def resolve_slashes(groups: Mapping[str, str], now: datetime) -> TimeSpan:
    """Resolve 5/3/2024: month first, unless there is no such month."""
    if int(groups["month"]) > 12:
        groups = {**groups, "month": groups["day"], "day": groups["month"]}
    return resolve_date(groups, now)


def resolve_season(groups: Mapping[str, str], now: datetime) -> TimeSpan:
    """Resolve "last summer" or "winter 2023": three months, by the north."""
    month = SEASONS[groups["season"]]
    start = _midnight(now).replace(month=month, day=1)
    if "year" in groups:
        return _months(start.replace(year=int(groups["year"])), 3)
    if start > now or ("last" in groups and _shifted(start, 3) > now):
        start = start.replace(year=start.year - 1)
    return _months(start, 3)


def resolve_year(groups: Mapping[str, str], now: datetime) -> TimeSpan:
    """Resolve "in 2023"."""
    return _months(_midnight(now).replace(year=int(groups["year"]), month=1, day=1), 12)


def resolve_feast(month: int, day: int, count: int) -> Callable[[Mapping[str, str], datetime], TimeSpan]:
    """Resolve "Christmas": *count* days from *day* of *month*, the latest that have begun."""

    def resolve(groups: Mapping[str, str], now: datetime) -> TimeSpan:
        start = _midnight(now).replace(month=month, day=day)
        if "year" in groups:
            return _days(start.replace(year=int(groups["year"])), count)
        return _days(start if start <= now else start.replace(year=start.year - 1), count)

    return resolve
