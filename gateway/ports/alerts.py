"""What the owner is told: the causes, what was said of each, and what is on its way to the owner's own monitoring."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from gateway.events import OutboundMessage, SessionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationState:
    """What one audience knows of a cause: the owners, or the log and the webhook."""

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
    """One cause of trouble, as it stands."""

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
    """One JSON text on its way to the webhook."""

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
    """What was told, durably: a process that starts again and again tells it no more often than one that runs."""

    async def all(self) -> tuple[Alert, ...]:
        """Return every cause that was ever noted, the latest trouble first."""
        ...

    async def note(
        self, alert: Alert, *, notices: Sequence[OutboundMessage] = (), posts: Sequence[str] = (), at: datetime
    ) -> None:
        """Store how *alert* stands, with its *notices* in the outbox and its *posts* queued, in one transaction.

        A notice's id decides whether it is there already, so that doing it twice is doing it once.
        """
        ...

    async def posts(self, *, due: datetime, limit: int) -> tuple[WebhookPost, ...]:
        """Return what is to be posted by now, in order: what is put off keeps those behind it waiting."""
        ...

    async def mark_posted(self, post: WebhookPost) -> None:
        """Forget *post*: it arrived, or is given up."""
        ...

    async def postpone(self, post: WebhookPost, until: datetime) -> None:
        """Count an attempt that failed; the next is not before *until*."""
        ...

    async def dead(self, notices: Collection[str]) -> frozenset[str]:
        """Return which of *notices* (`Heard.notices`) were given up on their way."""
        ...

    async def unreached_chats(self, since: datetime) -> frozenset[SessionKey]:
        """Return the chats where a notice was given up *since*, and where nobody has written after that."""
        ...

    async def given_up(self, after: str) -> tuple[tuple[AbandonedTurn, ...], str]:
        """Return the turns that lost something since the mark *after*, the oldest first, and the mark to go on from.

        An empty mark returns none, and the mark of now. What we say ourselves to owners is not among them.
        """
        ...
