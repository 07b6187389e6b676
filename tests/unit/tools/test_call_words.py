"""The words of a step say what its call does."""

from __future__ import annotations

import json

import pytest

from agent.llm.chat_model import ToolCall
from agent.tools.call_record import call_words


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        ("2026-12-01T09:00", "09:00"),
        ("2026-12-01T09:00+00:00", "04:00"),
        ("2026-12-01T09:00Z ", "04:00"),
        ("2026-03-08T02:30", "03:30"),  # the clock is put forward at 02:00
    ],
)
def test_a_reminder_is_shown_when_it_comes(at: str, shown: str) -> None:
    """A local time as it is, and one with an offset in the person's zone: as the reminder itself reads it."""
    call = ToolCall("c", "remind", json.dumps({"what": "tea", "at": at}))
    assert shown in call_words(call, "America/New_York", "en")


@pytest.mark.parametrize("at", ["", "tomorrow", "0001-01-01T00:00+09:00", 9])
def test_what_is_no_time_has_none(at: object) -> None:
    """The words name no time then, and no error is raised."""
    call = ToolCall("c", "remind", json.dumps({"what": "tea", "at": at}))
    assert call_words(call, "America/New_York", "en") == call_words(
        ToolCall("c", "remind", json.dumps({"what": "tea"})), "America/New_York", "en"
    )
