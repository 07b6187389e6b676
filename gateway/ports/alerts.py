"""Alerts: their causes, the notifications sent about each, and the webhook queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationState:
    """Notification state of one audience (the owners, or the log and the webhook) for one cause."""

    stage: int = 0  # the stage last notified for the current trouble; 0 = none
    at: datetime | None = None  # time of the last notification
    worst: int = 0  # the stage notified then
    waiting: int = 0  # occurrences since the last notification
    told: int = 0  # number of addresses of the last notification
    is_owed: bool = False  # no owner was reachable when the trouble was noted
    notices: tuple[str, ...] = ()  # turn ids of the last notices, as in parts and dead letters
    counted: int = 0  # occurrences that the last notification counted
    lost: int = 0  # notifications in a row that did not arrive


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One cause of an alert with its current state."""

    cause: str  # channel.telegram, model, disk: the same in every release
    stage: int = 0  # 0 = resolved; higher is worse. One-time events stay at 0
    since: datetime  # start of the trouble, or time of the last event
    line: str = ""  # catalogue key of its message
    fields: Mapping[str, str | int] = field(default_factory=dict)  # values for the message; never text of users
    level: str = "warning"  # or critical
    mark: str = ""  # read position of its source
    owners: NotificationState = NotificationState()
    monitor: NotificationState = NotificationState()
    seen_by: Mapping[str, int] = field(default_factory=dict)  # stages by gateway, where several watch


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookPost:
    """One JSON text queued for the webhook."""

    seq: int
    body: str
    at: datetime
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonedTurn:
    """A turn of which something was given up."""

    turn: str
    chat: str  # the session key, as text
    reason: str  # for the operator, from the platform or the gateway
    at: datetime
