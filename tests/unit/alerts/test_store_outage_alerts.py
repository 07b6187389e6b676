"""An outage of the store is told past the store, once an hour at most, and its end is an alert that no fault loses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from gateway.access.pairing_service import OwnerAddress
from gateway.alerts.alert_sources import find_store_outages
from gateway.alerts.alert_state import WebhookOrigin
from gateway.alerts.monitor import AlertRecipients, OwnerDirectory, Source, StoreNotifier
from gateway.errors import StoreUnavailable
from gateway.store_watcher import StoreWatcher
from tests.fakes.alert_scene import OWNER_HERE, AlertScene
from tests.fakes.clock import VirtualClock
from tests.fakes.memory_channel import KEYED, FakeChannel, MemoryPlatform
from tests.fakes.meter import FakeMeter


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
