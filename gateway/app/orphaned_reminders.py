"""Reminders of people who may not write any more: they are not sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from agent.reminders.reminder import REMIND, Reminder, reminders_in
from gateway.admission import Rejected, RejectionReason
from gateway.app.channels import Judge
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
            verdicts[place] = _has_lost_access(reminder, judge, now)
        if verdicts[place]:
            counts[f"{reminder.key.channel}:{reminder.by}"] += 1
        if n % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return [{"who": who, "count": count} for who, count in sorted(counts.items())]


def _has_lost_access(reminder: Reminder, judge: Judge, now: datetime) -> bool:
    decision = judge(reminder.message("", now, reminder.kind), None)
    if not isinstance(decision, Rejected):
        return False
    # A role in a server may admit them, and roles are looked up when the reminder is due.
    return decision.reason is RejectionReason.BLOCKED or not reminder.guild
