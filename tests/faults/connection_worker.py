"""A worker process that shares a database and has a real channel: it connects when it may, and answers its chats.

Its first argument is the database, the second the platform, the third the channel's block as JSON, the fourth how many
seconds a turn takes. SIGTERM ends the channel in order; the store is closed when standard input closes, so that a test
sees what was handed over before.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from gateway.channel import Channel, ChannelContext
from gateway.errors import LeaseLost, OutcomeUnknown, RetryLater, StoreUnavailable
from gateway.events import InboundMessage, MessagePart, OutboundMessage, SessionKey
from gateway.ports.channel import IntakeResult, IntakeVerdict
from gateway.ports.journal import OutboxPart, PartState, TurnLease
from gateway.settings.channel_blocks import combine_models
from gateway.store.engine import StoreLimits
from gateway.store.postgres import open_database
from gateway.store.sql_store import SqlStore
from gateway.supervisor import Supervisor
from tests.fakes.meter import FakeMeter
from tests.fakes.open_intake import OpenDoor
from tests.fakes.turns import accept
from tests.fakes.web_services import FakeBlobs, FakePageServices
from tests.faults.queue_worker import QueueWorker


class StoreIntake(OpenDoor):
    """Accepts every message; the store knows those that came before."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def receive(self, message: InboundMessage, **options: Any) -> IntakeResult:
        """Return when *message* is durable."""
        await accept(self._store, message)
        return IntakeResult(verdict=IntakeVerdict.ACCEPTED)


def open_channel(store: SqlStore, kind: str, block: dict[str, Any]) -> tuple[Channel, Sequence[Any]]:
    """Return a worker's channel with the settings *block*, and its routes."""
    module: Any = importlib.import_module(f"channels.{kind}")
    services = FakePageServices()
    channel = module.plugin.open(
        ChannelContext(
            name=kind,
            settings=combine_models(module.plugin.settings).model_validate({"kind": kind, **block}),
            intake=StoreIntake(store),
            state=store.state(kind),
            blobs=FakeBlobs(),
            sessions=services.context(kind).sessions,
            connections=store.connections,
        )
    )
    return channel, module.plugin.routes(channel)


class ConnectionWorker(QueueWorker):
    """Turns and deliveries over a channel, whose connection this process may have."""

    def __init__(self, store: SqlStore, kind: str, block: dict[str, Any], seconds: float) -> None:
        """Open the channel; a turn takes *seconds*."""
        self._seconds = seconds
        self.channel, _ = open_channel(store, kind, block)
        self.supervisor = Supervisor({kind: self.channel}, meter=FakeMeter(), connections=store.connections)
        super().__init__(store, None)  # type: ignore[arg-type]  # the channel is the platform

    async def run(self) -> None:
        """Work until SIGTERM and the end of standard input."""
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stopping.set)
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        print("ready", self._store._engine.owner, flush=True)
        async with asyncio.TaskGroup() as self._tasks:
            running = [self._tasks.create_task(self._watch_sessions()), self._tasks.create_task(self._watch_chats())]
            connecting = self._tasks.create_task(self.supervisor.run())
            await stopping.wait()
            connecting.cancel()
            await asyncio.wait({connecting})
            print("disconnected", flush=True)
            await reader.read()
            for task in running:
                task.cancel()
        await self.channel.close()
        await self._store.close()

    async def _think(self) -> None:
        await asyncio.sleep(self._seconds)

    def _answer(self, lease: TurnLease) -> str:
        return f"answer to {lease.rows[0].message.text}"

    def _render(self, message: OutboundMessage) -> Sequence[MessagePart]:
        return self.channel.render(message)

    async def _send(self, key: SessionKey, row: OutboxPart) -> None:
        if row.state is PartState.SENT:
            return
        is_unknown = row.state in (PartState.UNKNOWN, PartState.SENDING)
        while True:
            with suppress(RetryLater):
                receipt = None
                if is_unknown:
                    with suppress(OutcomeUnknown):
                        receipt = await self.channel.find(row.part)
                if receipt is None:
                    if row.state is not PartState.SENDING:
                        await self._store.outbox.sending(row.part)
                    receipt = await self.channel.send(row.part, may_be_duplicate=is_unknown)
                await self._store.outbox.mark_sent(receipt)
                print("sent to", key, flush=True)
                return
            await asyncio.sleep(0.2)


async def main(url: str, kind: str, block: str, seconds: str) -> None:
    """Work until told to stop."""
    importlib.import_module(f"channels.{kind}.adapter")  # seconds on a busy machine, in which the store would seem dead
    store = await open_database(url, StoreLimits(merge="off"), shares=True, clock=lambda: datetime.now(UTC))
    with suppress(StoreUnavailable, LeaseLost):
        await ConnectionWorker(store, kind, json.loads(block), float(seconds)).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
