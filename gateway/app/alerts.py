"""What tells the owners, built over the rooms that it looks at."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.llm.client import ModelClient
from gateway.alerts import Watch, Ways, Webhook
from gateway.alerts.book import STALE, is_untold
from gateway.alerts.sources import (
    BurstSource,
    CapSource,
    ChannelSource,
    DelaySource,
    DiskSource,
    GivenUpSource,
    KilledSource,
    ModelSource,
    QuarantineSource,
)
from gateway.alerts.watch import Audiences
from gateway.alerts.wording import Origin, shown
from gateway.app.channels import Doors
from gateway.app.people import PeopleDesk
from gateway.app.web_operations import LogsIn
from gateway.delivery import Deliverer
from gateway.events import SessionKey
from gateway.home import Home
from gateway.people.caps import Ledger
from gateway.ports import Alerts, Locales, Meter, Store
from gateway.ports.installed import version
from gateway.services import Supervisor
from gateway.settings import Settings

LOCAL_OWNER = "owner"  # who sits at this machine's page or terminal (channels/web/adapter.py)
_SHOWN = 20  # causes
_GUESSES = 20  # wrong codes an hour; fewer are typing mistakes


@dataclass(frozen=True, slots=True)
class AlertDesk:
    """The services that tell, and what operators are shown of them."""

    watch: Watch
    webhook: Webhook | None
    store: Alerts

    async def run(self) -> None:
        """Tell until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watch.run(), name="alert watch")
            if self.webhook is not None:
                tasks.create_task(self.webhook.run(), name="alert webhook")

    async def told(self) -> list[Mapping[str, Any]]:
        """Return what is wrong and what was, the latest first, and whether the owners know."""
        alerts = [alert for alert in await self.store.all() if alert.line]
        return [shown(alert, is_untold=is_untold(alert)) for alert in alerts[:_SHOWN]]


def open_alerts(
    settings: Settings,
    home: Home,
    store: Store,
    *,
    people: PeopleDesk,
    doors: Doors,
    supervisor: Supervisor,
    deliverer: Deliverer,
    caps: Ledger,
    models: Iterable[ModelClient],
    locales: Locales,
    unclean_stops: int,
    meter: Meter,
    now: Callable[[], datetime],
) -> AlertDesk:
    """Build them; nothing looks yet."""
    answers = ModelSource(now)
    for model in models:
        model.on_end = answers.ended
    origin = Origin(host=socket.gethostname(), version=version())
    posted = asyncio.Event()
    url = settings.alert_url.get_secret_value() if settings.alert_url else ""

    def house() -> tuple[int, int, datetime]:
        stands = caps.house()
        return (stands.used, stands.limit, stands.until or now()) if stands else (0, 0, now())

    def wrong_logins() -> Mapping[str, int]:
        return {name: each.wrong_codes for name, each in doors.channels.items() if isinstance(each, LogsIn)}

    watch = Watch(
        store.alerts,
        {
            "killed": KilledSource(unclean_stops, now),
            "channels": ChannelSource(supervisor.states, supervisor.refusals, now),
            "delivery": DelaySource(deliverer.delayed, supervisor.states, now),
            "model": answers,
            "given up": GivenUpSource(store.alerts, now),
            "disk": DiskSource(home.path, now),
            "cap": CapSource(house, now),
            "quarantine": QuarantineSource(home.quarantine, now),
            "login codes": BurstSource("login-codes", "alerts.login_codes", wrong_logins, now, many=_GUESSES),
            "owner codes": BurstSource(
                "owner-codes", "alerts.owner_codes", lambda: people.claims.wrong, now, many=_GUESSES
            ),
            "strangers": BurstSource("strangers", "alerts.strangers", lambda: people.strangers.unanswered, now, many=1),
        },
        Audiences(
            ways=Ways(
                people=people.owners_at.everybody,
                channels=doors.channels,
                hears=supervisor.states,
                unheard=lambda: store.alerts.unheard(now() - STALE),
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
    supervisor.on_refusal = watch.nudge
    webhook = None
    if url:
        webhook = Webhook(
            url,
            store.alerts,
            origin=origin,
            check=store.check,
            firing=watch.firing,
            posted=posted,
            meter=meter,
            now=now,
            proxy=settings.proxy_address,
        )
    return AlertDesk(watch, webhook, store.alerts)
