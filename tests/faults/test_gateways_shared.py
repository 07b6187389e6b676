"""Two real gateways on one PostgreSQL: one conversation, whoever answers, and whoever is killed."""

from __future__ import annotations

import asyncio
import sqlite3
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from tests.e2e.test_postgres_gateway import settings
from tests.fakes.gateway import GatewayProcess, free_port
from tests.fakes.openai_server import FakeOpenAI, ScriptedAnswer, open_server
from tests.fakes.postgres_server import PostgresServer
from tests.faults.process_pool import ForkServer

KEYS = ("web:owner", "web:owner/1")
_ENDED = "SELECT count(*) FROM inbox WHERE state = 'answered'"
_SEVEN_TURNS = {"PARLOUR_CAPS__PERSON_TURNS_PER_10_MIN": "7"}
_ANSWERED = "SELECT count(DISTINCT turn), count(*) FROM record"


@asynccontextmanager
async def team(
    folder: Path, server: PostgresServer, zygote: ForkServer, model: FakeOpenAI, count: int = 2, **more: str
) -> AsyncIterator[list[GatewayProcess]]:
    """Run *count* gateways with homes of their own."""
    environment = {**settings(server, model), "PARLOUR_STORE__SHARED": "true", **more}
    gateways = [GatewayProcess(folder / f"home{n}", free_port(), zygote, **environment) for n in range(count)]
    try:
        for each in gateways:
            await each.start()
        yield gateways
    finally:
        for each in gateways:
            await each.close()


async def until(server: PostgresServer, query: str, expected: list[tuple[object, ...]]) -> None:
    """Return when *query* returns what is expected."""
    for _ in range(1_200):
        found = server.query(query)
        if found == expected:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{query}: {found}")


def said_in(archive: Path) -> str:
    """Return the lines of the turns in a backup."""
    with tarfile.open(archive) as files, closing(sqlite3.connect(":memory:")) as journal:
        packed = files.extractfile("journal.db")
        assert packed is not None
        data = bytearray(packed.read())
        data[18:20] = b"\1\1"  # no log, which a database in memory cannot have
        journal.deserialize(bytes(data))
        return b"".join(body for (body,) in journal.execute("SELECT body FROM record")).decode()


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    """Return a server with empty tables."""
    postgres.empty()
    return postgres


async def test_a_conversation_goes_on_at_every_gateway(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer
) -> None:
    """Messages that come to two gateways in turn are answered once, in order, and each prompt has all before it.

    Then the one that answers is killed in the middle of a turn: the other answers within seconds, with all of it. It
    has also counted the turns of the other: the next one is over the cap. One that was replaced ends, to be started
    again by its service manager.
    """
    asked = asyncio.Event()
    latency = 0.0

    def script(_: object, n: int) -> ScriptedAnswer:
        asked.set()
        return ScriptedAnswer(text=f"answer {n}", latency=latency)

    async with open_server(script) as model, team(tmp_path, server, zygote, model, 2, **_SEVEN_TURNS) as gateways:
        workers = [name for (name,) in server.query("SELECT name FROM worker ORDER BY started_at")]
        assert len(workers) == 2
        for number in range(6):
            await gateways[number % 2].command("send", KEYS[0], f"canary{number}")
            await until(server, _ENDED, [(number + 1,)])
            prompt = str(model.requests[-1])
            assert [f"canary{each}" in prompt for each in range(number + 1)] == [True] * (number + 1)
        for number, gateway in enumerate(gateways):
            archive = tmp_path / f"{number}.tar.gz"
            await gateway.command("backup", str(archive))
            assert [f"canary{each}" in said_in(archive) for each in range(6)] == [True] * 6
        latency = 30.0
        asked.clear()
        await gateways[0].command("send", KEYS[0], "canary6")
        await asked.wait()
        latency = 0.0
        ((holder,),) = server.query("SELECT worker FROM claim WHERE name LIKE 'chat:%'")
        victim, other = gateways if holder == workers[0] else reversed(gateways)
        killed_at = time.monotonic()
        await victim.kill()
        await until(server, f"SELECT count(*) FROM worker WHERE name = '{holder}'", [(0,)])  # noqa: S608
        print("takeover", round(time.monotonic() - killed_at, 2))
        await until(server, _ENDED, [(7,)])
        assert all(f"canary{each}" in str(model.requests[-1]) for each in range(7))
        assert server.query(_ANSWERED) == [(7, 7)]
        rows = [int(text.strip("[]")) for (text,) in server.query("SELECT inbox FROM record ORDER BY seq")]
        assert rows == sorted(rows)
        await other.command("send", KEYS[0], "canary7")
        await until(server, "SELECT count(*) FROM inbox WHERE state = 'refused'", [(1,)])
        assert server.query(_ENDED) == [(7,)]
        await victim.start()
        (name,) = [each for each in workers if each != holder]
        server.query(f"DELETE FROM worker WHERE name <> '{name}'")  # noqa: S608 - as a takeover from one that hangs
        await victim.wait_logged("other gateways have taken over the work of this one, which did not answer")
        assert await victim.wait_ended() == 1  # the unit of systemd does not start again what ends with 2
        assert await other.stop() == 0
        assert server.query("SELECT count(*) FROM claim") == [(0,)]
