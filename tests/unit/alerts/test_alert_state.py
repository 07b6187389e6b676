"""When alerts are reported, how often, over which webhook, and those of a store that is away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.pairing_service import OwnerAddress
from gateway.alerts.alert_sources import find_store_outages
from gateway.alerts.alert_state import (
    EVERY,
    NotificationKind,
    Observation,
    WebhookOrigin,
    due_notification,
    is_unnotified,
    mark_notified,
    update_alert,
)
from gateway.alerts.monitor import KEPT, AlertRecipients, AlertWebhook, OwnerDirectory, Source, StoreNotifier
from gateway.errors import StoreUnavailable
from gateway.store.alerts import Alert
from gateway.store.sql_store import SqlStore
from gateway.store_watcher import StoreWatcher
from tests.fakes.alert_scene import OWNER_HERE, AlertScene
from tests.fakes.clock import VirtualClock
from tests.fakes.loopback import serve_app
from tests.fakes.memory_channel import KEYED, FakeChannel, MemoryPlatform
from tests.fakes.meter import FakeMeter
from tests.fakes.store import open_inline_store

T0 = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def at(minutes: float) -> datetime:
    """Return a time of the morning."""
    return T0 + timedelta(minutes=minutes)


class NotifiedOwner:
    """One cause, and the owners who are told of it; `reachable` says whether there is a way to them."""

    def __init__(self) -> None:
        self.alert: Alert | None = None
        self.heard: list[tuple[float, NotificationKind, int]] = []
        self.reachable = True

    def see(self, minutes: float, stage: int | None = 0, *, happened: int = 0, ends_from: int = 1) -> None:
        """Let a source say what it sees."""
        seen = Observation(
            cause="disk", since=at(minutes), stage=stage, happened=happened, line="alerts.disk_low", ends_from=ends_from
        )
        alert = update_alert(self.alert, seen, at(minutes))
        what = due_notification(alert, alert.owners, at(minutes))
        self.alert = alert
        if what is None:
            return
        if self.reachable:
            self.heard.append(
                (minutes, what, alert.owners.waiting if what is NotificationKind.HAPPENED else alert.stage)
            )
        owners = mark_notified(alert, alert.owners, what, at(minutes), notices=["a1"] if self.reachable else [])
        self.alert = replace(alert, owners=owners)


def test_trouble_is_told_when_it_begins_when_it_is_worse_and_when_it_is_over() -> None:
    """Three lines for one outage, however often it is looked at; what gets better again says nothing."""
    owner = NotifiedOwner()
    for minute, stage in enumerate((0, 1, 1, 2, 2, 1, 2, 0, 0)):
        owner.see(minute, stage)
    assert owner.heard == [
        (1, NotificationKind.TROUBLE, 1),
        (3, NotificationKind.TROUBLE, 2),
        (7, NotificationKind.OVER, 0),
    ]


def test_what_comes_and_goes_is_told_once_an_hour() -> None:
    """A cause that flaps: its next beginning waits for the hour, and an end is told only of what was told."""
    owner = NotifiedOwner()
    for minute in range(0, 180, 2):
        owner.see(minute, 1)
        owner.see(minute + 1, 0)
    begun = [minute for minute, what, _ in owner.heard if what is NotificationKind.TROUBLE]
    assert begun == [0, 60, 120]
    assert [minute for minute, what, _ in owner.heard if what is NotificationKind.OVER] == [1, 61, 121]


def test_trouble_that_began_within_the_hour_and_stays_is_told_at_its_end() -> None:
    """Nothing that lasts is passed over in silence."""
    owner = NotifiedOwner()
    for minute, stage in ((0, 1), (5, 0), (20, 1), (40, 1), (60, 1), (61, 1)):
        owner.see(minute, stage)
    assert owner.heard == [
        (0, NotificationKind.TROUBLE, 1),
        (5, NotificationKind.OVER, 0),
        (60, NotificationKind.TROUBLE, 1),
    ]


def test_what_happens_is_counted_and_told_together() -> None:
    """The first at once, the others of the hour in one line."""
    owner = NotifiedOwner()
    for minute in (0, 10, 20, 30, 60):
        owner.see(minute, happened=2 if minute == 10 else 1)
    owner.see(200)
    assert owner.heard == [(0, NotificationKind.HAPPENED, 1), (60, NotificationKind.HAPPENED, 5)]


def test_who_could_not_be_reached_is_told_when_there_is_a_way() -> None:
    """Trouble that lasts is told late; of trouble that is over meanwhile one line says that it was there."""
    owner = NotifiedOwner()
    owner.reachable = False
    owner.see(0, 1)
    assert owner.alert is not None
    assert is_unnotified(owner.alert)
    owner.reachable = True
    owner.see(3, 1)
    owner.see(5, 0)
    assert owner.heard == [(3, NotificationKind.TROUBLE, 1), (5, NotificationKind.OVER, 0)]
    owner = NotifiedOwner()
    owner.reachable = False
    owner.see(0, 1)
    owner.see(5, 0)
    owner.reachable = True
    owner.see(6, 0)
    owner.see(7, 0)
    assert owner.heard == [(6, NotificationKind.OVER, 0)]


def test_what_nobody_could_be_told_for_a_day_is_no_news() -> None:
    """Whoever becomes the owner next week is not told of today."""
    owner = NotifiedOwner()
    owner.reachable = False
    owner.see(0, 1, happened=3)
    owner.see(5, 0)
    owner.reachable = True
    owner.see(25 * 60, 0)
    assert owner.heard == []


def test_an_end_that_interests_nobody_is_not_told_and_the_next_beginning_is() -> None:
    """Four fifths of a day's tokens: their end is midnight, which needs no line; tomorrow's are news again."""
    owner = NotifiedOwner()
    for minute, stage in ((0, 1), (100, 0), (200, 1), (300, 2), (400, 0)):
        owner.see(minute, stage, ends_from=2)
    assert [what for _, what, _ in owner.heard] == [
        NotificationKind.TROUBLE,
        NotificationKind.TROUBLE,
        NotificationKind.TROUBLE,
        NotificationKind.OVER,
    ]


def test_a_clock_that_was_set_back_silences_nobody() -> None:
    """What was told in the future counts for nothing."""
    owner = NotifiedOwner()
    for minute, stage in ((600, 1), (601, 0), (0, 1)):
        owner.see(minute, stage)
    assert owner.heard[-1] == (0, NotificationKind.TROUBLE, 1)


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from([None, 0, 1, 2]), st.integers(0, 2)), max_size=40))
def test_never_more_than_one_beginning_an_hour_and_no_end_without_one(steps: list[tuple[int, int | None, int]]) -> None:
    """Whatever a source sees: of one stage at most one line an hour, and an end only of what they know of."""
    owner, minute = NotifiedOwner(), 0
    for wait, stage, happened in steps:
        minute += wait
        owner.see(minute, stage, happened=happened)
    knows = False
    last: dict[int, float] = {}
    for when, what, stage in owner.heard:
        if what is NotificationKind.OVER:
            assert knows
            knows = False
        elif what is NotificationKind.TROUBLE:
            knows = True
            assert when - last.get(stage, -60) >= EVERY.total_seconds() / 60
            last[stage] = when


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


class FlappingStore:
    """A store that can be written when a test says so."""

    def __init__(self, clock: VirtualClock) -> None:
        self.is_away = False
        self.watcher = StoreWatcher(self.check, self.record_gauges, meter=FakeMeter(), now=clock.now)

    async def check(self) -> None:
        """Write once."""
        if self.is_away:
            raise StoreUnavailable("the connection was lost")

    async def record_gauges(self) -> None:
        """Read what is stored."""

    async def be_away(self, seconds: float) -> None:
        """Be away for so long."""
        self.is_away = True
        await asyncio.sleep(seconds)
        self.is_away = False


@pytest.fixture
async def store(clock: VirtualClock) -> AsyncIterator[FlappingStore]:
    """Watch a store."""
    store = FlappingStore(clock)
    watching = asyncio.create_task(store.watcher.run())
    yield store
    watching.cancel()


@pytest.fixture
async def platform(store: FlappingStore, clock: VirtualClock) -> AsyncIterator[MemoryPlatform]:
    """Tell the owner on a platform."""
    platform = MemoryPlatform()
    channels = {"telegram": FakeChannel(platform, capabilities=replace(KEYED, text_limit=4_000))}

    async def people() -> list[list[OwnerAddress]]:
        return [[OwnerAddress(OWNER_HERE, OWNER_HERE.chat)]]

    async def unreachable() -> list[object]:
        return []

    ways = OwnerDirectory(
        people=people,
        channels=channels,
        connection_states=lambda: {"telegram": True},
        unreachable=unreachable,  # type: ignore[arg-type]
    )
    recipients = AlertRecipients(
        ways=ways,
        locale_of=lambda _: ("en", "UTC"),
        posts=False,
        origin=WebhookOrigin(host="house", version="1.2.3"),
        posted=asyncio.Event(),
    )
    notifier = StoreNotifier(store.watcher, recipients, channels, webhook=None, meter=FakeMeter(), now=clock.now)
    running = asyncio.create_task(notifier.run())
    yield platform
    running.cancel()


async def test_a_store_that_comes_and_goes_is_told_once_an_hour(store: FlappingStore, platform: MemoryPlatform) -> None:
    """A database that restarts for ever does not fill the owner's chat; after an hour it is told again."""
    await asyncio.sleep(5)
    for _ in range(50):
        await store.be_away(40)
        await asyncio.sleep(20)
    assert len(platform.texts(OWNER_HERE)) == 1
    for _ in range(20):
        await store.be_away(40)
        await asyncio.sleep(20)
    assert len(platform.texts(OWNER_HERE)) == 2


async def test_short_failures_one_after_another_are_told(store: FlappingStore, platform: MemoryPlatform) -> None:
    """A store that can be written for two seconds of ten is an outage, although no failure lasts half a minute."""
    await asyncio.sleep(5)
    for _ in range(6):
        await store.be_away(8)
        await asyncio.sleep(2)
    assert len(platform.texts(OWNER_HERE)) == 1


async def test_the_end_of_an_outage_is_told_though_the_store_fails_at_that_moment(
    tmp_path: Path, store: FlappingStore, clock: VirtualClock
) -> None:
    """What could not be noted is noted at a later look, once."""

    def sources(_: AlertScene) -> Mapping[str, Source]:
        return {"store": partial(find_store_outages, watcher=store.watcher)}

    scene = AlertScene(tmp_path / "home", clock, sources)
    await scene.start()
    await asyncio.sleep(1)
    await store.be_away(60)
    scene.writer.fault = StoreUnavailable("again")
    await asyncio.sleep(60)
    assert not scene.told(OWNER_HERE)
    scene.writer.fault = None
    await asyncio.sleep(120)
    (told,) = scene.told(OWNER_HERE)
    assert "nothing could be stored" in told
    assert not store.watcher.outages
    await scene.stop()


async def test_two_outages_between_two_looks_are_both_counted(
    tmp_path: Path, store: FlappingStore, clock: VirtualClock
) -> None:
    """Each end is noted by itself; what was noted is not counted again."""

    def sources(_: AlertScene) -> Mapping[str, Source]:
        return {"store": partial(find_store_outages, watcher=store.watcher)}

    for _ in range(2):
        await asyncio.sleep(20)
        await store.be_away(60)
    await asyncio.sleep(20)
    scene = AlertScene(tmp_path / "home", clock, sources)
    await scene.start()
    await asyncio.sleep(timedelta(hours=3).total_seconds())
    (alert,) = [each for each in await scene.store.alerts.all() if each.cause == "store"]
    assert alert.owners.waiting == 0
    assert len(scene.told(OWNER_HERE)) == 2
    await scene.stop()
