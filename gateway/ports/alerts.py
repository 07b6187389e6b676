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

    stage: int = 0  # how bad the trouble of now is, as far as they were told; 0 = they were told of none
    at: datetime | None = None  # when they were last told that it is there
    worst: int = 0  # what they were told then
    waiting: int = 0  # things that happened since, and that they do not know of
    told: int = 0  # how many addresses it went to, the last time
    is_owed: bool = False  # there was no way to them when this trouble was noted
    notices: tuple[str, ...] = ()  # the turns (as parts and dead letters name them) of what they were told last
    counted: int = 0  # of what merely happened, how much of it that told
    lost: int = 0  # how often nothing of what they were told arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One cause of an alert with its current state."""

    cause: str  # channel.telegram, model, disk: the same in every release
    stage: int = 0  # 0 = all is well; a higher one is worse. Of what merely happens it stays 0
    since: datetime  # when this trouble began, or the last of what happened
    line: str = ""  # the key of its sentence in the catalogue
    fields: Mapping[str, str | int] = field(default_factory=dict)  # what the sentence needs; no word of anybody's
    level: str = "warning"  # or critical
    mark: str = ""  # up to where its source was read
    owners: NotificationState = NotificationState()
    monitor: NotificationState = NotificationState()


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
    reason: str  # the operator's, in the platform's or our own words
    at: datetime


class AlertStore(Protocol):
    """Durable notification state, so that a gateway that restarts repeatedly does not repeat its notifications."""

    async def all(self) -> tuple[Alert, ...]:
        """Return every cause that was ever noted, the latest trouble first."""
        ...

    async def note(
        self, alert: Alert, *, notices: Sequence[OutboundMessage] = (), posts: Sequence[str] = (), at: datetime
    ) -> None:
        """Store *alert* with its *notices* in the outbox and its *posts* in the queue, in one transaction.

        Notices are deduplicated by id, so the call is idempotent.
        """
        ...

    async def posts(self, *, due: datetime, limit: int) -> tuple[WebhookPost, ...]:
        """Return the posts that are due, in order. A postponed post delays those behind it."""
        ...

    async def mark_posted(self, post: WebhookPost) -> None:
        """Forget *post*: it arrived, or is given up."""
        ...

    async def postpone(self, post: WebhookPost, until: datetime) -> None:
        """Count an attempt that failed; the next is not before *until*."""
        ...

    async def dead(self, notices: Collection[str]) -> frozenset[str]:
        """Return the ids among *notices* that were dead-lettered."""
        ...

    async def unreached_chats(self, since: datetime) -> frozenset[SessionKey]:
        """Return the chats where a notice was dead-lettered *since* and no user has written afterwards."""
        ...

    async def given_up(self, after: str) -> tuple[tuple[AbandonedTurn, ...], str]:
        """Return the turns that lost data since the mark *after*, oldest first, and the next mark.

        An empty mark returns no turns and the current mark. Notices to owners are not included.
        """
        ...
