"""Admission in one line each, as `parlour status` and the doctor print it."""

from __future__ import annotations

from gateway.health.gateway_checks import status_findings

SINCE = "2026-11-22T08:00:00.123Z"


def test_who_was_not_heard_is_counted_by_reason() -> None:
    """How many messages of how many people and why; talk that was not meant for us is in no figure."""
    slack = {"since": SINCE, "messages": 37, "people": 4, "reasons": {"not-addressed": 900, "guest": 30, "stranger": 7}}
    quiet = {"since": SINCE, "messages": 0, "people": 0, "reasons": {"not-addressed": 3}}
    one = {"since": SINCE, "messages": 1, "people": 1, "reasons": {"stranger": 1}}
    assert [each.text for each in status_findings({"unheard": {"slack": slack, "quiet": quiet, "discord": one}})] == [
        "1 message of 1 person on discord was rejected since 2026-11-22T08:00:00Z (stranger 1): `parlour why discord`",
        "37 messages of 4 people on slack were rejected since 2026-11-22T08:00:00Z (guest 30, stranger 7):"
        " `parlour why slack`",
    ]


def test_who_waits_is_one_line_or_none() -> None:
    """Nothing is said while nobody waits."""
    assert list(status_findings({"waits": {"people": 0, "places": 0}})) == []
    (line,) = status_findings({"waits": {"people": 2, "places": 0}})
    assert line.text == "2 people and 0 chats wait for approval: `parlour people pending`"
