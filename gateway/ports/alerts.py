"""Alerts: their causes, the notifications sent about each, and the webhook queue."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from gateway.events import OutboundMessage, SessionKey


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


class AlertStore(Protocol):
    """Durable notification state, so that a gateway that restarts repeatedly does not repeat its notifications.

    Several gateways on one database share it, so that each notification is sent by one of them.
    """

    gateway: str  # name of this one among several; "" = it is the only one

    async def gateways(self) -> frozenset[str]:
        """Return the names of the gateways that run."""

    async def all(self) -> tuple[Alert, ...]:
        """Return every cause that was ever noted, the latest trouble first."""

    async def note(
        self,
        alert: Alert,
        *,
        before: Alert | None = None,
        notices: Sequence[OutboundMessage] = (),
        posts: Sequence[str] = (),
        at: datetime,
    ) -> bool:
        """Store *alert* with its *notices* in the outbox and its *posts* in the queue, in one transaction.

        Notices are deduplicated by id, so the call is idempotent. Of several gateways the first stores: return False,
        without effect, if its cause is not stored as *before* any more.
        """

    async def posts(self, *, due: datetime, limit: int) -> tuple[WebhookPost, ...]:
        """Return the posts that are due, in order. A postponed post delays those behind it.

        Of several gateways, only the one that got them has them for the next minute.
        """

    async def mark_posted(self, post: WebhookPost) -> None:
        """Forget *post*: it arrived, or is given up."""

    async def postpone(self, post: WebhookPost, until: datetime) -> None:
        """Count an attempt that failed; the next is not before *until*."""

    async def dead(self, notices: Collection[str]) -> frozenset[str]:
        """Return the ids among *notices* that were dead-lettered."""

    async def unreached_chats(self, since: datetime) -> frozenset[SessionKey]:
        """Return the chats where a notice was dead-lettered *since* and no user has written afterwards."""

    async def given_up(self, after: str) -> tuple[tuple[AbandonedTurn, ...], str]:
        """Return the turns that lost data since the mark *after*, oldest first, and the next mark.

        An empty mark returns no turns and the current mark. Notices to owners are not included.
        """
