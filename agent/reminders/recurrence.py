"""Recurrence rules: a bounded subset of RRULE (RFC 5545), evaluated from one slot to the next; and quiet hours.

A slot is a local wall time. Rules by days, weeks, months and years, and hourly ones with BYHOUR, follow the wall clock
through changes of daylight saving time. All other rules, such as "every 90 minutes", count elapsed time.

python-dateutil is only the tests' reference. It searches for a rule that no date matches to the year 9999, whatever end
it is given: 30 February took seconds on the event loop. The search here is bounded.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, date, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from gateway.errors import ToolFailed

LEAST_MINUTES = 15  # between two slots
LEAST_MINUTES_OF_TURNS = 60  # between two slots that call a model
MOST_SLOTS = 1_000  # COUNT
LONGEST_INTERVAL = 366
LONGEST_RULE = 300  # characters

_FREQUENCIES = ("MINUTELY", "HOURLY", "DAILY", "WEEKLY", "MONTHLY", "YEARLY")
_ELAPSED_MINUTES = {"MINUTELY": 1, "HOURLY": 60}
_DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_DAY = re.compile(r"([+-]?[1-5])?(MO|TU|WE|TH|FR|SA|SU)")
_MOST_VALUES = 31
# A rule that no date matches (30 February) is searched for so long; in milliseconds.
# Weekdays and leap days repeat after 28 periods at the latest, and 12 more around a year such as 2100.
_MOST_YEARS = 40  # of those that INTERVAL leaves
_MOST_MONTHS = 12 * _MOST_YEARS
_LOOK_AHEAD_OF_HOURS = timedelta(days=9 * 366)  # to 29 February, across 2100
_SUPPORTED = "FREQ, INTERVAL, BYDAY, BYMONTHDAY, BYMONTH, BYHOUR, COUNT and UNTIL"


def to_utc(wall: datetime, zone: str) -> datetime:
    """Return the moment of a local time in UTC.

    A time that does not exist comes the same distance after the gap (02:30 is 03:30), one that exists twice is its
    first. An aware *wall* is that moment.
    """
    local = wall if wall.tzinfo is not None else wall.replace(tzinfo=ZoneInfo(zone), fold=0)
    return local.astimezone(UTC)


def slot_of(at: datetime, zone: str) -> str:
    """Return the slot of a moment: its wall time, with the offset if that time exists twice and this is the second."""
    local = at.astimezone(ZoneInfo(zone))
    return _format(local if local.fold else local.replace(tzinfo=None))


def parse_slot(slot: str) -> datetime:
    """Return the wall time of a slot; aware if the slot names its offset. Raises ValueError."""
    return datetime.fromisoformat(slot)


def _format(wall: datetime) -> str:
    return wall.isoformat(timespec="seconds" if wall.second else "minutes")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceRule:
    """A checked rule. COUNT is counted by the reminder, because each slot is evaluated from the one before."""

    text: str  # as parsed, in capitals and in a fixed order, without COUNT
    frequency: str
    interval: int
    days: tuple[str, ...] = ()
    month_days: tuple[int, ...] = ()
    months: tuple[int, ...] = ()
    hours: tuple[int, ...] = ()
    until: datetime | None = None  # aware: UTC; naive: wall time
    count: int | None = None

    @classmethod
    def parse(cls, text: str, *, least_minutes: int = LEAST_MINUTES) -> RecurrenceRule:
        """Read and check a rule; raise ToolFailed with the reason, for the model to read."""
        fields = _fields(text)
        frequency = fields.pop("FREQ", "")
        if frequency not in _FREQUENCIES:
            raise ToolFailed(f"repeat needs FREQ: one of {', '.join(_FREQUENCIES)}")
        rule = cls(
            text="",
            frequency=frequency,
            interval=_number(fields.pop("INTERVAL", "1"), "INTERVAL", 1, LONGEST_INTERVAL),
            count=_number(fields.pop("COUNT"), "COUNT", 1, MOST_SLOTS) if "COUNT" in fields else None,
            until=_until(fields.pop("UNTIL")) if "UNTIL" in fields else None,
            days=_days(fields.pop("BYDAY", ""), frequency),
            month_days=_numbers(fields.pop("BYMONTHDAY", ""), "BYMONTHDAY", -31, 31),
            months=_numbers(fields.pop("BYMONTH", ""), "BYMONTH", 1, 12),
            hours=_numbers(fields.pop("BYHOUR", ""), "BYHOUR", 0, 23),
        )
        if fields:
            raise ToolFailed(f"repeat cannot have {', '.join(sorted(fields))}; it can have {_SUPPORTED}")
        rule._check(least_minutes)
        return cls(**{name: getattr(rule, name) for name in cls.__slots__} | {"text": rule._write()})

    def _check(self, least_minutes: int) -> None:
        if self.count is not None and self.until is not None:
            raise ToolFailed("repeat has COUNT or UNTIL, not both")
        if self.hours and self.frequency not in ("HOURLY", "DAILY"):
            raise ToolFailed("BYHOUR goes with FREQ=HOURLY or DAILY; set the hour of other rules with `at`")
        if 0 in self.month_days or (self.month_days and self.frequency == "WEEKLY"):
            raise ToolFailed("BYMONTHDAY is 1 to 31 or -31 to -1, and does not go with FREQ=WEEKLY")
        minutes = _ELAPSED_MINUTES.get(self.frequency, least_minutes) * self.interval
        if minutes < least_minutes:
            raise ToolFailed(f"the least distance between two times is {least_minutes} minutes")

    def _write(self) -> str:
        lists: Mapping[str, tuple[object, ...]] = {
            "BYMONTH": self.months,
            "BYMONTHDAY": self.month_days,
            "BYDAY": self.days,
            "BYHOUR": self.hours,
        }
        parts = [f"FREQ={self.frequency}"]
        parts += [f"INTERVAL={self.interval}"] if self.interval > 1 else []
        parts += [f"{name}={','.join(map(str, values))}" for name, values in lists.items() if values]
        if self.until is not None:
            zulu = "Z" if self.until.tzinfo is not None else ""
            parts.append(f"UNTIL={self.until:%Y%m%dT%H%M%S}{zulu}")
        return ";".join(parts)

    @property
    def is_elapsed(self) -> bool:
        """True if the rule counts elapsed time rather than wall time."""
        return self.frequency in _ELAPSED_MINUTES and not self.hours

    def first_slot(self, at: str, zone: str) -> str | None:
        """Return the first slot that is not before *at*; None if no date matches the rule."""
        return self._next(at, zone, is_included=True)

    def next_slot(self, slot: str, zone: str) -> str | None:
        """Return the slot after *slot*; None after the last one."""
        return self._next(slot, zone, is_included=False)

    def _next(self, slot: str, zone: str, *, is_included: bool) -> str | None:
        try:
            if self.is_elapsed:
                at = self._step_on(to_utc(parse_slot(slot), zone), zone, is_included=is_included)
                return slot_of(at, zone) if at is not None else None
            wall = parse_slot(slot).replace(tzinfo=None)
            search = self._step_on if self.frequency == "HOURLY" else self._next_date
            found = search(wall, zone, is_included=is_included)
            return _format(found) if found is not None else None
        except OverflowError:  # beyond the year 9999
            return None

    def _next_date(self, wall: datetime, zone: str, *, is_included: bool) -> datetime | None:
        """Return the next wall time of a rule by days or more."""
        end = self._end(wall, zone)
        for day in self._days_from(wall.date()):
            if day > end.date():
                return None
            if not self._is_in_period(day, wall.date()) or not self._is_on(day):
                continue
            for hour in self.hours or (wall.hour,):
                at = datetime.combine(day, wall.time().replace(hour=hour))
                if (at > wall or (is_included and at == wall)) and at <= end:
                    return at
        return None

    def _days_from(self, start: date) -> Iterator[date]:
        """Yield the days from *start* on that the rule may match, in order: those of its months."""
        for year, month in islice(self._months_from(start), _MOST_MONTHS):
            length = monthrange(year, month)[1]
            days: Iterable[int] = range(1, length + 1)
            if self.month_days:
                days = sorted({each if each > 0 else length + 1 + each for each in self.month_days} & {*days})
            for day in days:
                if (found := date(year, month, day)) >= start:
                    yield found

    def _months_from(self, start: date) -> Iterator[tuple[int, int]]:
        """Yield years with months from that of *start* on, without those that INTERVAL or BYMONTH leaves out."""
        if self.frequency == "YEARLY":
            months = self.months or (range(1, 13) if self.days or self.month_days else (start.month,))
            for year in range(start.year, MAXYEAR + 1, self.interval):
                yield from ((year, month) for month in months if (year, month) >= (start.year, start.month))
            return
        step = self.interval if self.frequency == "MONTHLY" else 1
        for n in range(12 * start.year + start.month - 1, 12 * MAXYEAR, step):
            if not self.months or n % 12 + 1 in self.months:
                yield n // 12, n % 12 + 1

    def _step_on(self, start: datetime, zone: str, *, is_included: bool) -> datetime | None:
        """Return the next time of a rule by minutes or hours; *start* is aware for elapsed time, else wall time."""
        step = timedelta(minutes=_ELAPSED_MINUTES[self.frequency] * self.interval)
        end = min(start + _LOOK_AHEAD_OF_HOURS, self._end(start, zone))
        at = start if is_included else start + step
        while at <= end:
            local = at.astimezone(ZoneInfo(zone)) if at.tzinfo is not None else at
            if not self._is_on(local.date()):
                midnight = datetime.combine(local.date() + timedelta(days=1), datetime.min.time())
                day_end = to_utc(midnight, zone) if at.tzinfo is not None else midnight
                at += step * max(1, -((at - day_end) // step))
            elif self.hours and local.hour not in self.hours:
                at += step
            else:
                return at
        return None

    def _end(self, like: datetime, zone: str) -> datetime:
        """Return the last moment of the rule, aware if *like* is; without UNTIL far in the future."""
        until = self.until if self.until is not None else datetime(9990, 1, 1)  # noqa: DTZ001 - wall time
        if like.tzinfo is not None:
            return to_utc(until, zone)
        return until if until.tzinfo is None else until.astimezone(ZoneInfo(zone)).replace(tzinfo=None)

    def _is_in_period(self, day: date, start: date) -> bool:
        """Return True if *day* is in a period of the rule; without BY… parts it has to be the day that *start* is."""
        match self.frequency:
            case "DAILY":
                return (day - start).days % self.interval == 0
            case "WEEKLY":
                weeks = (day - start + timedelta(days=start.weekday())).days // 7  # from Monday on
                return weeks % self.interval == 0 and (bool(self.days) or day.weekday() == start.weekday())
            case "MONTHLY":
                months = 12 * (day.year - start.year) + day.month - start.month
                return months % self.interval == 0 and (bool(self.days or self.month_days) or day.day == start.day)
            case _:  # YEARLY
                if (day.year - start.year) % self.interval:
                    return False
                is_same_month = bool(self.months or self.days or self.month_days) or day.month == start.month
                return is_same_month and (bool(self.days or self.month_days) or day.day == start.day)

    def _is_on(self, day: date) -> bool:
        """Return True if BYMONTH, BYMONTHDAY and BYDAY allow *day*."""
        if self.months and day.month not in self.months:
            return False
        length = monthrange(day.year, day.month)[1]
        if self.month_days and not {day.day, day.day - length - 1} & set(self.month_days):
            return False
        if not self.days:
            return True
        # 1MO is the first Monday of the month, or of the year in a yearly rule without months.
        is_of_year = self.frequency == "YEARLY" and not self.months
        before = day.timetuple().tm_yday if is_of_year else day.day
        total = date(day.year, 12, 31).timetuple().tm_yday if is_of_year else length
        name = _DAYS[day.weekday()]
        first, last = (before - 1) // 7 + 1, -((total - before) // 7 + 1)
        return not {name, f"{first}{name}", f"+{first}{name}", f"{last}{name}"}.isdisjoint(self.days)


def _fields(text: str) -> dict[str, str]:
    rule = text.strip().upper().removeprefix("RRULE:").rstrip(";")
    if len(rule) > LONGEST_RULE:
        raise ToolFailed(f"repeat is at most {LONGEST_RULE} characters")
    fields: dict[str, str] = {}
    for part in rule.split(";"):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not value or name in fields:
            raise ToolFailed(f"repeat is a rule such as FREQ=WEEKLY;BYDAY=MO,WE; it can have {_SUPPORTED}, each once")
        fields[name] = value
    return fields


def _number(text: str, name: str, least: int, most: int) -> int:
    # int() also reads "1_0" and digits of other scripts.
    number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,5}", text) else None
    if number is None or not least <= number <= most:
        raise ToolFailed(f"{name} is from {least} to {most}")
    return number


def _numbers(text: str, name: str, least: int, most: int) -> tuple[int, ...]:
    values = [each.strip() for each in text.split(",")] if text else []
    if len(values) > 2 * _MOST_VALUES:
        raise ToolFailed(f"{name} has too many values")
    return tuple(sorted({_number(each, name, least, most) for each in values}))


def _days(text: str, frequency: str) -> tuple[str, ...]:
    values = [each.strip() for each in text.split(",")] if text else []
    matches = [_DAY.fullmatch(each) for each in values]
    if len(values) > _MOST_VALUES or None in matches:
        raise ToolFailed("BYDAY lists days: MO,TU,WE,TH,FR,SA,SU; with FREQ=MONTHLY also 1MO or -1FR")
    if frequency not in ("MONTHLY", "YEARLY") and any(each and each[1] for each in matches):
        raise ToolFailed("BYDAY with a number (1MO, -1FR) goes with FREQ=MONTHLY or YEARLY")
    return tuple(dict.fromkeys(values))


def _until(text: str) -> datetime:
    """Return the last moment of UNTIL: a date means its last second, a time without Z is wall time."""
    for pattern in ("%Y%m%d", "%Y%m%dT%H%M%S", "%Y%m%dT%H%M%SZ"):
        try:
            at = datetime.strptime(text.replace("-", "").replace(":", ""), pattern)  # noqa: DTZ007 - wall time
        except ValueError:
            continue
        if "T" not in pattern:
            return at + timedelta(days=1, seconds=-1)
        return at.replace(tzinfo=UTC) if pattern.endswith("Z") else at
    raise ToolFailed("UNTIL is a date or a time such as 20261231 or 20261231T180000")


# -- quiet hours -----------------------------------------------------------------------------------

QUIET = "quiet"  # name of the preference
_SPAN = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\s*(?:-|–|to)\s*([01]?\d|2[0-3]):([0-5]\d)\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From one minute of the day up to another, which may be the next day's."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> QuietHours | None:
        """Read ``22:00-07:00``; return None for any other text, and for a span of no length."""
        match = _SPAN.match(text.strip())
        if match is None:
            return None
        hour, minute, end_hour, end_minute = map(int, match.groups())
        found = cls(60 * hour + minute, 60 * end_hour + end_minute)
        return found if found.start != found.end else None

    @classmethod
    def of(cls, choices: Mapping[str, str]) -> QuietHours | None:
        """Return the quiet hours among the choices of a scope."""
        return cls.parse(choices.get(QUIET, ""))

    def __str__(self) -> str:
        return "-".join(f"{at // 60:02d}:{at % 60:02d}" for at in (self.start, self.end))

    def end_after(self, at: datetime, zone: str) -> datetime | None:
        """Return when the quiet hours end that *at* is in; None if it is in none."""
        local = at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        minute = 60 * local.hour + local.minute
        if self.start < self.end:
            is_in, days = self.start <= minute < self.end, 0
        else:
            is_in, days = minute >= self.start or minute < self.end, int(minute >= self.start)
        if not is_in:
            return None
        midnight = datetime.combine(local.date() + timedelta(days=days), datetime.min.time())
        return to_utc(midnight + timedelta(minutes=self.end), zone)
