"""Slots through changes of the clock, in six zones both ways, and the rules that are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from agent.reminders.recurrence import QuietHours, RecurrenceRule, parse_slot, slot_of, to_utc
from gateway.errors import ToolFailed

# zone, a wall time in the gap of spring, what it fires as, a wall time that autumn has twice, its first moment in UTC
CHANGES = [
    ("Europe/Berlin", "2027-03-28T02:30", "03:30", "2026-10-25T02:30", "2026-10-25T00:30"),
    ("America/New_York", "2027-03-14T02:30", "03:30", "2026-11-01T01:30", "2026-11-01T05:30"),
    ("Australia/Sydney", "2026-10-04T02:30", "03:30", "2027-04-04T02:30", "2027-04-03T15:30"),
    ("Australia/Lord_Howe", "2026-10-04T02:10", "02:40", "2027-04-04T01:45", "2027-04-03T14:45"),
    ("America/Sao_Paulo", "2018-11-04T00:30", "01:30", "2018-02-17T23:30", "2018-02-18T01:30"),
    ("Africa/Casablanca", "2027-03-14T02:30", "03:30", "2026-02-15T02:30", "2026-02-15T01:30"),
]


def slots(text: str, at: str, zone: str, count: int) -> list[str]:
    """Return the first slots of a rule."""
    rule, found = RecurrenceRule.parse(text), list[str]()
    slot = rule.first_slot(at, zone)
    while slot is not None and len(found) < count:
        found.append(slot)
        slot = rule.next_slot(slot, zone)
    return found


@pytest.mark.parametrize(("zone", "gap", "shown", "twice", "first"), CHANGES, ids=[each[0] for each in CHANGES])
def test_wall_time_through_both_changes_of_the_clock(zone: str, gap: str, shown: str, twice: str, first: str) -> None:
    """A time that does not exist comes as far behind the gap, one that occurs twice is its first."""
    assert slot_of(to_utc(parse_slot(gap), zone), zone)[11:] == shown
    assert to_utc(parse_slot(twice), zone) == datetime.fromisoformat(first).replace(tzinfo=UTC)
    for day in (gap, twice):
        before = (parse_slot(day) - timedelta(days=1)).isoformat(timespec="minutes")
        found = slots("FREQ=DAILY", before, zone, 3)
        assert {each[11:] for each in found} == {day[11:]}
        moments = [to_utc(parse_slot(each), zone) for each in found]
        assert all(timedelta(hours=22) < b - a < timedelta(hours=26) for a, b in pairwise(moments))


@pytest.mark.parametrize(("zone", "gap", "shown", "twice", "first"), CHANGES, ids=[each[0] for each in CHANGES])
def test_elapsed_time_through_both_changes_of_the_clock(
    zone: str, gap: str, shown: str, twice: str, first: str
) -> None:
    """Every 30 minutes is every 30 minutes: no slot is left out, none has the name of another."""
    for day in (gap, twice):
        start = slot_of(to_utc(parse_slot(day), zone) - timedelta(hours=2), zone)
        found = slots("FREQ=MINUTELY;INTERVAL=30", start, zone, 9)
        moments = [to_utc(parse_slot(each), zone) for each in found]
        assert [b - a for a, b in pairwise(moments)] == [timedelta(minutes=30)] * 8
        assert len(set(found)) == 9


def test_29_february_and_the_ends_of_months() -> None:
    """A yearly rule on a leap day comes in leap years; a monthly one on the 31st only where there is one."""
    assert slots("FREQ=YEARLY", "2028-02-29T09:00", "UTC", 2) == ["2028-02-29T09:00", "2032-02-29T09:00"]
    assert slots("FREQ=MONTHLY", "2027-01-31T09:00", "UTC", 3) == [
        "2027-01-31T09:00", "2027-03-31T09:00", "2027-05-31T09:00",
    ]  # fmt: skip
    assert slots("FREQ=MONTHLY;BYMONTHDAY=-1", "2028-02-01T09:00", "UTC", 2) == ["2028-02-29T09:00", "2028-03-31T09:00"]


def test_every_second_tuesday() -> None:
    """The sentence that people try first; the weeks are counted from the given one."""
    found = slots("FREQ=WEEKLY;INTERVAL=2;BYDAY=TU", "2026-11-24T09:00", "Europe/Berlin", 3)
    assert found == ["2026-11-24T09:00", "2026-12-08T09:00", "2026-12-22T09:00"]


def test_until_is_inclusive_and_may_be_utc() -> None:
    """A date means its whole day; a time with Z is that moment in the zone of the reminder."""
    assert len(slots("FREQ=DAILY;UNTIL=20261124", "2026-11-22T23:00", "Europe/Berlin", 9)) == 3
    assert len(slots("FREQ=DAILY;UNTIL=20261124T215959Z", "2026-11-22T23:00", "Europe/Berlin", 9)) == 2
    assert len(slots("FREQ=HOURLY;UNTIL=20261122T103000Z", "2026-11-22T09:30", "Europe/Berlin", 9)) == 3


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "repeat is a rule"),
        ("every day", "repeat is a rule"),
        ("INTERVAL=2", "repeat needs FREQ"),
        ("FREQ=SECONDLY", "repeat needs FREQ"),
        ("FREQ=DAILY;FREQ=WEEKLY", "each once"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL is from 1 to 366"),
        ("FREQ=DAILY;INTERVAL=367", "INTERVAL is from 1 to 366"),
        ("FREQ=DAILY;COUNT=1001", "COUNT is from 1 to 1000"),
        ("FREQ=DAILY;COUNT=2;UNTIL=20300101", "not both"),
        ("FREQ=DAILY;UNTIL=tomorrow", "UNTIL is a date"),
        ("FREQ=DAILY;BYSETPOS=1", "cannot have BYSETPOS"),
        ("FREQ=DAILY;DTSTART=20260101", "cannot have DTSTART"),
        ("FREQ=WEEKLY;BYDAY=1MO", "goes with FREQ=MONTHLY"),
        ("FREQ=WEEKLY;BYHOUR=9", "BYHOUR goes with"),
        ("FREQ=WEEKLY;BYMONTHDAY=1", "BYMONTHDAY"),
        ("FREQ=MONTHLY;BYMONTHDAY=0", "BYMONTHDAY"),
        ("FREQ=MINUTELY;INTERVAL=14", "least distance between two times is 15 minutes"),
        (f"FREQ=DAILY;BYDAY={'MO,' * 200}MO", "at most 300 characters"),
    ],
)
def test_what_is_not_of_the_subset_is_refused(text: str, error: str) -> None:
    """With what is wrong, for the model to correct."""
    with pytest.raises(ToolFailed, match=error):
        RecurrenceRule.parse(text)


def test_turns_are_an_hour_apart() -> None:
    """A model call is not made every quarter of an hour."""
    with pytest.raises(ToolFailed, match="60 minutes"):
        RecurrenceRule.parse("FREQ=MINUTELY;INTERVAL=59", least_minutes=60)
    assert RecurrenceRule.parse("FREQ=HOURLY", least_minutes=60).is_elapsed


@pytest.mark.parametrize(
    ("hours", "at", "end"),
    [
        ("22:00-07:00", "2026-11-22T21:59", None),
        ("22:00-07:00", "2026-11-22T22:00", "2026-11-23T07:00"),
        ("22:00-07:00", "2026-11-23T06:59", "2026-11-23T07:00"),
        ("22:00-07:00", "2026-11-23T07:00", None),
        ("12:30-14:00", "2026-11-23T13:00", "2026-11-23T14:00"),
        ("22:00-02:30", "2027-03-28T01:00", "2027-03-28T03:30"),  # which that night does not have
    ],
)
def test_quiet_hours(hours: str, at: str, end: str | None) -> None:
    """Over midnight and within a day; the end is wall time."""
    quiet = QuietHours.parse(hours)
    assert quiet is not None
    found = quiet.end_after(to_utc(parse_slot(at), "Europe/Berlin"), "Europe/Berlin")
    assert (slot_of(found, "Europe/Berlin") if found else None) == end
    assert str(quiet) == hours


@pytest.mark.parametrize("text", ["", "22-7", "24:00-07:00", "22:00-22:00", "22:00-07:00 x", "٢٢:٠٠-٠٧:٠٠"])
def test_what_are_no_quiet_hours(text: str) -> None:
    """Two different times of day, and nothing else."""
    assert QuietHours.parse(text) is None
