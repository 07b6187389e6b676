"""A gateway's delivery over a real store on virtual time, killed and started again at will."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from gateway.delivery import DeliveryContext, OutboxDispatcher
from gateway.events import SessionKey
from gateway.ports.channel import ChannelCapabilities
from gateway.ports.journal import Preview, TurnLease
from gateway.store.outbox import SqlOutbox
from gateway.web.metrics import PrometheusRecorder
from tests.fakes.clock import VirtualClock
from tests.fakes.memory_channel import RINGING, FakeChannel, MemoryPlatform
from tests.fakes.store import InlineWriter, kill, open_inline_store
from tests.fakes.turns import ANN, accept, answered, claim, said


@dataclass
class DeliveryGateway:
    """One installation: a folder, a platform, and the process that runs now."""

    folder: Path
    clock: VirtualClock
    platform: MemoryPlatform
    capabilities: ChannelCapabilities
    wrap: Callable[[SqlOutbox], SqlOutbox] = lambda outbox: outbox
    meter: PrometheusRecorder = field(default_factory=lambda: PrometheusRecorder(strict=True))
    is_strict: bool = False
    runs: int = 0
    said: int = 0

    async def start(self, *, configured: bool = True) -> None:
        """Open the store and begin to deliver."""
        self.store = await open_inline_store(self.folder / "journal.db", clock=self.clock.now)
        # A kill copies the files as the system sees them; that they reach the disk is the store's own test.
        self.writer.connection.execute("PRAGMA synchronous = OFF")
        self.channel = FakeChannel(self.platform, capabilities=self.capabilities)
        self.channel.now = self.clock.now
        channels = {"telegram": self.channel} if configured else {}
        context = DeliveryContext(
            outbox=self.wrap(self.store.outbox), meter=self.meter, now=self.clock.now, is_strict=self.is_strict
        )
        self.deliverer = OutboxDispatcher(channels, context)
        self.running = asyncio.create_task(self.deliverer.run())
        await asyncio.sleep(0)

    @property
    def writer(self) -> InlineWriter:
        """The store's writer; set its `fault` and the disk is full."""
        outbox = self.store.outbox
        assert isinstance(outbox, SqlOutbox)
        writer = outbox._engine.writer
        assert isinstance(writer, InlineWriter)
        return writer

    async def kill(self) -> None:
        """End the process without its knowing; its files stay as they are."""
        self.runs += 1
        self.folder = kill(self.folder / "journal.db", self.folder.parent / f"run-{self.runs}").parent
        await self._end()

    async def _end(self) -> None:
        self.running.cancel()
        await asyncio.wait({self.running})
        await self.store.close()

    async def restart(self) -> None:
        """Kill the process and start another."""
        await self.kill()
        await self.start()

    async def answer(self, *texts: str, key: SessionKey = ANN) -> TurnLease:
        """Commit a turn whose answer is *texts*, one message each."""
        lease = await self.turn(key)
        await self.commit(lease, *texts)
        return lease

    async def say(self, text: str, key: SessionKey = ANN, **fields: Any) -> str:
        """Commit a turn of one message with any *fields* of an OutboundMessage; return its id."""
        lease = await self.turn(key)
        await self.commit(lease, text, **fields)
        return f"{lease.turn}.1"

    async def turn(self, key: SessionKey = ANN) -> TurnLease:
        """Begin a turn that is not committed yet."""
        self.said += 1
        await accept(self.store, said(id=f"m{self.said}", key=key))
        return await claim(self.store, key)

    async def commit(self, lease: TurnLease, *texts: str, **fields: Any) -> None:
        """End a turn with *texts* as its messages, each with these *fields*; the first is cut as a turn's reply is."""
        commit = answered(lease, *texts)
        outbound = tuple(replace(message, **fields) for message in commit.outbound)
        parts = self.deliverer.plan_at_once(outbound[0]) if outbound else ()
        await self.store.journal.commit(lease, replace(commit, outbound=outbound, parts=parts))

    async def commit_to(self, lease: TurnLease, *texts: str) -> None:
        """End a turn with *texts* as messages to the readers of its chat."""
        await self.commit(lease, *texts, chat_kind=lease.rows[0].message.chat_kind)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when *holds* holds, looked at every tenth of a virtual second, or after an hour."""
        for _ in range(36_000):
            if holds():
                return
            await asyncio.sleep(0.1)

    def preview(self, lease: TurnLease) -> Preview:
        """Open the turn's preview."""
        return self.deliverer.open(lease, "en")

    async def begin_preview(self) -> tuple[TurnLease, Preview]:
        """Begin a turn of Ann's and open its preview."""
        lease = await self.turn()
        return lease, self.preview(lease)

    async def settled(self, at_most: float = 7200, *, every: float = 0.1) -> None:
        """Return when nothing is undelivered, or after so many (virtual) seconds; look *every* so many.

        The longer it takes, the less often it looks: once a tenth of the seconds that went by.
        """
        end = self.clock.seconds + at_most
        while self.clock.seconds < end and (await self.store.journal.depth())["undelivered"]:
            await asyncio.sleep(every)
            every = min(every * 1.1, 10.0)

    def figure(self, name: str, **labels: str) -> float:
        """Return a counter's value."""
        value = self.meter.registry.get_sample_value(f"parlour_{name}_total", {"channel": "telegram", **labels})
        return value or 0.0


class OpensGateway(Protocol):
    """The fixture's own shape."""

    def __call__(
        self, capabilities: ChannelCapabilities = ..., platform: MemoryPlatform | None = None, *, starts: bool = True
    ) -> Awaitable[DeliveryGateway]:
        """Build a gateway; start it unless the test does (*starts*)."""
        ...


@pytest.fixture
async def opens(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[OpensGateway]:
    """Return what opens gateways; they are ended with the test."""
    opened: list[DeliveryGateway] = []

    async def open_gateway(
        capabilities: ChannelCapabilities = RINGING, platform: MemoryPlatform | None = None, *, starts: bool = True
    ) -> DeliveryGateway:
        folder = tmp_path / f"gateway-{len(opened)}" / "run-0"
        folder.mkdir(parents=True)
        gateway = DeliveryGateway(folder, clock, platform or MemoryPlatform(), capabilities)
        if starts:
            await gateway.start()
        opened.append(gateway)
        return gateway

    yield open_gateway
    for gateway in opened:
        await gateway._end()
