"""Worker processes on one database, killed at any moment: nothing lost, nothing doubled, nothing out of order."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from gateway.store.engine import StoreLimits
from gateway.store.postgres import open_database
from tests.fakes.forked_command import ForkedCommand, fork_command
from tests.fakes.postgres_server import PostgresServer
from tests.faults.process_pool import ForkServer
from tests.faults.queue_worker import PLATFORM

CHATS, MESSAGES, WORKERS = 16, 8, 3
KILLS = int(os.environ.get("PARLOUR_TEST_KILLS", "1"))  # of each test; a start takes seconds on a busy machine
HELD_BACK = 3  # messages of each chat that are sent when the last worker was killed
_LIMIT = 120.0  # seconds


@dataclass
class WorkerProcess:
    """A running worker, and the messages that it has acknowledged."""

    process: ForkedCommand
    name: str = ""
    has_ended: bool = False
    acks: dict[tuple[str, str], asyncio.Future[None]] = field(default_factory=dict)

    @classmethod
    async def start(cls, zygote: ForkServer, url: str) -> WorkerProcess:
        """Start one, and return when it works."""
        worker = cls(await fork_command(zygote, ("-m", "tests.faults.queue_worker", url), os.environ, typed=None))
        assert worker.process.stdout is not None
        async for line in worker.process.stdout:
            if line.startswith(b"ready "):
                worker.name = line.split()[1].decode()
                return worker
        raise AssertionError("the worker ended")

    async def read(self) -> None:
        """Note acknowledgements until the process ends; those that are missing then never come."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            words = line.decode().split()
            if words[:1] == ["ack"] and (ack := self.acks.pop((words[1], words[2]), None)) is not None:
                ack.set_result(None)
        self.has_ended = True
        for ack in self.acks.values():
            ack.set_exception(ConnectionError("killed"))

    async def deliver(self, chat: str, number: str) -> None:
        """Hand a message over. Raises ConnectionError if the worker is killed before it has acknowledged it."""
        if self.has_ended:
            raise ConnectionError("killed")
        ack = self.acks[chat, number] = asyncio.get_running_loop().create_future()
        self.process.stdin.write(json.dumps({"chat": chat, "id": number}).encode() + b"\n")
        await ack


@asynccontextmanager
async def team(zygote: ForkServer, server: PostgresServer) -> AsyncIterator[list[WorkerProcess]]:
    """Run workers; kill what is left at the end."""
    workers = [await WorkerProcess.start(zygote, server.url) for _ in range(WORKERS)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.process.send_signal(signal.SIGKILL)
            await worker.process.wait()


async def write_chat(workers: list[WorkerProcess], chat: str, were_killed: asyncio.Event) -> None:
    """Send a chat's messages in order, each to any worker, again until one has acknowledged it."""
    for number in range(1, MESSAGES + 1):
        if number > MESSAGES - HELD_BACK:
            await were_killed.wait()
        while True:
            with suppress(ConnectionError):
                await random.choice(workers).deliver(chat, str(number))  # noqa: S311
                break
            await asyncio.sleep(0.02)


async def until_empty(server: PostgresServer, query: str) -> None:
    """Return when *query* finds nothing."""
    while True:
        if not server.query(query):
            return
        await asyncio.sleep(0.02)


async def stop_some(
    zygote: ForkServer,
    server: PostgresServer,
    workers: list[WorkerProcess],
    tasks: asyncio.TaskGroup,
    by: signal.Signals,
) -> list[float]:
    """Kill workers or let them hang, and replace them; return how many seconds each was listed afterwards.

    One that hangs goes on when it was taken over from, and is killed a moment later.
    """
    takeovers = []
    for _ in range(KILLS):
        await asyncio.sleep(random.uniform(0, 0.5))  # noqa: S311
        victim = workers.pop(random.randrange(len(workers)))  # noqa: S311
        victim.process.send_signal(by)
        stopped_at = time.monotonic()
        try:
            await until_empty(server, f"SELECT 1 FROM worker WHERE name = '{victim.name}'")  # noqa: S608
            takeovers.append(time.monotonic() - stopped_at)
            if by is signal.SIGSTOP:
                victim.process.send_signal(signal.SIGCONT)
                await asyncio.sleep(0.5)
        finally:  # one that is stopped would outlive a failed test
            victim.process.send_signal(signal.SIGKILL)
        await victim.process.wait()
        workers.append(await WorkerProcess.start(zygote, server.url))
        tasks.create_task(workers[-1].read())
    return takeovers


@pytest.fixture
async def server(postgres: PostgresServer) -> AsyncIterator[PostgresServer]:
    """Return a server with empty tables of this version, and the platform's."""
    postgres.empty()
    store = await open_database(postgres.url, StoreLimits())
    await store.close()
    postgres.query(PLATFORM)
    yield postgres
    postgres.query("DROP TABLE sent")


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
async def test_workers_that_stop_lose_double_and_reorder_nothing(
    zygote: ForkServer, server: PostgresServer, by: signal.Signals
) -> None:
    """Messages come to any worker while workers are killed or hang; the database is audited at the end.

    A worker that hung just before a call to the platform makes it when it goes on, and its part was sent again: as
    with a lost reply, such a part is marked.
    """
    async with asyncio.timeout(_LIMIT), team(zygote, server) as workers, asyncio.TaskGroup() as tasks:
        for worker in workers:
            tasks.create_task(worker.read())
        killing = tasks.create_task(stop_some(zygote, server, workers, tasks, by))
        were_killed = asyncio.Event()
        killing.add_done_callback(lambda _: were_killed.set())
        chats = [f"telegram:{chat}" for chat in range(CHATS)]
        await asyncio.gather(killing, *(write_chat(workers, chat, were_killed) for chat in chats))
        await until_empty(server, "SELECT 1 FROM inbox WHERE ended_at IS NULL UNION ALL SELECT 1 FROM claim LIMIT 1")
        print("takeovers", [round(seconds, 2) for seconds in killing.result()])
        for worker in workers:
            worker.process.send_signal(signal.SIGKILL)
    assert server.query("SELECT count(*), count(DISTINCT turn) FROM record") == [(CHATS * MESSAGES,) * 2]
    assert server.query("SELECT count(*) FROM outbox WHERE open IS NOT NULL") == [(0,)]
    assert server.query("SELECT count(DISTINCT part) FROM sent") == [(CHATS * MESSAGES * 2,)]
    doubled = {part for (part,) in server.query("SELECT part FROM sent GROUP BY part HAVING count(*) > 1")}
    marked = {
        part
        for (part,) in server.query(
            "SELECT id || '.' || n FROM part JOIN outbox ON message = outbox.seq WHERE attempts > 1"
        )
    }
    assert doubled <= (marked if by is signal.SIGSTOP else set())
    for (chat,) in server.query("SELECT DISTINCT key FROM inbox"):
        answers = server.query(f"SELECT inbox FROM record WHERE key = '{chat}' ORDER BY seq")  # noqa: S608
        rows = [int(json.loads(each)[0]) for (each,) in answers]
        assert rows == sorted(rows)
        sent = server.query(
            f"SELECT o.seq, s.part FROM sent s JOIN outbox o ON s.part LIKE o.id || '.%' "  # noqa: S608
            f"WHERE chat = '{chat}' ORDER BY n"
        )
        once = [row for row in sent if row[1] not in doubled]
        assert once == sorted(once)
