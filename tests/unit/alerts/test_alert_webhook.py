"""The webhook over real HTTP: the same JSON, again until it arrives, a ping a minute, and no word of the address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import structlog
from aiohttp import web

from gateway.alerts.alert_state import WebhookOrigin
from gateway.alerts.alert_webhook import KEPT, AlertWebhook
from gateway.store.alerts import Alert
from gateway.store.sql_store import SqlStore
from tests.fakes.clock import VirtualClock
from tests.fakes.loopback import serve_app
from tests.fakes.meter import FakeMeter
from tests.fakes.store import open_inline_store

SECRET = "hunter2-in-the-path"


@dataclass
class MonitoringServer:
    """The owner's own service: what it was sent, and what it answers."""

    answers: list[int] = field(default_factory=list)
    hangs: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.StreamResponse:
        """Take one post."""
        body = json.loads(await request.text())
        status = self.answers.pop(0) if self.answers and body["kind"] != "ping" else 200
        self.bodies.append({**body, "answered": status, "method": request.method})
        if self.hangs and body["kind"] != "ping":
            await self.released.wait()
        return web.Response(status=status, text="OK", headers={"Location": "/elsewhere"})

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return what came of one kind."""
        return [body for body in self.bodies if body["kind"] == kind]


@pytest.fixture
async def monitoring() -> AsyncIterator[MonitoringServer]:
    """Listen on this machine."""
    service = MonitoringServer()
    async with serve_app(service.take) as place:
        service.url = f"http://{place}/{SECRET}"
        yield service
        service.released.set()


@asynccontextmanager
async def posting(
    url: str, clock: VirtualClock, *, is_writable: Callable[[], bool] = lambda: True
) -> AsyncIterator[tuple[SqlStore, asyncio.Event]]:
    """Run the webhook over a store."""
    store = await open_inline_store(clock=clock.now)
    posted = asyncio.Event()
    webhook = AlertWebhook(
        url,
        store.alerts,
        origin=WebhookOrigin(host="house", version="1.2.3"),
        is_writable=is_writable,
        firing=lambda: ("disk",),
        post_queued=posted,
        meter=FakeMeter(),
        now=clock.now,
    )
    running = asyncio.create_task(webhook.run())
    try:
        yield store, posted
    finally:
        running.cancel()
        await asyncio.wait({running})
        await store.close()


async def queue(store: SqlStore, clock: VirtualClock, *names: str) -> None:
    """Have the watch queue a text for each name."""
    for name in names:
        body = json.dumps({"kind": "alert", "id": name})
        await store.alerts.save(Alert(cause=name, since=clock.now()), posts=[body], at=clock.now())


async def test_what_failed_comes_again_in_order_and_once(clock: VirtualClock, monitoring: MonitoringServer) -> None:
    """500, 429 and a redirect are failures; behind them the others wait, and what arrived is not sent again."""
    monitoring.answers = [500, 302, 429]
    async with posting(monitoring.url, clock) as (store, posted):
        await queue(store, clock, "one", "two")
        posted.set()
        await asyncio.sleep(300)
        assert [(body["id"], body["answered"]) for body in monitoring.of("alert")] == [
            ("one", 500),
            ("one", 302),
            ("one", 429),
            ("one", 200),
            ("two", 200),
        ]
        assert {body["method"] for body in monitoring.bodies} == {"POST"}


async def test_a_ping_a_minute_says_what_is_firing(clock: VirtualClock, monitoring: MonitoringServer) -> None:
    """A sign of life whose absence the owner's service notices; alerts that are refused do not hold it up."""
    monitoring.answers = [503] * 1_000
    async with posting(monitoring.url, clock) as (store, posted):
        await queue(store, clock, "one")
        posted.set()
        await asyncio.sleep(601)
    pings = monitoring.of("ping")
    assert len(pings) == 11
    assert {key: pings[0][key] for key in ("format", "kind", "state", "firing", "host", "version")} == {
        "format": 1,
        "kind": "ping",
        "state": "firing",
        "firing": ["disk"],
        "host": "house",
        "version": "1.2.3",
    }


async def test_without_a_journal_there_is_no_ping(clock: VirtualClock, monitoring: MonitoringServer) -> None:
    """A gateway that cannot store what it is told is no better than a dead one."""
    is_writable = [False]

    async with posting(monitoring.url, clock, is_writable=lambda: is_writable[0]):
        await asyncio.sleep(300)
    assert monitoring.bodies == []


async def test_a_silent_service_holds_nobody_up_and_a_day_is_enough(
    clock: VirtualClock, monitoring: MonitoringServer
) -> None:
    """Nothing waits longer than ten seconds for an answer; what could not be brought for a day is given up."""
    monitoring.hangs = True
    async with posting(monitoring.url, clock) as (store, posted):
        await queue(store, clock, "one")
        posted.set()
        await asyncio.sleep(60)
        assert len(monitoring.of("alert")) >= 2
        clock.set_wall(KEPT)
        await asyncio.sleep(120)
        assert await store.alerts.posts(due=clock.now() + timedelta(days=9), limit=9) == ()


async def test_no_line_holds_the_address(clock: VirtualClock) -> None:
    """The address is its own password: neither a refusal nor a wrong host tells it."""
    with structlog.testing.capture_logs() as lines:
        async with posting(f"http://127.0.0.1:9/{SECRET}", clock):
            await asyncio.sleep(61)
    assert [line["event"] for line in lines if line["event"].startswith("alerts.")] == ["alerts.webhook_fails"]
    assert SECRET not in str(lines)
