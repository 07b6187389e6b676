"""Alert state, and the notifications due. Pure over a cause's previous state, its observation and the time.

A cause is a condition or a counter. A condition has stages (0 = resolved): notifications are sent when it starts,
when it gets worse, and once when it ends. A counter counts events (a dead-lettered message). An audience gets at most
one notification an hour, except at once for a worse stage, and always for the end of a condition they know of. Owners
read a cause in their language and zone, the log and the webhook in English and UTC.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from gateway.access.pairing_service import OwnerAddress
from gateway.events import OutboundKind, OutboundMessage, SessionKey, short_id
from gateway.i18n import FALLBACK, translate
from gateway.i18n.failures import cause_line
from gateway.i18n.formats import format_file_size, format_moment
from gateway.store.alerts import Alert, NotificationState

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


FORMAT = 1  # of the JSON; a field is added without a new number, and none is taken away or given another meaning
TURN_FAILURES = ("poison", "bug")
# What the platforms and we ourselves call it, in lower case; the first that is found decides.
REASONS = (
    ("blocked", ("blocked", "deactivated", "50007", "user_disabled", "cannot_dm_bot", "can't initiate")),
    ("size", ("larger than", "too large", "too long")),
    ("attempts", ("given up after",)),
    ("outside", ("kicked", "not a member", "not_in_channel", "50001")),
    ("gone", ("chat not found", "channel_not_found", "10003", "is_archived", "chat was deleted", "topic_deleted")),
    ("rights", ("rights", "forbidden", "403", "missing", "restricted", "not allowed", "denied", "no_permission")),
    ("rights", ("admin_required", "topic_closed")),
)


def reason(text: str) -> str:
    """Return which of our sentences says why something was given up; the operator's own words stay where they are."""
    words = text.lower()
    if words in TURN_FAILURES:  # of a message: the name of its failure, and nothing else
        return words
    return next((name for name, signs in REASONS if any(sign in words for sign in signs)), "other")


def channel_of(alert: Alert) -> str:
    """Return the channel whose trouble this is, or ""."""
    family, _, about = alert.cause.partition(".")
    return about if family in ("channel", "delay") else ""


def alert_text(alert: Alert, what: NotificationKind, count: int, *, language: str = FALLBACK, zone: str = "UTC") -> str:
    """Return the message text of *alert*."""
    fields: dict[str, object] = {**alert.fields, "count": count, "since": format_moment(alert.since, zone, language)}
    if "reason" in alert.fields:
        fields["reason"] = translate(f"alerts.because_{alert.fields['reason']}", language)
    if "fault" in alert.fields:
        fields["reason"] = cause_line(str(alert.fields["fault"]), language)
    if "free" in alert.fields:
        fields["free"] = format_file_size(int(alert.fields["free"]), language)
    if "until" in alert.fields:
        fields["until"] = format_moment(datetime.fromisoformat(str(alert.fields["until"])), zone, language)
    if what is NotificationKind.OVER:
        return translate(f"alerts.over_{alert.cause.partition('.')[0]}", language, **fields)
    return translate(alert.line, language, **fields)


def name(alert: Alert, what: NotificationKind, *about: str) -> str:
    """Return ``a`` and 16 base32 characters that are the same whenever the same is said of the same."""
    begun = str(alert.since.timestamp())
    mark = alert.mark if what is NotificationKind.HAPPENED else ""
    again = [str(alert.owners.lost)] if alert.owners.lost else []  # what did not arrive is said anew
    return "a" + short_id("\0".join((alert.cause, what, begun, str(alert.stage), mark, *about, *again)))


def notice(alert: Alert, what: NotificationKind, to: OwnerAddress, *, language: str, zone: str) -> OutboundMessage:
    """Return the message to an owner."""
    return OutboundMessage(
        id=f"{name(alert, what, str(to.key))}.1",
        key=to.key,
        text=alert_text(alert, what, alert.owners.waiting, language=language, zone=zone),
        kind=OutboundKind.NOTICE,
        visible_to=to.visible_to,
    )


def alert_status(alert: Alert, *, is_untold: bool) -> dict[str, Any]:
    """Return the status of a cause as in `parlour status --json`."""
    return {
        "cause": alert.cause,
        "level": alert.level,
        "state": "firing" if alert.stage else "past",
        "since": _utc(alert.since),
        "text": alert_text(alert, NotificationKind.TROUBLE, max(alert.owners.waiting, 1)),
        "told_at": _utc(alert.owners.at) if alert.owners.at is not None else "",
        "told": alert.owners.told,
        "untold": is_untold,
        "lost": alert.owners.lost,
    }


@dataclass(frozen=True, slots=True)
class WebhookOrigin:
    """The gateway that posts."""

    host: str
    version: str

    def alert(self, alert: Alert, what: NotificationKind, at: datetime) -> str:
        """Return the JSON that the webhook gets; docs/monitoring.md describes it."""
        return self._json(
            {
                "kind": "event" if what is NotificationKind.HAPPENED else "alert",
                "id": name(alert, what),
                "cause": alert.cause.partition(".")[0],
                "channel": channel_of(alert) or str(alert.fields.get("channel", "")),
                "level": alert.level,
                "state": "resolved" if what is NotificationKind.OVER else "firing",
                "since": _utc(alert.since),
                "text": alert_text(alert, what, alert.monitor.waiting),
            },
            at,
        )

    def ping(self, firing: tuple[str, ...], at: datetime) -> str:
        """Return the JSON of a sign of life."""
        return self._json({"kind": "ping", "state": "firing" if firing else "resolved", "firing": list(firing)}, at)

    def _json(self, fields: Mapping[str, object], at: datetime) -> str:
        return json.dumps(
            {"format": FORMAT, **fields, "at": _utc(at), "host": self.host, "version": self.version}, ensure_ascii=False
        )


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
