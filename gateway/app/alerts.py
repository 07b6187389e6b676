"""What tells the owners, built over the rooms that it looks at."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.llm.model_client import ModelClient
from gateway.access.usage_caps import UsageCapTracker
from gateway.alerts import AlertMonitor, AlertWebhook, OwnerDirectory
from gateway.alerts.alert_messages import WebhookOrigin, alert_status
from gateway.alerts.alert_sources import (
    BurstSource,
    CapSource,
    ChannelSource,
    CrashSource,
    DeadLetterSource,
    DelaySource,
    DiskSource,
    ModelSource,
    QuarantineSource,
)
from gateway.alerts.alert_state import STALE, is_unnotified
from gateway.alerts.monitor import AlertRecipients
from gateway.app.access import AccessServices
from gateway.app.channels import ConfiguredChannels
from gateway.app.web_operations import SupportsLogin
from gateway.delivery import OutboxDispatcher
from gateway.events import SessionKey
from gateway.home import Home
from gateway.ports import AlertStore, LocaleProvider, MetricsRecorder, Store
from gateway.ports.entry_points import package_version
from gateway.settings import Settings
from gateway.supervisor import Supervisor

LOCAL_OWNER = "owner"  # who sits at this machine's page or terminal (channels/web/adapter.py)
_SHOWN = 20  # causes
_GUESSES = 20  # wrong codes an hour; fewer are typing mistakes


@dataclass(frozen=True, slots=True)
class AlertServices:
    """The services that tell, and what operators are shown of them."""

    watch: AlertMonitor
    webhook: AlertWebhook | None
    store: AlertStore

    async def run(self) -> None:
        """Tell until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watch.run(), name="alert watch")
            if self.webhook is not None:
                tasks.create_task(self.webhook.run(), name="alert webhook")

    async def alert_statuses(self) -> list[Mapping[str, Any]]:
        """Return what is wrong and what was, the latest first, and whether the owners know."""
        alerts = [alert for alert in await self.store.all() if alert.line]
        return [alert_status(alert, is_untold=is_unnotified(alert)) for alert in alerts[:_SHOWN]]


def open_alerts(
    settings: Settings,
    home: Home,
    store: Store,
    *,
    people: AccessServices,
    doors: ConfiguredChannels,
    supervisor: Supervisor,
    deliverer: OutboxDispatcher,
    caps: UsageCapTracker,
    models: Iterable[ModelClient],
    locales: LocaleProvider,
    unclean_stops: int,
    meter: MetricsRecorder,
    now: Callable[[], datetime],
) -> AlertServices:
    """Build them; nothing looks yet."""
    answers = ModelSource(now)
    for model in models:
        model.on_end = answers.note_call_end
    origin = WebhookOrigin(host=socket.gethostname(), version=package_version())
    posted = asyncio.Event()
    url = settings.alert_url.get_secret_value() if settings.alert_url else ""

    def house() -> tuple[int, int, datetime]:
        stands = caps.installation_usage()
        return (stands.used, stands.limit, stands.until or now()) if stands else (0, 0, now())

    def wrong_logins() -> Mapping[str, int]:
        return {name: each.wrong_codes for name, each in doors.channels.items() if isinstance(each, SupportsLogin)}

    watch = AlertMonitor(
        store.alerts,
        {
            "killed": CrashSource(unclean_stops, now),
            "channels": ChannelSource(supervisor.states, supervisor.refusals, now),
            "delivery": DelaySource(deliverer.delayed, supervisor.states, now),
            "model": answers,
            "given up": DeadLetterSource(store.alerts, now),
            "disk": DiskSource(home.path, now),
            "cap": CapSource(house, now),
            "quarantine": QuarantineSource(home.quarantine, now),
            "login codes": BurstSource("login-codes", "alerts.login_codes", wrong_logins, now, many=_GUESSES),
            "owner codes": BurstSource(
                "owner-codes", "alerts.owner_codes", lambda: people.claims.wrong, now, many=_GUESSES
            ),
            "strangers": BurstSource("strangers", "alerts.strangers", lambda: people.strangers.unanswered, now, many=1),
        },
        AlertRecipients(
            ways=OwnerDirectory(
                people=people.owners_at.everybody,
                channels=doors.channels,
                hears=supervisor.states,
                unheard=lambda: store.alerts.unreached_chats(now() - STALE),
                pages=[
                    SessionKey(name, LOCAL_OWNER) for name, policy in people.roster.policies.items() if policy.is_local
                ],
            ),
            manner=lambda key: (locales.language(key), locales.clock(key)),
            posts=bool(url),
            origin=origin,
            posted=posted,
        ),
        meter=meter,
        now=now,
    )
    supervisor.on_refusal = watch.wake
    webhook = None
    if url:
        webhook = AlertWebhook(
            url,
            store.alerts,
            origin=origin,
            check=store.check,
            firing=watch.active_alerts,
            posted=posted,
            meter=meter,
            now=now,
            proxy=settings.proxy_address,
        )
    return AlertServices(watch, webhook, store.alerts)
