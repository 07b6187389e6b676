"""Tells owners and the webhook that the store cannot be written, past the outbox, which is in the store.

Addresses are looked up while the store answers, and kept. Sending is tried once and noted nowhere: that the outage is
over is an alert like others (`find_store_outages`), which is stored and delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta

import structlog

from gateway.access.pairing_service import OwnerAddress
from gateway.alerts.alert_messages import notice
from gateway.alerts.alert_sources import STORE_AFTER, store_fields
from gateway.alerts.alert_state import EVERY, NotificationKind
from gateway.alerts.alert_webhook import AlertWebhook
from gateway.alerts.monitor import AlertRecipients
from gateway.errors import StoreUnavailable
from gateway.events import OutboundMessage
from gateway.ports import Alert, Channel, MetricsRecorder
from gateway.store_watcher import StoreState, StoreWatcher

log = structlog.get_logger(__name__)

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
    _told: Alert | None = field(default=None, init=False)  # of the outage that is there
    _told_at: datetime | None = field(default=None, init=False)  # of any outage

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            state = self.watcher.state
            if state is not None:
                await self.look(state, self.now())
            await asyncio.sleep(_LOOK_EVERY.total_seconds())

    async def look(self, state: StoreState, now: datetime) -> None:
        """Tell once that the outage is one, and the webhook that it is over; otherwise keep the addresses fresh."""
        since = self.watcher.trouble_since
        if since is None and self._told is not None:
            if self.webhook is not None:
                self.webhook.post_now(self.to.origin.alert(self._told, NotificationKind.OVER, now))
            self._told = None
        if state.is_writable:
            if self._asked_at is None or not timedelta() <= now - self._asked_at < _ADDRESSES_EVERY:
                self._asked_at = now
                await self._find_addresses()
        elif since is not None and self._told is None and now - since >= STORE_AFTER and self._may_tell(now):
            await self._tell(since, state.cause, now)

    def _may_tell(self, now: datetime) -> bool:
        """Return True if no message was sent within the hour: a server may come and go for a day."""
        return self._told_at is None or not timedelta() <= now - self._told_at < EVERY

    async def _find_addresses(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                self.addresses = await self.to.ways.reachable_owners()
        except (StoreUnavailable, TimeoutError):
            self._asked_at = None

    async def _tell(self, since: datetime, cause: str, now: datetime) -> None:
        alert = Alert(
            cause="store",
            since=since,
            stage=1,
            line="alerts.store_unwritable",
            fields=store_fields(cause),
            level="critical",
        )
        self._told, self._told_at = alert, now
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
