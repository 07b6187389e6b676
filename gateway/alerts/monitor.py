"""The alert monitor: polls the sources and stores due notifications together with the new alert state.

`StoreNotifier` tells owners and the webhook that the store cannot be written, past the outbox, which is in the store.
Addresses are looked up while the store answers, and kept. Sending is tried once and noted nowhere: that the outage is
over is an alert like others (`find_store_outages`), which is stored and delivered.

`AlertWebhook` posts each alert to the owner's monitoring as JSON, and a ping every minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

import structlog

from gateway.access.pairing_service import OwnerAddress
from gateway.alerts.alert_sources import STORE_AFTER, store_fields
from gateway.alerts.alert_state import (
    EVERY,
    NotificationKind,
    Observation,
    WebhookOrigin,
    alert_text,
    channel_of,
    due_notification,
    mark_notified,
    mark_undelivered,
    merge_stages,
    notice,
    update_alert,
)
from gateway.channel import Channel
from gateway.errors import StoreUnavailable, exponential_delay
from gateway.events import OutboundMessage, SessionKey
from gateway.ports.metrics import MetricsRecorder
from gateway.store.alerts import Alert, WebhookPost
from gateway.store_watcher import StoreState, StoreWatcher

if TYPE_CHECKING:
    import aiohttp

    from gateway.store.alerts import SqlAlerts


PING_EVERY = timedelta(minutes=1)
KEPT = timedelta(days=1)  # what could not be brought for so long is given up
_PAUSES = (timedelta(seconds=5), timedelta(minutes=15))  # the first after a failure, doubled up to the last
_POST_TIMEOUT = 10.0  # seconds for a whole call
_AT_ONCE = 20
_PING_LOOK_EVERY = timedelta(seconds=15)


@dataclass(slots=True, eq=False, repr=False)
class AlertWebhook:
    """Posts to one address, which is a secret and never logged. Nothing waits for it.

    Posts are kept in the journal until the server answers 2xx, in order, one at a time; a repeated post has the same
    `id`. A ping is never repeated, and none is sent while the journal cannot be written, so that the owner's service
    reports it missing.
    """

    url: str
    store: SqlAlerts
    _: KW_ONLY
    origin: WebhookOrigin
    is_writable: Callable[[], bool]  # the store's last measurement
    firing: Callable[[], tuple[str, ...]]
    post_queued: asyncio.Event
    meter: MetricsRecorder
    now: Callable[[], datetime]
    proxy: str = ""
    _urgent: asyncio.Queue[str] = field(default_factory=asyncio.Queue, init=False)  # two for each outage
    _is_failing: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Post and ping until cancelled."""
        import aiohttp  # not on the start-up path of who needs none

        from gateway.net import trusted_certificates
        from gateway.net.connector import connector

        way = connector(self.proxy, ssl=await asyncio.to_thread(trusted_certificates))
        async with aiohttp.ClientSession(connector=way) as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._post_for_ever(client), name="alert posts")
            tasks.create_task(self._ping_for_ever(client), name="alert pings")
            tasks.create_task(self._post_urgent(client), name="urgent alert posts")

    def post_now(self, body: str) -> None:
        """Post *body* past the journal: once, and before what is queued there."""
        self._urgent.put_nowait(body)

    async def _post_urgent(self, client: aiohttp.ClientSession) -> None:
        while True:
            await self._send(client, await self._urgent.get())

    async def _post_for_ever(self, client: aiohttp.ClientSession) -> None:
        while True:
            self.post_queued.clear()
            with suppress(StoreUnavailable):
                await self._post_due(client)
            with suppress(TimeoutError):
                async with asyncio.timeout(_PING_LOOK_EVERY.total_seconds()):
                    await self.post_queued.wait()

    async def _post_due(self, client: aiohttp.ClientSession) -> None:
        """Bring what is due, in order; the first that fails keeps those behind it waiting."""
        for post in await self.store.posts(due=self.now(), limit=_AT_ONCE):
            trouble = await self._send(client, post.body)
            if not trouble:
                await self.store.mark_posted(post)
            elif self.now() - post.at >= KEPT:
                log.error("alerts.post_given_up", reason=trouble, attempts=post.attempts + 1)
                await self.store.mark_posted(post)
            else:
                await self.store.postpone(post, self.now() + retry_delay(post))
                return

    async def _ping_for_ever(self, client: aiohttp.ClientSession) -> None:
        while True:
            if self.is_writable():
                await self._send(client, self.origin.ping(self.firing(), self.now()))
            else:
                log.warning("alerts.no_ping", reason="the journal cannot be written")
            await asyncio.sleep(PING_EVERY.total_seconds())

    async def _send(self, client: aiohttp.ClientSession, body: str) -> str:
        """Post *body*; return the error, or "". Neither the address nor the response is logged."""
        import aiohttp

        try:
            # The body of the response is not needed, and may be endless.
            async with (
                asyncio.timeout(_POST_TIMEOUT),
                client.post(
                    self.url,
                    data=body.encode(),
                    headers={"Content-Type": "application/json"},
                    allow_redirects=False,
                ) as answer,
            ):
                trouble = "" if 200 <= answer.status < 300 else f"HTTP {answer.status}"
        except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            trouble = type(error).__name__
        self.meter.count("alert_posts", outcome="failed" if trouble else "arrived")
        if bool(trouble) is not self._is_failing:
            self._is_failing = bool(trouble)
            log.warning("alerts.webhook_fails", reason=trouble) if trouble else log.info("alerts.webhook_works")
        return trouble


def retry_delay(post: WebhookPost) -> timedelta:
    """Return the delay after one more failure."""
    return exponential_delay(post.attempts + 1, *_PAUSES)


log = structlog.get_logger(__name__)

LOOK_EVERY = timedelta(seconds=15)
_LOST_EVERY = timedelta(minutes=10)  # what was told is looked after so often
_CONFLICTS = 3  # with other gateways, at one look
_TRIES = timedelta(seconds=30)  # for one source; a disk that hangs must not silence the others

Source: TypeAlias = Callable[[Mapping[str, Alert]], Iterable[Observation] | Awaitable[Iterable[Observation]]]
LocaleOf: TypeAlias = Callable[[SessionKey], tuple[str, str]]  # language and time zone of a chat


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRecipients:
    """Recipients of alerts, besides the log."""

    ways: OwnerDirectory
    locale_of: LocaleOf
    posts: bool  # whether there is a webhook
    origin: WebhookOrigin
    posted: asyncio.Event  # set when there is something for the webhook


class AlertMonitor:
    """Looks every few seconds, and at once when `check_now` is set. One per gateway.

    Of several gateways on one database, each reads the causes again before it looks, and the first that stores a
    change sends its notifications. A trouble is there while one of them sees it.
    """

    def __init__(
        self,
        store: SqlAlerts,
        sources: Mapping[str, Source],
        audiences: AlertRecipients,
        *,
        meter: MetricsRecorder,
        now: Callable[[], datetime],
        check_now: asyncio.Event | None = None,
    ) -> None:
        """Setting *check_now* makes the monitor check at once, and count again what did not arrive."""
        self._store = store
        self._sources = sources
        self._to = audiences
        self._meter = meter
        self._now = now
        self._causes: dict[str, Alert] | None = None
        self._gateways: frozenset[str] = frozenset()  # that watch, where there are several
        self.check_now = check_now or asyncio.Event()
        self._looked_after: datetime | None = None  # when it was last seen what arrived
        self._broken: set[str] = set()  # sources that failed, each said once

    def active_alerts(self) -> tuple[str, ...]:
        """Return the causes of trouble that is there now."""
        return tuple(sorted(cause for cause, alert in (self._causes or {}).items() if alert.stage))

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            if self.check_now.is_set():
                self.check_now.clear()
                self._looked_after = None
            await self.check_once()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY.total_seconds()):
                    await self.check_now.wait()

    async def check_once(self) -> None:
        """Check all sources once. State that cannot be stored is observed again next time."""
        try:
            if self._causes is None or self._store.gateway:
                self._causes = {alert.cause: alert for alert in await self._store.all()}
            if self._store.gateway:
                self._gateways = await self._store.gateways()
            await self._count_lost(self._causes)
            observed: set[str] = set()
            for name, source in self._sources.items():
                for seen in await self._ask(name, source, self._causes):
                    observed.add(seen.cause)
                    await self._apply(seen, self._causes)
            # Alerts that wait for their hour or for a reachable owner are sent without a new observation.
            for alert in [alert for cause, alert in self._causes.items() if cause not in observed]:
                is_gone = bool(alert.seen_by) and not self._gateways & alert.seen_by.keys()
                observation = Observation(cause=alert.cause, stage=None, is_gone=is_gone)
                await self._apply(observation, self._causes)
        except StoreUnavailable as error:
            log.warning("alerts.wait_for_store", reason=str(error))

    async def _count_lost(self, causes: dict[str, Alert]) -> None:
        """Mark notifications that were dead-lettered as not delivered."""
        now = self._now()
        if self._looked_after is not None and timedelta(0) <= now - self._looked_after < _LOST_EVERY:
            return
        sent = [notice for alert in causes.values() for notice in alert.owners.notices]
        dead = await self._store.dead(sent) if sent else frozenset()
        for cause, alert in [(cause, alert) for cause, alert in causes.items() if dead & {*alert.owners.notices}]:
            causes[cause] = replace(alert, owners=mark_undelivered(alert.owners, dead))
            if not await self._store.save(causes[cause], before=alert, at=now):
                continue  # another gateway has
            log.warning("alert.lost", cause=cause, owners=len(dead & {*alert.owners.notices}))
        self._looked_after = now

    async def _ask(self, name: str, source: Source, causes: Mapping[str, Alert]) -> Sequence[Observation]:
        try:
            async with asyncio.timeout(_TRIES.total_seconds()):
                seen = source(causes)
                found = list(await seen if isinstance(seen, Awaitable) else seen)
        except StoreUnavailable:
            raise
        except Exception:  # the service boundary: one blind eye leaves the others open
            if name not in self._broken:
                self._broken.add(name)
                log.exception("alerts.source_failed", source=name)
            return ()
        self._broken.discard(name)
        return found

    async def _apply(self, observation: Observation, causes: dict[str, Alert]) -> None:
        for _ in range(_CONFLICTS):
            if await self._try_apply(observation, causes):
                return
            causes |= {alert.cause: alert for alert in await self._store.all()}
            if observation.mark:
                return  # what happened since the other gateway's mark is asked for at the next look

    async def _try_apply(self, observation: Observation, causes: dict[str, Alert]) -> bool:
        """Store the cause's new state and its notifications; False if another gateway has changed it before."""
        now = self._now()
        before = causes.get(observation.cause)
        if before is None and not observation.stage and not observation.happened and not observation.mark:
            return True
        seen_by: Mapping[str, int] = {}
        if self._store.gateway:
            observation, seen_by = merge_stages(before, observation, self._store.gateway, self._gateways)
        alert = replace(update_alert(before, observation, now), seen_by=seen_by)
        to_owners, to_monitor = due_notification(alert, alert.owners, now), due_notification(alert, alert.monitor, now)
        notices, is_reached = await self._notices(alert, to_owners, observation.read_in)
        posts = [self._to.origin.alert(alert, to_monitor, now)] if to_monitor is not None and self._to.posts else []
        after = alert
        if to_owners is not None:
            after = replace(
                after,
                owners=mark_notified(
                    alert, alert.owners, to_owners, now, notices=[each.turn for each in notices] or [_READ] * is_reached
                ),
            )
        if to_monitor is not None:
            after = replace(after, monitor=mark_notified(alert, alert.monitor, to_monitor, now, notices=("log",)))
        if after != before and not await self._store.save(after, before=before, notices=notices, posts=posts, at=now):
            return False
        causes[observation.cause] = after
        if to_monitor is not None:
            self._raise(alert, to_monitor)
        if notices and to_owners is not None:
            log.info("alert.told", cause=alert.cause, news=to_owners.value, owners=len(notices))
        if posts:
            self._to.posted.set()
        return True

    async def _notices(
        self, alert: Alert, what: NotificationKind | None, read_in: Collection[SessionKey]
    ) -> tuple[list[OutboundMessage], bool]:
        """Return a notice for each owner who can be reached and does not read the same in *read_in*.

        Also return whether there is an owner of either kind.
        """
        if what is None:
            return [], False
        if what is not NotificationKind.TROUBLE:
            read_in = ()
        chats = {key.parent for key in read_in}
        ways = await self._to.ways.reachable_owners(about=channel_of(alert), preferred=chats)
        return [self._notice(alert, what, at) for at in ways if not at.is_in(chats)], bool(ways)

    def _notice(self, alert: Alert, what: NotificationKind, at: OwnerAddress) -> OutboundMessage:
        language, zone = self._to.locale_of(at.key)
        return notice(alert, what, at, language=language, zone=zone)

    def _raise(self, alert: Alert, what: NotificationKind) -> None:
        self._meter.count("alerts", cause=alert.cause.partition(".")[0], news=what.value)
        write = log.info if what is NotificationKind.OVER else log.error
        write("alert.raised", cause=alert.cause, news=what.value, text=alert_text(alert, what, alert.monitor.waiting))


_READ = "read"  # in place of the notices of an alert that every owner has read where it happened
_PREFERRED, _AWAY, _NEVER = -1, 3, 4  # ranks; what a channel lacks is not told over it


@dataclass(slots=True, eq=False, kw_only=True)
class OwnerDirectory:
    """The addresses of all owners.

    *people*: the owners, each with their addresses, the best first; *pages*: the local owner's windows.

    *unreachable*: addresses to which deliveries failed recently.
    """

    people: Callable[[], Awaitable[Sequence[Sequence[OwnerAddress]]]]
    channels: Mapping[str, Channel]
    connection_states: Callable[[], Mapping[str, bool | None]]
    unreachable: Callable[[], Awaitable[Collection[SessionKey]]]
    pages: Sequence[SessionKey] = ()

    async def reachable_owners(
        self, *, about: str = "", preferred: Collection[SessionKey] = ()
    ) -> tuple[OwnerAddress, ...]:
        """Return one address per owner and every open page, each once; empty if no owner can be reached.

        One of the chats *preferred* comes first, then a connected channel, then one not tried yet; alerts *about* a
        channel use another one if possible. If any owner can be reached, messages for the others wait in the outbox.
        """
        people, connection_states, unheard = await self.people(), self.connection_states(), await self.unreachable()

        def rank(at: OwnerAddress) -> int:
            if at.is_in(preferred):
                return _PREFERRED
            return _NEVER if at.key in unheard else self._rank(at, connection_states, about)

        best = [min(addresses, key=rank) for addresses in people if addresses]
        ranks = [rank(at) for at in best]
        pages = [OwnerAddress(key) for key in self.pages if self._is_open(key) and key not in unheard]
        # The owner of this machine is one person, with windows of the page and terminals.
        pages = [each for each in pages if each.is_in(preferred)] or pages
        if not pages and not any(rank < _AWAY for rank in ranks):
            return ()
        found = [at for at, rank in zip(best, ranks, strict=True) if rank < _NEVER]
        return tuple(dict.fromkeys((*found, *pages)))

    def _rank(self, at: OwnerAddress, connection_states: Mapping[str, bool | None], about: str) -> int:
        state = connection_states.get(at.key.channel, False)
        if at.key.channel == about:
            return 2 if state else _NEVER
        return {True: 0, None: 1, False: _AWAY}[state]

    def _is_open(self, key: SessionKey) -> bool:
        channel = self.channels.get(key.channel)
        return channel is not None and channel.is_watched(key)


_LOOK_EVERY = timedelta(seconds=1)
_ADDRESSES_EVERY = timedelta(minutes=10)
_TIMEOUT = 30.0  # seconds for one message


@dataclass(slots=True, eq=False)
class StoreNotifier:
    """Sends one message per outage, and at most one an hour, to each owner that can be reached without the store."""

    watcher: StoreWatcher
    to: AlertRecipients
    channels: Mapping[str, Channel]
    _: KW_ONLY
    webhook: AlertWebhook | None
    meter: MetricsRecorder
    now: Callable[[], datetime]
    addresses: Sequence[OwnerAddress] = field(default=(), init=False)  # as of the last time that the store answered
    _asked_at: datetime | None = field(default=None, init=False)
    _notified: Alert | None = field(default=None, init=False)  # of the outage that is there
    _notified_at: datetime | None = field(default=None, init=False)  # of any outage

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            state = self.watcher.state
            if state is not None:
                await self.look(state, self.now())
            await asyncio.sleep(_LOOK_EVERY.total_seconds())

    async def look(self, state: StoreState, now: datetime) -> None:
        """Notify once that the outage is one, and the webhook that it is over; otherwise keep the addresses fresh."""
        since = self.watcher.trouble_since
        if since is None and self._notified is not None:
            if self.webhook is not None:
                self.webhook.post_now(self.to.origin.alert(self._notified, NotificationKind.OVER, now))
            self._notified = None
        if state.is_writable:
            if self._asked_at is None or not timedelta() <= now - self._asked_at < _ADDRESSES_EVERY:
                self._asked_at = now
                await self._find_addresses()
        elif since is not None and self._notified is None and now - since >= STORE_AFTER and self._may_notify(now):
            await self._notify(since, state.cause, now)

    def _may_notify(self, now: datetime) -> bool:
        """Return True if no message was sent within the hour: a server may come and go for a day."""
        return self._notified_at is None or not timedelta() <= now - self._notified_at < EVERY

    async def _find_addresses(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                self.addresses = await self.to.ways.reachable_owners()
        except (StoreUnavailable, TimeoutError):
            self._asked_at = None

    async def _notify(self, since: datetime, cause: str, now: datetime) -> None:
        alert = Alert(
            cause="store",
            since=since,
            stage=1,
            line="alerts.store_unwritable",
            fields=store_fields(cause),
            level="critical",
        )
        self._notified, self._notified_at = alert, now
        self.meter.count("alerts", cause="store", news=NotificationKind.TROUBLE.value)
        if self.webhook is not None:
            self.webhook.post_now(self.to.origin.alert(alert, NotificationKind.TROUBLE, now))
        for address in self.addresses:
            language, zone = self.to.locale_of(address.key)
            await self._send(notice(alert, NotificationKind.TROUBLE, address, language=language, zone=zone))

    async def _send(self, message: OutboundMessage) -> None:
        channel = self.channels.get(message.key.channel)
        if channel is None:
            return
        try:
            async with asyncio.timeout(_TIMEOUT):
                for part in channel.render(message):
                    await channel.send(part)
        except Exception as error:  # noqa: BLE001 - the channel boundary: the other owners are told
            log.warning("alerts.store_notice_failed", channel=message.key.channel, error=type(error).__name__)
        else:
            log.info("alert.told", cause="store", channel=message.key.channel)
