"""Alert state, and the notifications due. Pure over a cause's previous state, its observation and the time.

A cause is a condition or a counter. A condition has stages (0 = resolved): notifications are sent when it starts,
when it gets worse, and once when it ends. A counter counts events (a dead-lettered message). An audience gets at most
one notification an hour, except at once for a worse stage, and always for the end of a condition they know of.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from gateway.events import SessionKey
from gateway.ports import Alert, NotificationState

EVERY = timedelta(hours=1)  # docs/monitoring.md: at most hourly per cause
STALE = timedelta(days=1)  # notices that could not be sent for so long are dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A source's current observation of one cause."""

    cause: str
    since: datetime | None = None  # None = now
    stage: int | None = 0  # of trouble; None = it cannot be told now, so all stands as it stood
    happened: int = 0  # of what merely happens: how often since `mark` was the old one
    line: str = ""
    fields: Mapping[str, str | int] = field(default_factory=dict)
    level: str = "warning"
    mark: str = ""
    ends_from: int = 1  # the end of lower stages is not reported
    is_gone: bool = False  # what this was about is not there any more: nothing is said
    read_in: Collection[SessionKey] = ()  # chats whose owner reads the same where it happened, and gets no alert


class NotificationKind(StrEnum):
    """Kinds of notifications."""

    TROUBLE = "trouble"
    OVER = "over"
    HAPPENED = "happened"


def merge_stages(
    before: Alert | None, observation: Observation, gateway: str, gateways: Collection[str]
) -> tuple[Observation, Mapping[str, int]]:
    """Return *observation* with the worst stage that any gateway sees, and the stages by gateway.

    *gateway* has made it; stages that were seen by others than the running *gateways* are dropped. A trouble ends when
    none sees it.
    """
    seen_by = dict(before.seen_by) if before is not None else {}
    if observation.stage is None or observation.is_gone:
        return observation, {} if observation.is_gone else seen_by
    seen_by = {name: stage for name, stage in seen_by.items() if name in gateways and name != gateway}
    worst = max(seen_by.values(), default=0)
    if observation.stage:
        seen_by[gateway] = observation.stage
    if before is None or worst <= observation.stage:
        return observation, seen_by
    described = replace(observation, line=before.line, fields=before.fields, level=before.level)
    return replace(described, stage=worst), seen_by


def update_alert(before: Alert | None, observation: Observation, now: datetime) -> Alert:
    """Return the cause's state after *observation*, before any notification."""
    since = observation.since or now
    alert = before or Alert(cause=observation.cause, since=since)
    if observation.is_gone:
        return replace(alert, stage=0, owners=_silent(alert.owners), monitor=_silent(alert.monitor))
    if observation.mark:
        alert = replace(alert, mark=observation.mark)
    if observation.happened:
        alert = replace(
            _described(alert, observation),
            since=since,
            owners=replace(alert.owners, waiting=alert.owners.waiting + observation.happened),
            monitor=replace(alert.monitor, waiting=alert.monitor.waiting + observation.happened),
        )
    if observation.stage is not None and observation.stage != alert.stage:
        begins = not alert.stage
        # What ends keeps what was said of it, with when it began; what begins has a time of its own.
        described = _described(alert, observation) if observation.stage else alert
        alert = replace(described, stage=observation.stage, since=since if begins else alert.since)
    is_stale = now - alert.since > STALE
    return replace(
        alert,
        owners=_drop_stale(alert, alert.owners, observation, is_stale=is_stale),
        monitor=_drop_stale(alert, alert.monitor, observation, is_stale=is_stale),
    )


def _described(alert: Alert, observation: Observation) -> Alert:
    return replace(alert, line=observation.line, fields=dict(observation.fields), level=observation.level)


def _silent(state: NotificationState) -> NotificationState:
    return replace(state, stage=0, waiting=0, is_owed=False, notices=())


def _drop_stale(
    alert: Alert, state: NotificationState, observation: Observation, *, is_stale: bool
) -> NotificationState:
    """Drop conditions whose end needs no notification, and notifications undeliverable for a day."""
    if alert.stage:
        return state
    if 0 < state.stage < observation.ends_from:
        state = replace(state, stage=0, notices=())
    return replace(
        state,
        waiting=0 if is_stale else state.waiting,
        is_owed=state.is_owed and not is_stale,
    )


def due_notification(alert: Alert, state: NotificationState, now: datetime) -> NotificationKind | None:
    """Return the notification that this audience is due now, or None."""
    if alert.stage > state.stage:
        return NotificationKind.TROUBLE if _may(state, alert.stage, now) else None
    if not alert.stage and (state.stage or state.is_owed):
        return NotificationKind.OVER
    if state.waiting:
        return NotificationKind.HAPPENED if _may(state, 1, now) else None
    return None


def _may(state: NotificationState, stage: int, now: datetime) -> bool:
    if state.at is None or stage > state.worst:
        return True
    # A clock that was set back must not silence us for as long as it was wrong.
    return not timedelta(0) <= now - state.at < EVERY


def mark_notified(
    alert: Alert, state: NotificationState, what: NotificationKind, now: datetime, *, notices: Sequence[str]
) -> NotificationState:
    """Return the audience's state once *what* is queued as *notices*; without any it stays due."""
    if not notices:
        return replace(state, is_owed=True) if what is NotificationKind.TROUBLE else state
    state = replace(state, told=len(notices), notices=tuple(notices), counted=0)
    match what:
        case NotificationKind.TROUBLE:
            return replace(state, stage=alert.stage, at=now, worst=alert.stage, is_owed=False)
        case NotificationKind.OVER:
            return replace(state, stage=0, is_owed=False)
        case NotificationKind.HAPPENED:
            return replace(state, waiting=0, at=now, worst=1, counted=state.waiting)


def mark_undelivered(state: NotificationState, dead: Collection[str]) -> NotificationState:
    """Return the audience's state if the notices *dead* failed; if none is left, they were not notified."""
    left = tuple(each for each in state.notices if each not in dead)
    if left or not state.notices:
        return replace(state, notices=left, told=len(left)) if left != state.notices else state
    return replace(
        state,
        stage=0,
        at=None,
        worst=0,
        waiting=state.waiting + state.counted,
        told=0,
        is_owed=state.is_owed or not state.counted,
        notices=(),
        counted=0,
        lost=state.lost + 1,
    )


def is_unnotified(alert: Alert) -> bool:
    """Return True if a condition exists that the owners were not notified of."""
    return alert.stage > alert.owners.stage or bool(alert.owners.waiting) or alert.owners.is_owed
