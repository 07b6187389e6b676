"""The Alerts port over the writer: a row per cause, a queue for the webhook, notices in the outbox."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from gateway.events import OutboundMessage, SessionKey
from gateway.store.database import LISTED, Database, upsert_sql
from gateway.store.engine import StoreEngine
from gateway.store.inbox import enqueue
from gateway.store.row_codec import micros, moment, read_json, read_key, sql, unquote, write_json

OURS = "a"  # a notice's id begins with it where a turn's begins with t
STRANGERS = "s"  # prefix of replies to unknown senders, whose delivery raises no alert

_PUT = upsert_sql("alert", "cause", "since", "payload")
_GATEWAYS = "SELECT name FROM worker"
_ONE = "SELECT cause, since, payload FROM alert WHERE cause = ?"
_LEASE_POST = "UPDATE alert_post SET due_at = ? WHERE seq = ?"
_POST_LEASE = timedelta(minutes=1)  # of one gateway among several; a call ends sooner
_QUEUE = "INSERT INTO alert_post (body, at, due_at) VALUES (?, ?, ?)"
_QUEUED = "SELECT seq, body, at, attempts, due_at FROM alert_post ORDER BY seq LIMIT ?"
_GIVEN_UP = (
    "SELECT turn, key, reason, at FROM dead WHERE at > ? AND key != '' AND substr(turn, 1, 1) NOT IN (?, ?) "
    "ORDER BY at, id"
)
_DEAD = sql("SELECT DISTINCT turn FROM dead WHERE turn", LISTED)
_UNHEARD = (
    "SELECT DISTINCT key FROM dead WHERE at >= ? AND key != '' AND substr(turn, 1, 1) = ? "
    "AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.key = dead.key AND accepted_at > dead.at)"
)


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


def load_alerts(database: Database) -> tuple[Alert, ...]:
    """Return all causes, the latest first; also for readers of a journal without a writer."""
    found = database.execute("SELECT cause, since, payload FROM alert ORDER BY since DESC, cause")
    return tuple(_read(*columns) for columns in found)


class SqlAlerts:
    """Durable notification state, so that a gateway that restarts repeatedly does not repeat its notifications.

    Several gateways on one database share it, so that each notification is sent by one of them.
    """

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine
        self.gateway = engine.owner if engine.worker.shares else ""

    async def gateways(self) -> frozenset[str]:
        """Return the names of the gateways that run."""
        return frozenset(name for (name,) in await self._engine.fetch(_GATEWAYS))

    async def all(self) -> tuple[Alert, ...]:
        """Return every cause that was ever noted, the latest trouble first."""
        return await self._engine.writer.submit(load_alerts)

    async def save(
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
        row, now = (alert.cause, micros(alert.since), _write(alert)), micros(at)

        def store(database: Database) -> bool:
            if self.gateway:
                found = database.execute(_ONE, (alert.cause,)).fetchone()
                if (_read(*found) if found is not None else None) != before:
                    return False
            database.execute(_PUT, row)
            database.executemany(_QUEUE, [(body, now, now) for body in posts])
            for notice in notices:
                enqueue(database, notice)
            return True

        def wake(is_stored: bool) -> None:
            for notice in notices if is_stored else ():
                self._engine.wake_chat(notice.key)

        return await self._engine.writer.submit(store, wake)

    async def posts(self, *, due: datetime, limit: int) -> tuple[WebhookPost, ...]:
        """Return the posts that are due, in order. A postponed post delays those behind it.

        Of several gateways, only the one that got them has them for the next minute.
        """
        now, until = micros(due), micros(due + _POST_LEASE)

        def take(database: Database) -> list[Any]:
            ready = list(takewhile(lambda columns: columns[4] <= now, database.execute(_QUEUED, (limit,)).fetchall()))
            if self.gateway:
                database.executemany(_LEASE_POST, [(until, columns[0]) for columns in ready])
            return ready

        found = await self._engine.writer.submit(take)
        return tuple(
            WebhookPost(seq=seq, body=body, at=moment(at), attempts=tries) for seq, body, at, tries, _ in found
        )

    async def mark_posted(self, post: WebhookPost) -> None:
        """Forget *post*: it arrived, or is given up."""
        await self._engine.execute("DELETE FROM alert_post WHERE seq = ?", post.seq)

    async def postpone(self, post: WebhookPost, until: datetime) -> None:
        """Count an attempt that failed; the next is not before *until*."""
        change = "UPDATE alert_post SET attempts = ?, due_at = ? WHERE seq = ?"
        await self._engine.execute(change, post.attempts + 1, micros(until), post.seq)

    async def dead(self, notices: Collection[str]) -> frozenset[str]:
        """Return the ids among *notices* that were dead-lettered."""
        return frozenset(turn for (turn,) in await self._engine.fetch(_DEAD, write_json(sorted(notices))))

    async def unreached_chats(self, since: datetime) -> frozenset[SessionKey]:
        """Return the chats where a notice was dead-lettered *since* and no user has written afterwards."""
        return frozenset(read_key(key) for (key,) in await self._engine.fetch(_UNHEARD, micros(since), OURS))

    async def given_up(self, after: str) -> tuple[tuple[AbandonedTurn, ...], str]:
        """Return the turns that lost data since the mark *after*, oldest first, and the next mark.

        An empty mark returns no turns and the current mark. Notices to owners are not included.
        """
        return await self._engine.writer.submit(lambda database: _given_up(database, after))


def _given_up(database: Database, after: str) -> tuple[tuple[AbandonedTurn, ...], str]:
    if not after:
        (latest,) = database.execute("SELECT max(at) FROM dead").fetchone()
        return (), str(latest or 0)
    lost: dict[str, tuple[str, str, int]] = {}  # of each turn the latest, in their order
    for turn, key, reason, at in database.execute(_GIVEN_UP, (int(after), OURS, STRANGERS)):
        lost.pop(turn, None)
        lost[turn] = (key, reason, at)
    letters = tuple(
        AbandonedTurn(turn=unquote(turn), chat=unquote(key), reason=unquote(reason), at=moment(at))
        for turn, (key, reason, at) in lost.items()
    )
    return letters, str(max((at for *_, at in lost.values()), default=int(after)))


def _write(alert: Alert) -> str:
    fields: dict[str, Any] = {
        "stage": alert.stage,
        "line": alert.line,
        "fields": dict(alert.fields),
        "level": alert.level,
        "mark": alert.mark,
        "owners": _encode_state(alert.owners),
        "monitor": _encode_state(alert.monitor),
        "seen_by": dict(alert.seen_by),
    }
    return write_json(fields)


def _encode_state(state: NotificationState) -> dict[str, Any]:
    at = micros(state.at) if state.at is not None else None
    return {**asdict(state), "at": at}


def _read(cause: str, since: int, payload: str) -> Alert:
    fields: Mapping[str, Any] = read_json(payload)
    return Alert(
        cause=cause,
        stage=fields["stage"],
        since=moment(since),
        line=fields["line"],
        fields=fields["fields"],
        level=fields["level"],
        mark=fields["mark"],
        owners=_read_heard(fields["owners"]),
        monitor=_read_heard(fields["monitor"]),
        seen_by=fields.get("seen_by", {}),  # older rows have none
    )


def _read_heard(fields: Mapping[str, Any]) -> NotificationState:
    at = moment(fields["at"]) if fields["at"] is not None else None
    return NotificationState(**{**fields, "at": at, "notices": tuple(fields["notices"])})
