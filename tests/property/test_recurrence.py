"""Recurrence rules against dateutil, which knows all of RFC 5545: the same slots, and a bound on the time."""

from __future__ import annotations

import random
import time
from datetime import datetime, timedelta
from importlib import import_module
from itertools import islice
from typing import Any

import pytest

from agent.reminders.recurrence import RecurrenceRule
from gateway.errors import ToolFailed

rrule: Any = import_module("dateutil.rrule")
DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


def random_rule(chance: random.Random) -> str:
    """Return a rule of the subset that follows the wall clock."""
    frequency = chance.choice(["HOURLY", "DAILY", "WEEKLY", "MONTHLY", "YEARLY"])
    parts = [f"FREQ={frequency}"]
    if chance.random() < 0.5:
        parts.append(f"INTERVAL={chance.choice([1, 2, 3, 5, 12, 366])}")
    if chance.random() < 0.5:
        days = chance.sample(DAYS, chance.randint(1, 3))
        if frequency in ("MONTHLY", "YEARLY") and chance.random() < 0.6:
            days = [chance.choice(["1", "2", "-1", "5", "-2", "+3"]) + day for day in days]
        parts.append(f"BYDAY={','.join(days)}")
    if frequency != "WEEKLY" and chance.random() < 0.4:
        numbers = [str(chance.choice([1, 15, 28, 29, 30, 31, -1, -3])) for _ in range(chance.randint(1, 3))]
        parts.append(f"BYMONTHDAY={','.join(numbers)}")
    if chance.random() < 0.3:
        parts.append(f"BYMONTH={','.join(str(chance.randint(1, 12)) for _ in range(chance.randint(1, 3)))}")
    if frequency == "HOURLY" or (frequency == "DAILY" and chance.random() < 0.4):
        parts.append(f"BYHOUR={','.join(str(chance.randint(0, 23)) for _ in range(chance.randint(1, 4)))}")
    return ";".join(parts)


@pytest.mark.parametrize("seed", range(8))
def test_each_slot_is_the_one_that_dateutil_finds(seed: int) -> None:
    """From slot to slot, each evaluated from the one before, the dates are those of the whole rule from its start."""
    chance = random.Random(seed)  # noqa: S311 - reproducible
    for _ in range(150):
        text = random_rule(chance)
        start = datetime.fromisoformat("2026-01-01T00:00") + timedelta(minutes=20 * chance.randint(0, 72 * 900))
        rule, slots = RecurrenceRule.parse(text), list[datetime]()
        slot = rule.first_slot(start.isoformat(timespec="minutes"), "UTC")
        while slot is not None and len(slots) < 6:
            slots.append(datetime.fromisoformat(slot))
            slot = rule.next_slot(slot, "UTC")
        if slots:
            found = rrule.rrulestr(text, dtstart=start).between(start - timedelta(1), slots[-1], inc=True)
            assert slots == [each for each in found if each >= start], (text, start)


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=YEARLY;INTERVAL=6",
        "FREQ=YEARLY;INTERVAL=28;BYMONTH=5",
        "FREQ=YEARLY;INTERVAL=3;BYMONTH=2;BYMONTHDAY=29",
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO",
        "FREQ=MONTHLY;INTERVAL=100",
        "FREQ=MONTHLY;INTERVAL=12;BYMONTHDAY=-1;BYDAY=WE",
        "FREQ=DAILY;INTERVAL=365;BYMONTH=11",
        "FREQ=WEEKLY;INTERVAL=300;BYDAY=TU",
        "FREQ=HOURLY;BYMONTH=2;BYMONTHDAY=29;BYHOUR=9",
    ],
)
def test_a_rule_with_years_between_its_slots_goes_on(text: str) -> None:
    """No slot is the last one because the next is far away: the dates are dateutil's."""
    start = datetime.fromisoformat("2026-11-22T09:00")
    rule, slots = RecurrenceRule.parse(text), list[datetime]()
    slot = rule.first_slot(start.isoformat(timespec="minutes"), "UTC")
    while slot is not None and len(slots) < 3:
        slots.append(datetime.fromisoformat(slot))
        slot = rule.next_slot(slot, "UTC")
    found = rrule.rrulestr(text, dtstart=slots[0])
    assert slots == list(islice(found, 3))


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=HOURLY;BYMONTH=2;BYMONTHDAY=30;BYHOUR=9",
        "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30;BYHOUR=0,1,2,3,4,5,6,7,8,9",
        "FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=1;BYDAY=5MO",
        "FREQ=MINUTELY;INTERVAL=15;BYMONTH=4;BYMONTHDAY=31",
        "FREQ=DAILY;UNTIL=20200101",
        "FREQ=DAILY;INTERVAL=14;BYDAY=MO",
        "FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29",
    ],
)
def test_a_rule_that_no_date_matches_ends_at_once(text: str) -> None:
    """Dateutil searches for seconds, or to the year 9999; we say so in well under a second."""
    began = time.thread_time()
    assert RecurrenceRule.parse(text).first_slot("2026-11-22T11:20", "Europe/Berlin") is None
    assert time.thread_time() - began < 0.5


def test_any_text_is_read_or_refused() -> None:
    """Nothing a model writes as a rule raises anything but the error that it can read."""
    chance = random.Random(14)  # noqa: S311 - reproducible
    words = [
        "FREQ",
        "INTERVAL",
        "BYDAY",
        "COUNT",
        "UNTIL",
        "DAILY",
        "=",
        ";",
        ",",
        "-",
        "1",
        "0",
        "99999",
        "MO",
        "٣",
        " ",
    ]
    for _ in range(3_000):
        text = "".join(chance.choice(words) for _ in range(chance.randint(0, 14)))
        try:
            rule = RecurrenceRule.parse(text)
        except ToolFailed:
            continue
        assert RecurrenceRule.parse(rule.text).text == rule.text
