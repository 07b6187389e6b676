"""How a message reads in a prompt: its head, and names that can do no harm."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as some

from agent.turns.prompt_assembly import local, message_header
from gateway.events import Sender
from gateway.text.message_text import NAME_LENGTH, clean_name
from tests.fakes.turns import said


@given(some.text(max_size=200))
def test_no_name_can_look_like_anything_else(name: str) -> None:
    """Whatever a display name holds: one line, no brackets, no controls, at most 64 characters; twice is once."""
    clean = clean_name(name)
    assert len(clean) <= NAME_LENGTH
    assert not set(clean) & set("[]<>{}()\n\r\t\x00\u2028\u202e")
    assert clean == clean.strip()
    assert clean_name(clean) == clean


def test_a_head_says_when_and_who_in_the_chats_zone() -> None:
    """Weekday, local time with its zone, and the name; without a name only the time."""
    message = said("hi", id="1")
    assert message_header(message, "Europe/Berlin") == "Sat 21 Nov 2026 22:00 CET"
    named = replace(message, sender=Sender(id="ann", name="Ann [admin]\n"))
    assert message_header(named, "UTC") == "Sat 21 Nov 2026 21:00 UTC, Ann admin"
    assert local(datetime(2026, 7, 1, 10, 5, tzinfo=UTC), "Europe/Berlin") == "Wed 1 Jul 2026 12:05 CEST"
