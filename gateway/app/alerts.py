"""Alerts to owners and to a webhook, built over the subsystems that they watch."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.alerts import AlertMonitor, AlertWebhook, OwnerDirectory
from gateway.alerts.alert_sources import (
    BurstSource,
    ChannelSource,
    QuarantineSource,
    find_cap_use,
    find_dead_letters,
    find_delays,
    find_low_disk,
    find_models_without_tools,
    find_store_outages,
    find_unclean_stops,
    find_unpriced_models,
)
from gateway.alerts.alert_state import STALE, WebhookOrigin, alert_status, is_unnotified
from gateway.alerts.monitor import AlertRecipients, StoreNotifier
from gateway.errors import ModelAbility
from gateway.events import SessionKey
from gateway.installation import package_version

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime
    from gateway.store.alerts import SqlAlerts

LOCAL_OWNER = "owner"  # the user of this machine's page and terminal (channels/web/adapter.py)
_MOST_ALERTS = 20
_GUESSES = 20  # wrong codes an hour; fewer are typing mistakes


@dataclass(frozen=True, slots=True)
class AlertServices:
    """The alert services, and their status for operators."""

    watch: AlertMonitor
    webhook: AlertWebhook | None
    store_notifier: StoreNotifier
    store: SqlAlerts

    async def run(self) -> None:
        """Notify until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watch.run(), name="alert watch")
            tasks.create_task(self.store_notifier.run(), name="alert of the store")
            if self.webhook is not None:
                tasks.create_task(self.webhook.run(), name="alert webhook")

    async def alert_statuses(self) -> list[Mapping[str, Any]]:
        """Return active and past alerts, the newest first, each with whether the owners were notified."""
        alerts = [alert for alert in await self.store.all() if alert.line]
        return [alert_status(alert, is_untold=is_unnotified(alert)) for alert in alerts[:_MOST_ALERTS]]


def build_alerts(app: Runtime) -> AlertServices:
    """Build the alert monitor and its webhook."""
    settings, home, store, now = app.settings, app.home, app.store, app.now
    access, channels, locales = app.access, app.channels, app.locales
    supervisor, watcher = app.supervisor, app.store_watcher
    origin = WebhookOrigin(host=socket.gethostname(), version=package_version())
    posted = asyncio.Event()
    url = settings.alert_url.get_secret_value() if settings.alert_url else ""

    def wrong_logins() -> Mapping[str, int]:
        return {page.name: page.wrong_codes for page in app.chat_pages}

    # Of several gateways, some conditions are of one machine or home; all others are of the whole.
    of = f".{origin.host}:{home.path}" if store.alerts.gateway else ""
    to = AlertRecipients(
        ways=OwnerDirectory(
            people=access.owners_at.everybody,
            channels=channels,
            connection_states=supervisor.states,
            unreachable=lambda: store.alerts.unreached_chats(now() - STALE),
            pages=[SessionKey(name, LOCAL_OWNER) for name, policy in access.roster.policies.items() if policy.is_local],
        ),
        locale_of=lambda key: (locales.language(key), locales.clock(key)),
        posts=bool(url),
        origin=origin,
        posted=posted,
    )
    watch = AlertMonitor(
        store.alerts,
        {
            "killed": partial(find_unclean_stops, stops=app.unclean_stops, of=of),
            "store": partial(find_store_outages, watcher=watcher, of=of),
            "channels": ChannelSource(supervisor.states, supervisor.refusals, now),
            "delivery": partial(find_delays, delayed=app.dispatcher.delayed, states=supervisor.states),
            "model": app.model_health,
            "model tools": partial(
                find_models_without_tools,
                models=lambda: {
                    each.model: each.at for each in app.models.default.facts.facts() if each.name == ModelAbility.TOOLS
                },
            ),
            "given up": partial(find_dead_letters, store=store.alerts),
            "disk": partial(find_low_disk, home=home.path, of=of),
            "cap": partial(find_cap_use, usage=app.usage.caps.installation_usage),
            "prices": partial(find_unpriced_models, models=lambda: app.usage.recorder.unpriced_models),
            "quarantine": QuarantineSource(home.quarantine, of=of),
            "login codes": BurstSource("login-codes", "alerts.login_codes", wrong_logins, now, many=_GUESSES),
            "owner codes": BurstSource(
                "owner-codes", "alerts.owner_codes", lambda: access.claims.wrong, now, many=_GUESSES
            ),
            "strangers": BurstSource("strangers", "alerts.strangers", lambda: access.strangers.unanswered, now, many=1),
        },
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
    return AlertServices(watch, webhook, notifier, store.alerts)
