"""The door in one line each, for `parlour status` and the doctor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.access.refusal_log import USUAL


def pending_summary(waits: Mapping[str, int]) -> Iterator[str]:
    """Yield the line that says who waits for an owner's word; none while nobody does."""
    if any(waits.values()):
        people, places = _count(waits["people"], "person", "people"), _count(waits["places"], "place", "places")
        yield f"{people} and {places} to be let in: `parlour people pending`"


def refusal_summary(unheard: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line per channel on which people were not heard who wanted to be."""
    for name, each in sorted(unheard.items()):
        if each["messages"]:
            messages = _count(each["messages"], "message", "messages")
            people = _count(each["people"], "person", "people")
            verb = "was" if each["messages"] == 1 else "were"
            why = ", ".join(f"{reason} {times}" for reason, times in each["reasons"].items() if reason not in USUAL)
            since = f"{each['since'][:19]}Z"
            yield f"{messages} of {people} on {name} {verb} not heard since {since} ({why}): `parlour why {name}`"


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"
