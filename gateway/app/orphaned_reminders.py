"""Reminders of people who may not write any more: they are not sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from agent.reminders.reminder import REMIND, reminders_in
from gateway.app.channels import Judge
from gateway.app.role_resolver import has_lost_access
from gateway.ports import JobQueue

_AT_ONCE = 200  # that are judged before other work gets a chance


async def count_orphaned_reminders(jobs: JobQueue, judge: Judge, now: datetime) -> Sequence[Mapping[str, Any]]:
    """Return ``{"who": "channel:user_id", "count": n}`` for each person who has reminders and no access."""
    found = [each for each in reminders_in(await jobs.pending_of(REMIND)) if not each.is_fired]
    verdicts: dict[tuple[str, str], bool] = {}
    counts: Counter[str] = Counter()
    for n, reminder in enumerate(found, 1):
        place = (str(reminder.key), reminder.by)
        if place not in verdicts:
            verdicts[place] = has_lost_access(judge, reminder.message("", now, reminder.kind))
        if verdicts[place]:
            counts[f"{reminder.key.channel}:{reminder.by}"] += 1
        if n % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return [{"who": who, "count": count} for who, count in sorted(counts.items())]
