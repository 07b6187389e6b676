"""Full durable turns over 1, 2 and 4 gateway processes that share a PostgreSQL server, beside SQLite in one run."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.events import PlatformAccount
from gateway.logs import configure_logs
from tests.benchmarks import turns
from tests.benchmarks.harness import cores, row
from tests.fakes.inprocess_gateway import InProcessChannel, InstantModel, gateway
from tests.fakes.postgres_server import PostgresServer, open_server

CHATS, EACH = 100, 30  # of all gateways together
WARM_CHATS = 8  # of each gateway
IDLE_CHATS = 10_000
FILES = 1_000  # in one person's scope
_TICK = os.sysconf("SC_CLK_TCK")
_OPEN = (
    "SELECT (SELECT count(*) FROM inbox WHERE ended_at IS NULL) + (SELECT count(*) FROM outbox WHERE open IS NOT NULL)"
)
# An idle chat: its session, its lane, an answered message and its turn, copied from one that has run.
_IDLE = {
    "session": "jsonb_build_object('key', 'pocket:idle' || n)",
    "lane": "jsonb_build_object('key', 'pocket:idle' || n)",
    "record": "jsonb_build_object('key', 'pocket:idle' || n, 'turn', 'idle' || n, 'seq', 1000000 + n)",
    "inbox": "jsonb_build_object('key', 'pocket:idle' || n, 'turn', 'idle' || n, 'seq', 1000000 + n)",
}


async def run_gateway(url: str, name: str) -> None:
    """Run one gateway: a line `CHATS EACH SENDER` on standard input is a burst; the end of the input ends it.

    Without a sender, each chat has its own: a person's direct chats share one memory scope. A line `files COUNT SENDER`
    writes as many files into that.
    """
    environment = {
        "PARLOUR_STORE__URL": url, "PARLOUR_STORE__SHARED": "true", "PARLOUR_CAPS__PERSON_TURNS_PER_10_MIN": "0",
        "PARLOUR_CAPS__PERSON_TOKENS_PER_DAY": "0",
    }  # fmt: skip
    async with gateway(model=InstantModel(), environment=environment) as bench:
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            chats, each, *sender = line.split()
            if chats == "files":
                scope = f"people/{PlatformAccount(kind=bench.channel.name, team='', id=sender[0]).name}"
                for number in range(int(each)):
                    await bench.app.blobs.put(scope, b"picture %d" % number)
                continue
            # Whichever gateway has a chat answers in it, so that only acceptance is seen here.
            keys = [f"{name}c{chat}" for chat in range(int(chats))]
            await asyncio.gather(*(_say(bench.channel, key, int(each), *(sender or [key])) for key in keys))
            print("accepted", flush=True)


async def _say(channel: InProcessChannel, chat: str, each: int, sender: str) -> None:
    for number in range(each):
        await channel.say(chat, f"message {number}", sender=sender, name=sender)


@asynccontextmanager
async def _gateways(url: str, count: int) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """Run *count* gateways, each a process; they are ready when the block begins."""
    pipe = asyncio.subprocess.PIPE
    processes: list[asyncio.subprocess.Process] = []
    try:
        for number in range(count):
            words = ("-m", "tests.benchmarks.shared_turns", url, f"g{number}")
            processes.append(await asyncio.create_subprocess_exec(sys.executable, *words, stdin=pipe, stdout=pipe))
        await asyncio.gather(*(_read(each, b"ready") for each in processes))
        yield processes
    finally:
        for each in processes:
            if each.stdin is not None:
                each.stdin.close()
        await asyncio.gather(*(each.wait() for each in processes))


async def _read(process: asyncio.subprocess.Process, word: bytes) -> None:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if line.strip() == word:
            return
    raise SystemExit("a gateway of the benchmark ended")


async def _burst(
    server: PostgresServer, processes: list[asyncio.subprocess.Process], chats: int, each: int, sender: str = ""
) -> None:
    """Let each gateway accept messages of *chats* chats; return when all are answered, sent and in transcripts."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{chats} {each} {sender}\n".encode())
    await asyncio.gather(*(_read(process, b"accepted") for process in processes))
    while server.query(_OPEN) != [(0,)]:  # noqa: ASYNC110 - other processes are only seen by looking
        await asyncio.sleep(0.1)


def _cpu_seconds(process: asyncio.subprocess.Process) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


async def _measure(server: PostgresServer, count: int, *, idle: int = 0, sender: str = "", files: int = 0) -> None:
    server.empty()
    async with _gateways(server.address, count) as processes:
        if files and (first := processes[0].stdin) is not None:
            first.write(f"files {files} {sender}\n".encode())
        await _burst(server, processes, WARM_CHATS, 1, sender)
        for table, changed in _IDLE.items() if idle else ():
            server.query(
                f"INSERT INTO {table} SELECT (jsonb_populate_record(t, {changed})).* "  # noqa: S608 - our own
                f"FROM {table} AS t, generate_series(1, {idle}) AS n WHERE t.ctid = (SELECT ctid FROM {table} LIMIT 1)"
            )
        server.query("ANALYZE")  # as autovacuum does within a minute
        ((before,),) = server.query("SELECT count(*) FROM record")
        cpu = server.cpu_seconds(), sum(map(_cpu_seconds, processes))
        begun = time.perf_counter()
        await _burst(server, processes, CHATS // count, EACH, sender)
        wall = time.perf_counter() - begun
        ((after,),) = server.query("SELECT count(*) FROM record")
        done = after - before
        details = (f", {idle} idle chats" if idle else "") + (", one person" if sender else "")
        details += f" with {files} files" if files else ""
        row(
            f"gateways on PostgreSQL: {count}{details}",
            turns=done,
            turns_per_s=done / wall,
            gateway_cpu_ms=(sum(map(_cpu_seconds, processes)) - cpu[1]) / done * 1e3,
            server_cpu_ms=(server.cpu_seconds() - cpu[0]) / done * 1e3,
            load=os.getloadavg()[0],
        )


async def compare() -> None:
    """Print SQLite, then 1, 2 and 4 gateways on one server, 2 with chats of one person, 4 beside idle chats."""
    await turns.throughput()
    server = open_server()
    try:
        for count in (1, 2, 4):
            await _measure(server, count)
        await _measure(server, 2, sender="ann")
        await _measure(server, 2, sender="ann", files=FILES)
        await _measure(server, 4, idle=IDLE_CHATS)
    finally:
        server.close()
    row("  processors of this machine, shared by all of it", cores=cores())


if __name__ == "__main__":
    gc.disable()  # as `parlour run` does: the gateway enables it once it has loaded everything
    configure_logs(level="error", form="text", secrets=())
    asyncio.run(run_gateway(*sys.argv[1:3]))
