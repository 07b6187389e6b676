"""Quiet hours of a chat: a daily span of local time in which no reminder starts a turn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from agent.reminders.recurrence import to_utc

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
