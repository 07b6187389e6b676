"""A worker process that shares a database: it accepts what its standard input says, answers it, and sends the answers.

The platform is a table outside of the store's transactions: a part that was sent is there, whatever became of us.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg

from agent.base.locks import KeyLocks
from gateway.errors import LeaseLost, StoreUnavailable
from gateway.events import MessagePart, OutboundMessage, SessionKey
from gateway.ports.journal import OutboxPart, PartState, TurnLease, TurnStep
from gateway.store.engine import StoreLimits
from gateway.store.postgres import open_database
from gateway.store.sql_store import SqlStore
from tests.fakes.turns import accept, answered, parts_of, receipt, said

PLATFORM = "CREATE TABLE sent (n BIGINT GENERATED ALWAYS AS IDENTITY, part TEXT, chat TEXT, worker TEXT)"


class QueueWorker:
    """Turns and deliveries of the chats that this process has."""

    def __init__(self, store: SqlStore, platform: psycopg.Connection[Any]) -> None:
        self._store = store
        self._platform = platform
        self._turns, self._deliveries = KeyLocks(), KeyLocks()
        self._tasks: asyncio.TaskGroup

    async def run(self) -> None:
        """Work until killed."""
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks.create_task(self._read())
            self._tasks.create_task(self._watch_sessions())
            self._tasks.create_task(self._watch_chats())
            self._tasks.create_task(self._watch_records())

    async def _read(self) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        print("ready", self._store._engine.owner, flush=True)
        async for line in reader:
            self._tasks.create_task(self._accept(json.loads(line)))

    async def _accept(self, update: dict[str, str]) -> None:
        message = said(key=SessionKey.parse(update["chat"]), id=update["id"])
        for _ in range(200):
            with suppress(StoreUnavailable):
                await accept(self._store, message)
                print("ack", update["chat"], update["id"], flush=True)
                return
            await asyncio.sleep(0.05)
        os._exit(1)  # on a busy machine we were taken for dead

    async def _watch_sessions(self) -> None:
        async for key in self._store.journal.ready_sessions():
            self._tasks.create_task(self._run_session(key))

    async def _run_session(self, key: SessionKey) -> None:
        async with self._turns.hold(key):
            with suppress(StoreUnavailable, LeaseLost):
                while (lease := await self._store.journal.claim(key)) is not None:
                    await self._store.journal.step(lease, TurnStep(n=0, kind="opening", lines=()))
                    await self._think()
                    await self._store.journal.commit(lease, answered(lease, self._answer(lease)))

    async def _think(self) -> None:
        await asyncio.sleep(random.uniform(0, 0.02))  # noqa: S311

    def _answer(self, lease: TurnLease) -> str:
        return lease.rows[0].message.message_id

    async def _watch_records(self) -> None:
        """Let the bodies of records go, as a transcript that is written does."""
        while True:
            await self._store.records.wait_unwritten()
            is_written = False
            while not is_written:  # as the gateway does: what the store could not take is not told again
                with suppress(StoreUnavailable):
                    found = await self._store.records.unwritten(0, 1_000)
                    self._store.records.mark_written([each.seq for each in found])
                    is_written = True
                await asyncio.sleep(0.02)

    async def _watch_chats(self) -> None:
        async for key in self._store.outbox.chats():
            self._tasks.create_task(self._deliver(key))

    async def _deliver(self, key: SessionKey) -> None:
        outbox = self._store.outbox
        async with self._deliveries.hold(key):
            with suppress(StoreUnavailable):
                while (delivery := await outbox.next(key)) is not None:
                    parts = delivery.parts or await outbox.freeze(delivery.message, self._render(delivery.message))
                    for part in parts:
                        await self._send(key, part)

    def _render(self, message: OutboundMessage) -> Sequence[MessagePart]:
        return parts_of(message, 2)

    async def _send(self, key: SessionKey, row: OutboxPart) -> None:
        if row.state is PartState.SENT:
            return
        found = None
        if row.state is PartState.UNKNOWN:
            found = self._platform.execute("SELECT n FROM sent WHERE part = %s", (row.part.id,)).fetchone()
        if found is None:
            if row.state is not PartState.SENDING:
                await self._store.outbox.sending(row.part)
            found = self._platform.execute(
                "INSERT INTO sent (part, chat, worker) VALUES (%s, %s, %s) RETURNING n",
                (row.part.id, str(key), self._store._engine.owner),
            ).fetchone()
            await asyncio.sleep(random.uniform(0, 0.01))  # noqa: S311
        assert found is not None
        await self._store.outbox.mark_sent(receipt(row.part, str(found[0])))


async def main(url: str) -> None:
    """Work until killed."""
    store = await open_database(url, StoreLimits(merge="off"), shares=True)
    with psycopg.connect(url, autocommit=True) as platform:
        await QueueWorker(store, platform).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
