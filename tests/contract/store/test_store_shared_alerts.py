"""Alerts of several gateways on one database: what two of them see is said once, and is over when none sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from gateway.access.pairing_service import OwnerAddress
from gateway.alerts.alert_state import Observation, WebhookOrigin
from gateway.alerts.monitor import AlertMonitor, AlertRecipients, OwnerDirectory
from gateway.events import SessionKey
from gateway.store.alerts import Alert
from gateway.store.sql_store import SqlStore
from tests.fakes.memory_channel import FakeChannel, MemoryPlatform
from tests.fakes.meter import FakeMeter
from tests.fakes.shared_workers import Workers
from tests.fakes.turns import START

OWNER = SessionKey("telegram", "1")


class SharedWatch:
    """The monitor of one gateway, and what it sees."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.stage: int | None = None  # of the model's outage
        self.events: list[str] = []  # marks of what happened and all see
        self.now = START
        channel = FakeChannel(MemoryPlatform(), name="telegram")
        ways = OwnerDirectory(
            people=self._people,
            channels={"telegram": channel},
            connection_states=lambda: {"telegram": True},
            unreachable=lambda: store.alerts.unreached_chats(self.now),
            pages=(),
        )
        recipients = AlertRecipients(
            ways=ways,
            locale_of=lambda _: ("en", "UTC"),
            posts=True,
            origin=WebhookOrigin(host="house", version="1"),
            posted=asyncio.Event(),
        )
        sources = {"model": self._look, "given up": self._count}
        self.monitor = AlertMonitor(store.alerts, sources, recipients, meter=FakeMeter(), now=lambda: self.now)

    async def _people(self) -> list[list[OwnerAddress]]:
        return [[OwnerAddress(OWNER, OWNER.chat)]]

    async def _look(self, _: Mapping[str, Alert]) -> Sequence[Observation]:
        line = "alerts.model_failing"
        return [Observation(cause="model", since=self.now, stage=self.stage, line=line, level="critical")]

    async def _count(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:
        known = causes.get("killed")
        fresh = [mark for mark in self.events if known is None or mark > known.mark]
        return (
            [Observation(cause="killed", since=self.now, happened=len(fresh), line="alerts.killed", mark=fresh[-1])]
            if fresh
            else []
        )


async def check(*watches: SharedWatch, minutes: float = 0.25) -> None:
    """Let every gateway look, at the same time."""
    await asyncio.gather(*(each.monitor.check_once() for each in watches))
    for each in watches:
        each.now += timedelta(minutes=minutes)


async def open_watches(team: Workers) -> tuple[SharedWatch, SharedWatch]:
    """Return the monitors of two gateways."""
    return SharedWatch(await team.open()), SharedWatch(await team.open())


async def test_an_outage_that_two_gateways_see_is_reported_once(team: Workers) -> None:
    """To the owner and to the webhook; its end too, when the last of them does not see it any more."""
    first, second = await open_watches(team)
    first.stage = second.stage = 1
    for _ in range(3):
        await check(first, second)
    assert team.server.query("SELECT count(*) FROM outbox") == [(1,)]
    assert team.server.query("SELECT count(*) FROM alert_post") == [(1,)]
    first.stage = 0
    for _ in range(3):
        await check(first, second)
    assert team.server.query("SELECT count(*) FROM outbox") == [(1,)]
    assert first.monitor.active_alerts() == second.monitor.active_alerts() == ("model",)
    second.stage = 0
    for _ in range(3):
        await check(first, second)
    assert team.server.query("SELECT count(*) FROM outbox") == [(2,)]
    assert team.server.query("SELECT count(*) FROM alert_post") == [(2,)]
    assert first.monitor.active_alerts() == second.monitor.active_alerts() == ()


async def test_an_outage_ends_though_a_gateway_that_saw_it_was_killed(team: Workers) -> None:
    """One that has no opinion leaves it as it is; one that sees no trouble ends it."""
    first, second = await open_watches(team)
    first.stage = 1
    await check(first, second)
    await first.store.close()
    await check(second)
    assert second.monitor.active_alerts() == ("model",)
    second.stage = 0
    await check(second)
    assert second.monitor.active_alerts() == ()
    assert team.server.query("SELECT count(*) FROM outbox") == [(2,)]


async def test_what_happened_is_counted_by_one_of_them(team: Workers) -> None:
    """Both read the same events: the first takes them."""
    first, second = await open_watches(team)
    first.events = second.events = ["1", "2"]
    for _ in range(3):
        await check(first, second, minutes=61)
    assert team.server.query("SELECT count(*) FROM outbox") == [(1,)]
    (alert,) = await first.store.alerts.all()
    assert (alert.owners.waiting, alert.mark) == (0, "2")


async def test_a_cause_that_another_gateway_has_changed_is_not_stored(team: Workers) -> None:
    """The state before is compared; a post is with one gateway at a time."""
    first, second = await team.open(), await team.open()
    alert = Alert(cause="disk", since=START, seen_by={"a": 1})
    assert await first.alerts.save(alert, posts=["1"], at=START)
    assert not await second.alerts.save(replace(alert, stage=1), posts=["2"], at=START)
    assert await second.alerts.save(replace(alert, stage=1), before=alert, at=START)
    assert await first.alerts.all() == (replace(alert, stage=1),)
    assert [post.body for post in await first.alerts.posts(due=START, limit=10)] == ["1"]
    assert await second.alerts.posts(due=START, limit=10) == ()
    assert [post.body for post in await second.alerts.posts(due=START + timedelta(minutes=1), limit=10)] == ["1"]
