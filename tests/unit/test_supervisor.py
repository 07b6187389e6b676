"""The supervisor: channels that end or go deaf are begun anew, each for itself, and ever less often while in vain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.errors import LoginRefused, RetryLater, SettingsError
from gateway.store.claims import DEAD_AFTER, ConnectionBalance, WorkerConnections
from gateway.supervisor import STALLED_AFTER, Supervisor
from tests.fakes.clock import VirtualClock
from tests.fakes.memory_channel import FakeChannel, MemoryPlatform
from tests.fakes.meter import FakeMeter

DEAF = STALLED_AFTER.total_seconds()


class ScriptedChannel(FakeChannel):
    """A channel whose hearing follows a script: what each run does, and whether it hears at a time."""

    def __init__(self, name: str, clock: VirtualClock) -> None:
        super().__init__(MemoryPlatform(), name=name)
        self.clock = clock
        self.begun: list[float] = []
        self.ended: list[float] = []
        self.hears: Callable[[], bool] = lambda: True
        self.lasts: Callable[[], float | None] = lambda: None  # seconds until a run fails; None = it does not
        self.clinging = 0.0  # seconds that it takes to be cancelled
        self.why: Exception = ConnectionError("the platform hung up")  # how a run fails

    async def run(self) -> None:
        self.begun.append(self.clock.seconds)
        try:
            lasts = self.lasts()
            await (asyncio.Event().wait() if lasts is None else asyncio.sleep(lasts))
            raise self.why
        except asyncio.CancelledError:
            await self._cling(self.clock.seconds + self.clinging)
            raise
        finally:
            self.ended.append(self.clock.seconds)

    async def _cling(self, until: float) -> None:
        while self.clock.seconds < until:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(until - self.clock.seconds)

    def is_ready(self) -> bool:
        return self.hears()


@asynccontextmanager
async def supervised(
    channels: Mapping[str, ScriptedChannel], meter: FakeMeter, **more: Any
) -> AsyncIterator[Supervisor]:
    """Run a supervisor over *channels*."""
    supervisor = Supervisor(channels, meter=meter, **more)
    running = asyncio.create_task(supervisor.run())
    yield supervisor
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()


async def test_a_channel_that_receives_nothing_is_started_again(clock: VirtualClock) -> None:
    """It runs and hears nothing for five minutes: cancelled, counted, begun anew; its neighbour notices nothing."""
    deaf, well, meter = ScriptedChannel("slack", clock), ScriptedChannel("telegram", clock), FakeMeter()
    deaf.hears = lambda: len(deaf.begun) > 1
    told: list[str] = []
    async with supervised({"slack": deaf, "telegram": well}, meter, on_stall=told.append) as supervisor:
        await asyncio.sleep(1)
        assert supervisor.states() == {"slack": None, "telegram": True}
        await asyncio.sleep(DEAF - 10)
        assert deaf.begun == [0]
        await asyncio.sleep(60)
        assert len(deaf.begun) == 2
        assert DEAF <= deaf.ended[0] < DEAF + 20
        assert supervisor.states() == {"slack": True, "telegram": True}
        await asyncio.sleep(7200)
    assert (len(deaf.begun), len(well.begun)) == (2, 1)
    assert told == ["slack"]
    assert meter.total("channel_stalls") == 1
    assert meter.total("channel_restarts") == 1


async def test_a_channel_that_stops_receiving_later_is_started_again(clock: VirtualClock) -> None:
    """The five minutes are counted from when it stopped to hear; a pause shorter than that is its own affair."""
    channel, meter = ScriptedChannel("slack", clock), FakeMeter()
    channel.hears = lambda: not 1000 <= clock.seconds < 1250 and not 2000 <= clock.seconds < 2320
    async with supervised({"slack": channel}, meter):
        await asyncio.sleep(1900)
        assert channel.begun == [0]
        await asyncio.sleep(1000)
        assert len(channel.begun) == 2
        assert 2000 + DEAF <= channel.begun[1] < 2000 + DEAF + 40
    assert meter.total("channel_stalls") == 1


async def test_in_vain_it_is_tried_less_and_less_often(clock: VirtualClock) -> None:
    """Failing at once, the pauses double up to a minute."""
    channel, meter = ScriptedChannel("slack", clock), FakeMeter()
    channel.hears, channel.lasts = lambda: False, lambda: 0.0
    async with supervised({"slack": channel}, meter) as supervisor:
        await asyncio.sleep(600)
        assert supervisor.states() == {"slack": False}
    pauses = [round(later - earlier) for earlier, later in zip(channel.begun, channel.begun[1:], strict=False)]
    assert pauses[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert meter.total("channel_stalls") == 0


@pytest.mark.parametrize(("lasts", "pauses"), [(400.0, [1, 1, 1]), (200.0, [1, 2, 4])], ids=["good", "short"])
async def test_after_a_good_stretch_trouble_is_new(clock: VirtualClock, lasts: float, pauses: list[int]) -> None:
    """Five minutes of hearing and the back-off begins afresh; less than that and it goes on growing."""
    channel = ScriptedChannel("slack", clock)
    channel.lasts = lambda: lasts
    async with supervised({"slack": channel}, FakeMeter()):
        await asyncio.sleep(4 * lasts)
    waits = [round(later - earlier - lasts) for earlier, later in zip(channel.begun, channel.begun[1:], strict=False)]
    assert waits == pauses


async def test_two_runs_of_one_channel_never_meet(clock: VirtualClock) -> None:
    """A run that clings to life past its cancellation is waited for; the neighbour hears meanwhile."""
    channel, meter = ScriptedChannel("slack", clock), FakeMeter()
    channel.hears, channel.clinging = lambda: False, 100.0
    async with supervised({"slack": channel}, meter):
        await asyncio.sleep(DEAF + 200)
        assert len(channel.begun) == 2
        assert channel.begun[1] > channel.ended[0] >= DEAF + 100
        channel.clinging = 0.0


async def test_a_channel_that_cannot_say_whether_it_hears_does_not(clock: VirtualClock) -> None:
    """A bug in `is_ready` is that channel's trouble: /readyz still answers, and the channel is begun anew."""
    channel, meter = ScriptedChannel("slack", clock), FakeMeter()
    channel.hears = lambda: bool(1 // 0)
    async with supervised({"slack": channel}, meter) as supervisor:
        await asyncio.sleep(DEAF + 60)
        assert supervisor.states() == {"slack": False}
    assert meter.total("channel_stalls") == 1


async def test_what_only_a_person_can_mend_is_one_line_in_the_log(clock: VirtualClock) -> None:
    """Said once however often it is tried, without a traceback; again when it is something else or comes back."""
    ears = ScriptedChannel("telegram", clock)
    ears.lasts, ears.hears, ears.why = (lambda: 1.0), (lambda: False), LoginRefused("mend it")
    with capture_logs() as logs:
        async with supervised({"telegram": ears}, FakeMeter()):
            await asyncio.sleep(600)
            ears.why = SettingsError("mend that")
            await asyncio.sleep(200)
            ears.lasts, ears.hears = (lambda: 400.0), (lambda: True)
            await asyncio.sleep(1000)
    said = [(line["event"], line["mend"]) for line in logs]
    assert said[:2] == [("channel.refused", "mend it"), ("channel.refused", "mend that")]
    assert set(said[2:]) == {("channel.refused", "mend that")}
    assert not any("exc_info" in line for line in logs)


async def test_a_failure_of_the_platform_is_one_line_and_a_bug_has_a_traceback(clock: VirtualClock) -> None:
    """What we raise on purpose says enough by itself."""
    for why, has_traceback in ((RetryLater(timedelta(seconds=5), "no connection"), False), (KeyError("x"), True)):
        ears = ScriptedChannel("telegram", clock)
        ears.lasts, ears.why = (lambda: 1.0), why
        with capture_logs() as logs:
            async with supervised({"telegram": ears}, FakeMeter()):
                await asyncio.sleep(1.5)
        (line,) = logs
        assert ("exc_info" in line) is has_traceback


async def test_what_only_a_person_can_mend_is_known_until_the_channel_hears_again(clock: VirtualClock) -> None:
    """A refused token wakes whoever tells the owner; network trouble does not, and hearing once ends it."""
    ears, woken = ScriptedChannel("telegram", clock), 0
    ears.lasts, ears.hears, ears.why = (lambda: 1.0), (lambda: False), LoginRefused("mend it")

    def wake() -> None:
        nonlocal woken
        woken += 1

    async with supervised({"telegram": ears}, FakeMeter(), on_refusal=wake) as supervisor:
        await asyncio.sleep(1.5)
        assert (dict(supervisor.refusals()), woken) == ({"telegram": ears.why}, 1)
        ears.hears = lambda: True
        assert supervisor.refusals() == {}
        ears.hears, ears.why = (lambda: False), ConnectionError()
        await asyncio.sleep(60)
        assert (dict(supervisor.refusals()), woken) == ({}, 1)


class PolledChannel(ScriptedChannel):
    """A channel whose platform is polled by one process."""

    def __init__(self, clock: VirtualClock, connection: str = "123") -> None:
        super().__init__("telegram", clock)
        self.connection = connection
        self.sends: list[str] = []

    async def run_sender(self) -> None:
        """Send without the connection."""
        self.sends.append("begins")
        try:
            await asyncio.Event().wait()
        finally:
            self.sends.append("ends")


async def told(connections: WorkerConnections, clock: VirtualClock, *held: str) -> None:
    """Have a look at the database say that *held* are ours."""
    connections.note(ConnectionBalance(frozenset(held)), clock.seconds)
    await asyncio.sleep(0.1)


async def test_a_channel_sends_until_its_connection_is_ours(clock: VirtualClock) -> None:
    """It is not run meanwhile, and does not count as degraded; at the end the connection is given back."""
    channel, connections = PolledChannel(clock), WorkerConnections(asyncio.Event())
    async with supervised({"telegram": channel}, FakeMeter(), connections=connections) as supervisor:
        await asyncio.sleep(0.1)
        await told(connections, clock)
        assert (channel.begun, channel.sends, connections.wanted) == ([], ["begins"], {"telegram:123"})
        assert supervisor.states() == {"telegram": True}
        await told(connections, clock, "telegram:123")
        assert (len(channel.begun), channel.sends) == (1, ["begins", "ends"])
        assert channel.ended == []
    assert len(channel.ended) == 1
    assert (connections.wanted, connections.held) == (set(), frozenset())


async def test_a_connection_that_may_be_anothers_is_ended(clock: VirtualClock) -> None:
    """The database says that it is not ours, or says nothing for five seconds; then it is waited for again."""
    channel, connections = PolledChannel(clock), WorkerConnections(asyncio.Event())
    async with supervised({"telegram": channel}, FakeMeter(), connections=connections):
        await asyncio.sleep(0.1)
        await told(connections, clock, "telegram:123")
        await told(connections, clock)
        assert len(channel.ended) == 1
        await asyncio.sleep(2)
        await told(connections, clock, "telegram:123")
        assert len(channel.begun) == 2
        await asyncio.sleep(DEAD_AFTER.total_seconds() - 0.2)
        assert len(channel.ended) == 1
        await asyncio.sleep(0.3)
        assert len(channel.ended) == 2
        await asyncio.sleep(2)
        assert (len(channel.begun), channel.sends[-1]) == (2, "begins")


async def test_a_failed_connection_is_given_to_the_next_worker(clock: VirtualClock) -> None:
    """Perhaps its network is better; it is wanted again after the pause."""
    channel, connections = PolledChannel(clock), WorkerConnections(asyncio.Event())
    channel.lasts = lambda: 1.0
    async with supervised({"telegram": channel}, FakeMeter(), connections=connections):
        await asyncio.sleep(0.1)
        await told(connections, clock, "telegram:123")
        await asyncio.sleep(1.1)
        assert (len(channel.ended), connections.wanted) == (1, set())
        await asyncio.sleep(1)
        assert connections.wanted == {"telegram:123"}


async def test_a_webhook_runs_in_every_worker(clock: VirtualClock) -> None:
    """So does a channel where no database is shared."""
    hook, alone = PolledChannel(clock, connection=""), PolledChannel(clock)
    connections = WorkerConnections(asyncio.Event())
    async with (
        supervised({"telegram": hook}, FakeMeter(), connections=connections),
        supervised({"telegram": alone}, FakeMeter()),
    ):
        await asyncio.sleep(0.1)
        assert (len(hook.begun), len(alone.begun)) == (1, 1)


class ShardedChannel(ScriptedChannel):
    """A channel with two shards, which can be opened after some failures."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__("discord", clock)
        self.failures: list[Exception] = []
        self.receivers = [PolledChannel(clock, "811/0"), PolledChannel(clock, "811/1")]

    async def shards(self) -> list[PolledChannel]:
        """Return the two, or fail."""
        if self.failures:
            raise self.failures.pop(0)
        return self.receivers


async def test_every_shard_is_a_connection_of_its_own(clock: VirtualClock) -> None:
    """One that is degraded is named, and makes the channel degraded; one that another worker has does not."""
    channel, connections, meter = ShardedChannel(clock), WorkerConnections(asyncio.Event()), FakeMeter()
    first, second = channel.receivers
    first.hears, first.lasts, first.why = (lambda: False), (lambda: 1.0), SettingsError("set `shards` to auto")
    async with supervised({"discord": channel}, meter, connections=connections) as supervisor:
        await asyncio.sleep(0.1)
        await told(connections, clock)
        assert connections.wanted == {"discord:811/0", "discord:811/1"}
        assert supervisor.states() == {"discord": True}
        await told(connections, clock, "discord:811/0")
        await asyncio.sleep(1)
        assert supervisor.shard_states() == {"discord/0": False, "discord/1": True}
        assert supervisor.states() == {"discord": False}
        assert supervisor.refusals() == {"discord": first.why}
        assert (len(first.ended), second.begun, channel.begun) == (1, [], [])
    assert meter.total("channel_restarts") == 1


async def test_shards_that_are_not_known_yet_are_asked_for_again(clock: VirtualClock) -> None:
    """The channel counts as degraded until the platform answers; a refusal is told."""
    channel = ShardedChannel(clock)
    channel.hears = lambda: False
    channel.failures = [SettingsError("another server"), RetryLater(timedelta(seconds=1), "unreachable")]
    async with supervised({"discord": channel}, FakeMeter()) as supervisor:
        await asyncio.sleep(0.1)
        assert (supervisor.states(), list(supervisor.refusals())) == ({"discord": False}, ["discord"])
        await asyncio.sleep(1)
        assert (supervisor.states(), list(supervisor.refusals())) == ({"discord": False}, [])
        await asyncio.sleep(2)
        assert supervisor.shard_states() == {"discord/0": True, "discord/1": True}
        assert [len(each.begun) for each in channel.receivers] == [1, 1]
