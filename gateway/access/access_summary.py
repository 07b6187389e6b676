"""Summaries of access in one line each, for `parlour status` and the doctor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.access.refusal_log import USUAL


def pending_summary(waits: Mapping[str, int]) -> Iterator[str]:
    """Yield a line with the number of pending requests; nothing without requests."""
    if any(waits.values()):
        people, places = _count(waits["people"], "person", "people"), _count(waits["places"], "place", "places")
        yield f"{people} and {places} to be let in: `parlour people pending`"


def refusal_summary(refusals: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each channel that rejected messages addressed to the bot."""
    for name, each in sorted(refusals.items()):
        if each["messages"]:
            messages = _count(each["messages"], "message", "messages")
            people = _count(each["people"], "person", "people")
            verb = "was" if each["messages"] == 1 else "were"
            why = ", ".join(f"{reason} {times}" for reason, times in each["reasons"].items() if reason not in USUAL)
            since = f"{each['since'][:19]}Z"
            yield f"{messages} of {people} on {name} {verb} not heard since {since} ({why}): `parlour why {name}`"


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"
