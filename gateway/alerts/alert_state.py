"""What is news, and to whom. Pure: a cause as it stood, what is seen of it now, and the time.

There are two kinds of causes. *Trouble* is there or not, by stages (0 = all is well): it is told when it begins, when
it gets worse, and once when it is over. What merely *happens* (a message given up) is counted. Either is told an
audience at most once an hour; a worse stage than they know of at once; the end of what they know of always.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from gateway.ports import Alert, NotificationState

EVERY = timedelta(hours=1)  # PEOPLE.md: at most hourly per cause
STALE = timedelta(days=1)  # what somebody could not be told for so long is no news any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a source sees of one cause now."""

    cause: str
    since: datetime
    stage: int | None = 0  # of trouble; None = it cannot be told now, so all stands as it stood
    happened: int = 0  # of what merely happens: how often since `mark` was the old one
    line: str = ""
    fields: Mapping[str, str | int] = field(default_factory=dict)
    level: str = "warning"
    mark: str = ""
    ends_from: int = 1  # the end of lower stages is told to nobody
    is_gone: bool = False  # what this was about is not there any more: nothing is said


class NotificationKind(StrEnum):
    """What an audience has to be told."""

    TROUBLE = "trouble"
    OVER = "over"
    HAPPENED = "happened"


def update_alert(before: Alert | None, seen: Observation, now: datetime) -> Alert:
    """Return the cause as it stands after *seen*; nobody has been told anything yet."""
    alert = before or Alert(cause=seen.cause, since=seen.since)
    if seen.is_gone:
        return replace(alert, stage=0, owners=_silent(alert.owners), monitor=_silent(alert.monitor))
    if seen.mark:
        alert = replace(alert, mark=seen.mark)
    if seen.happened:
        alert = replace(
            _described(alert, seen),
            since=seen.since,
            owners=replace(alert.owners, waiting=alert.owners.waiting + seen.happened),
            monitor=replace(alert.monitor, waiting=alert.monitor.waiting + seen.happened),
        )
    if seen.stage is not None and seen.stage != alert.stage:
        begins = not alert.stage
        # What ends keeps what was said of it, with when it began; what begins has a time of its own.
        described = _described(alert, seen) if seen.stage else alert
        alert = replace(described, stage=seen.stage, since=seen.since if begins else alert.since)
    is_stale = now - alert.since > STALE
    return replace(
        alert,
        owners=_settled(alert, alert.owners, seen, is_stale=is_stale),
        monitor=_settled(alert, alert.monitor, seen, is_stale=is_stale),
    )


def _described(alert: Alert, seen: Observation) -> Alert:
    return replace(alert, line=seen.line, fields=dict(seen.fields), level=seen.level)


def _silent(heard: NotificationState) -> NotificationState:
    return replace(heard, stage=0, waiting=0, is_owed=False, notices=())


def _settled(alert: Alert, heard: NotificationState, seen: Observation, *, is_stale: bool) -> NotificationState:
    """Forget trouble whose end is told to nobody, and what nobody could be told for a day."""
    if alert.stage:
        return heard
    if 0 < heard.stage < seen.ends_from:
        heard = replace(heard, stage=0, notices=())
    return replace(
        heard,
        waiting=0 if is_stale else heard.waiting,
        is_owed=heard.is_owed and not is_stale,
    )


def due_notification(alert: Alert, heard: NotificationState, now: datetime) -> NotificationKind | None:
    """Return what this audience has to be told now."""
    if alert.stage > heard.stage:
        return NotificationKind.TROUBLE if _may(heard, alert.stage, now) else None
    if not alert.stage and (heard.stage or heard.is_owed):
        return NotificationKind.OVER
    if heard.waiting:
        return NotificationKind.HAPPENED if _may(heard, 1, now) else None
    return None


def _may(heard: NotificationState, stage: int, now: datetime) -> bool:
    if heard.at is None or stage > heard.worst:
        return True
    # A clock that was set back must not silence us for as long as it was wrong.
    return not timedelta(0) <= now - heard.at < EVERY


def mark_notified(
    alert: Alert, heard: NotificationState, what: NotificationKind, now: datetime, *, notices: Sequence[str]
) -> NotificationState:
    """Return what this audience knows once *what* is on its way as *notices*; without any, what they are owed."""
    if not notices:
        return replace(heard, is_owed=True) if what is NotificationKind.TROUBLE else heard
    heard = replace(heard, told=len(notices), notices=tuple(notices), counted=0)
    match what:
        case NotificationKind.TROUBLE:
            return replace(heard, stage=alert.stage, at=now, worst=alert.stage, is_owed=False)
        case NotificationKind.OVER:
            return replace(heard, stage=0, is_owed=False)
        case NotificationKind.HAPPENED:
            return replace(heard, waiting=0, at=now, worst=1, counted=heard.waiting)


def mark_undelivered(heard: NotificationState, dead: Collection[str]) -> NotificationState:
    """Return what this audience knows when the notices *dead* did not arrive; without any other, they were not told."""
    left = tuple(each for each in heard.notices if each not in dead)
    if left or not heard.notices:
        return replace(heard, notices=left, told=len(left)) if left != heard.notices else heard
    return replace(
        heard,
        stage=0,
        at=None,
        worst=0,
        waiting=heard.waiting + heard.counted,
        told=0,
        is_owed=heard.is_owed or not heard.counted,
        notices=(),
        counted=0,
        lost=heard.lost + 1,
    )


def is_unnotified(alert: Alert) -> bool:
    """Say whether the owners do not know of something that is there."""
    return alert.stage > alert.owners.stage or bool(alert.owners.waiting) or alert.owners.is_owed
