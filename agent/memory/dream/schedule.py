"""Schedule of Dream: an interval after new entries, or the cron line of older configurations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamSchedule:
    """The operator's decision. A *cron* line wins, and goes by the scope's own clock."""

    interval: timedelta = timedelta(hours=2)
    cron: str = ""

    def next(self, now: datetime, zone: str) -> datetime:
        """Return the next moment after *now*, an aware time in UTC."""
        if not self.cron:
            return now + self.interval
        return next(CronSim(self.cron, now.astimezone(ZoneInfo(zone)))).astimezone(UTC)
