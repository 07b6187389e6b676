"""The head of a message: weekday, local time and zone, wherever its reader lives and whatever the clocks do there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agent.turns.prompt_assembly import local
from gateway.i18n.formats import find_zone

SPRING = datetime(2026, 3, 29, 0, 59, tzinfo=UTC)  # a minute before Berlin's clocks go forward
AUTUMN = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)  # half past two, for the first time


@pytest.mark.parametrize(
    ("at", "zone", "head"),
    [
        (SPRING, "Europe/Berlin", "Sun 29 Mar 2026 01:59 CET"),
        (SPRING + timedelta(minutes=1), "Europe/Berlin", "Sun 29 Mar 2026 03:00 CEST"),
        (AUTUMN, "Europe/Berlin", "Sun 25 Oct 2026 02:30 CEST"),
        (AUTUMN + timedelta(hours=1), "Europe/Berlin", "Sun 25 Oct 2026 02:30 CET"),
        (datetime(2026, 12, 31, 11, 0, tzinfo=UTC), "Pacific/Kiritimati", "Fri 1 Jan 2027 01:00 +14"),
        (datetime(2026, 1, 1, 10, 0, tzinfo=UTC), "Pacific/Pago_Pago", "Wed 31 Dec 2025 23:00 SST"),
        (datetime(2026, 7, 1, 18, 45, tzinfo=UTC), "Asia/Kolkata", "Thu 2 Jul 2026 00:15 IST"),
        (datetime(2026, 7, 1, 12, 0, tzinfo=UTC), "Asia/Kathmandu", "Wed 1 Jul 2026 17:45 +0545"),
        (datetime(2026, 7, 1, 12, 0, tzinfo=UTC), "UTC", "Wed 1 Jul 2026 12:00 UTC"),
    ],
)
def test_a_moment_is_told_by_the_clocks_of_its_place(at: datetime, zone: str, head: str) -> None:
    """A day ahead, a quarter of an hour beside, an hour twice: the name of the offset tells them apart."""
    assert local(at, zone) == head


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Europe/Berlin", "Europe/Berlin"), ("berlin", "Europe/Berlin"), ("New York", "America/New_York"),
        ("new_york", "America/New_York"), ("São Paulo", "America/Sao_Paulo"), ("kiritimati", "Pacific/Kiritimati"),
        ("Zürich", "Europe/Zurich"), ("utc", "UTC"), ("Etc/GMT+3", "Etc/GMT+3"),
        ("Indianapolis", "America/Indianapolis"),
    ],
)  # fmt: skip
def test_people_name_zones_by_their_cities(text: str, name: str) -> None:
    """Whatever the case, the blanks and the accents; a city of two names is one zone when their clocks agree."""
    assert find_zone(text).name == name


@pytest.mark.parametrize(
    ("text", "near"),
    [("Brelin", "Europe/Berlin"), ("Sydny", "Australia/Sydney"), ("GMT+3", ""), ("Mars/Olympus", ""), ("", "")],
)
def test_what_is_no_zone_is_none_and_what_is_near_is_named(text: str, near: str) -> None:
    """Nothing is guessed: GMT+3 is five hours off in IANA's own spelling of it, so it means nothing here."""
    found = find_zone(text)
    assert found.name == ""
    assert near in found.near if near else not any("+3" in each for each in found.near)
