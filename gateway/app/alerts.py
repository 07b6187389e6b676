"""Alerts to owners and to a webhook, over the checks of a gateway."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.admission import LOCAL_OWNER
from gateway.alerts.alert_state import STALE, WebhookOrigin
from gateway.alerts.monitor import AlertMonitor, AlertRecipients, AlertWebhook, OwnerDirectory, StoreNotifier
from gateway.events import SessionKey
from gateway.health.gateway_checks import CHECKS
from gateway.installation import package_version

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime


@dataclass(frozen=True, slots=True)
class AlertServices:
    """The alert services."""

    watch: AlertMonitor
    webhook: AlertWebhook | None
    store_notifier: StoreNotifier

    async def run(self) -> None:
        """Notify until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watch.run(), name="alert watch")
            tasks.create_task(self.store_notifier.run(), name="alert of the store")
            if self.webhook is not None:
                tasks.create_task(self.webhook.run(), name="alert webhook")


def build_alerts(app: Runtime) -> AlertServices:
    """Build the alert monitor and its webhook."""
    settings, home, store, now = app.settings, app.home, app.store, app.now
    channels, locales = app.channels, app.locales
    supervisor, watcher = app.supervisor, app.store_watcher
    origin = WebhookOrigin(host=socket.gethostname(), version=package_version())
    posted = asyncio.Event()
    url = settings.alert_url.get_secret_value() if settings.alert_url else ""

    # Of several gateways, some conditions are of one machine or home; all others are of the whole.
    of = f".{origin.host}:{home.path}" if store.alerts.gateway else ""
    to = AlertRecipients(
        ways=OwnerDirectory(
            people=app.owner_chats.everybody,
            channels=channels,
            connection_states=supervisor.states,
            unreachable=lambda: store.alerts.unreached_chats(now() - STALE),
            pages=[
                SessionKey(name, LOCAL_OWNER)
                for name, policy in app.roster.policies.items()
                if policy.is_local and app.platforms.traits(name).shows_notices
            ],
        ),
        locale_of=lambda key: (locales.language(key), locales.clock(key)),
        posts=bool(url),
        origin=origin,
        posted=posted,
    )
    watch = AlertMonitor(
        store.alerts,
        {each.name: each.alert(app, of) for each in CHECKS if each.alert is not None},
        to,
        meter=app.meter,
        now=now,
        check_now=app.model_health.check_now,
    )
    webhook = None
    if url:
        webhook = AlertWebhook(
            url,
            store.alerts,
            origin=origin,
            is_writable=lambda: watcher.state is not None and watcher.state.is_writable,
            firing=watch.active_alerts,
            post_queued=posted,
            meter=app.meter,
            now=now,
            proxy=settings.proxy_address,
        )
    notifier = StoreNotifier(watcher, to, channels, webhook=webhook, meter=app.meter, now=now)
    return AlertServices(watch, webhook, notifier)
