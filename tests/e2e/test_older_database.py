"""A database that was restored from an older dump, beside homes that have newer turns, with real processes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.errors import UserError
from gateway.journal_file import STAMP
from tests.e2e.test_postgres_gateway import KEY, put_aside, put_back, said_in, settings, until_answered
from tests.fakes.gateway import GatewayProcess, free_port
from tests.fakes.inprocess_gateway import InstantModel
from tests.fakes.inprocess_gateway import gateway as in_process
from tests.fakes.postgres_server import PostgresServer
from tests.faults.process_pool import ForkServer

Open = Callable[[str], GatewayProcess]


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    """Return a server with empty tables."""
    postgres.empty()
    return postgres


@asynccontextmanager
async def homes(tmp_path: Path, server: PostgresServer, zygote: ForkServer) -> AsyncIterator[Open]:
    """Open gateways of *server* by the names of their homes; those that still run are killed at the end."""
    opened: list[GatewayProcess] = []

    def open_home(name: str) -> GatewayProcess:
        opened.append(GatewayProcess(tmp_path / name, free_port(), zygote, **settings(server)))
        return opened[-1]

    try:
        yield open_home
    finally:
        for each in opened:
            await each.close()


async def talk(gateway: GatewayProcess, *texts: str) -> None:
    """Start a gateway, say *texts* one after the other, and stop it in order."""
    await gateway.start()
    before = sum(role == "assistant" for role, _ in said_in(gateway.home))
    for n, text in enumerate(texts, before + 1):
        await gateway.command("send", KEY, text)
        await until_answered(gateway, n)
    assert await gateway.stop() == 0


def said(home: Path) -> list[str]:
    """Return what people said, in the transcripts of *home*."""
    return [text for role, text in said_in(home) if role == "user"]


async def refused(gateway: GatewayProcess) -> str:
    """Return the line with which a start and the doctor refuse the home."""
    code, printed = await gateway.run_to_its_end("run")
    assert code == 2, printed
    line = printed.splitlines()[-1].removeprefix("parlour: ")
    code, doctor = await gateway.run_to_its_end("doctor")
    assert code == 2
    assert line in doctor
    assert "parlour accept-loss" in line
    return line


async def test_turns_that_an_older_dump_lacks_are_noticed_behind_newer_ones(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer
) -> None:
    """Another gateway has used the restored database since, and come further: no index tells of the lost turns.

    Once the loss is accepted, the home has what the database has, and the lost turns are in its backups folder.
    """
    async with homes(tmp_path, server, zygote) as open_home:
        first, second = open_home("first"), open_home("second")
        await talk(first, "one")
        put_aside(server)
        await talk(first, "lost a", "lost b")
        put_back(server)
        await talk(second, "two", "three", "four")
        before = {path: path.read_bytes() for path in first.home.rglob("*.jsonl")}
        assert f"lacks turns that are in the transcript of {KEY}" in await refused(first)
        assert {path: path.read_bytes() for path in first.home.rglob("*.jsonl")} == before
        printed = await first.command("accept-loss", "--yes")
        assert "2 turns of 1 conversations are in" in printed
        assert "nothing is lost" not in printed
        await talk(first, "five")
        assert said(first.home) == ["one", "two", "three", "four", "five"]
        (aside,) = (first.home / "backups").glob("lost-*")
        assert said(aside) == ["one", "lost a", "lost b"]
        assert "nothing is lost" in await first.command("accept-loss", "--yes")
        await talk(second, "six")
        assert said(second.home) == ["one", "two", "three", "four", "five", "six"]


async def test_a_dump_of_before_the_last_start_is_noticed_without_a_turn(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer
) -> None:
    """People and settings may be lost where no turn is. Accepted, the next starts are as before."""
    async with homes(tmp_path, server, zygote) as open_home:
        gateway = open_home("home")
        await talk(gateway, "one")
        put_aside(server)
        await talk(gateway)
        put_back(server)
        assert "is older than at " in await refused(gateway)
        await gateway.command("accept-loss", "--yes")
        await talk(gateway, "two")
        await talk(gateway, "three")
        assert said(gateway.home) == ["one", "two", "three"]


async def test_the_stamp_names_the_newest_turn_of_each_session(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer
) -> None:
    """It is in the home of a database too, so that no transcript has to be there, and is noticed after a kill."""
    async with homes(tmp_path, server, zygote) as open_home:
        gateway = open_home("home")
        await talk(gateway, "one")
        put_aside(server)
        await gateway.start()
        await gateway.command("send", KEY, "two")
        await until_answered(gateway, 2)
        await gateway.kill()
        stamp = json.loads((gateway.home / STAMP).read_text())
        assert list(stamp["turns"]) == [KEY]
        put_back(server)
        await refused(gateway)
        await gateway.command("accept-loss", "--yes")
        await talk(gateway, "three")
        assert said(gateway.home) == ["one", "two", "three"]


async def test_a_dump_that_is_restored_beside_a_gateway_is_not_written(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer
) -> None:
    """The gateway that comes back to it confirms nothing and says why; its next start is refused like any other."""
    async with homes(tmp_path, server, zygote) as open_home:
        gateway = open_home("home")
        await talk(gateway, "one")
        put_aside(server)
        await gateway.start()
        await gateway.command("send", KEY, "lost")
        await until_answered(gateway, 2)
        put_back(server)
        server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'parlour'")
        await gateway.wait_logged("lacks turns that this gateway has stored")
        assert server.query("SELECT count(*) FROM record") == [(1,)]
        await gateway.kill()
        assert f"lacks turns that are in the transcript of {KEY}" in await refused(gateway)
        await gateway.command("accept-loss", "--yes")
        await talk(gateway, "two")
        assert said(gateway.home) == ["one", "lost", "two"]


async def test_every_turn_that_a_dump_lacks_is_counted_and_kept(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer
) -> None:
    """Twenty chats lose two turns each, and have three newer ones: forty turns are named, and are in the backups."""

    async def ask(home: Path, *texts: str) -> None:
        async with in_process(home=home, model=InstantModel(), environment=settings(server)) as parlour:
            for text in texts:
                await asyncio.gather(*(parlour.channel.ask(f"c{n}", text, sender=f"u{n}") for n in range(20)))
            await parlour.idle()

    first = tmp_path / "first"
    await ask(first, "one")
    put_aside(server)
    await ask(first, "lost a", "lost b")
    put_back(server)
    await ask(tmp_path / "second", "two", "three", "four")
    with pytest.raises(UserError, match="lacks turns that are in the transcript of pocket:c"):
        await ask(first, "five")
    async with homes(tmp_path, server, zygote) as open_home:
        printed = await open_home("first").command("accept-loss", "--yes")
    assert "40 turns of 20 conversations are in" in printed
    await ask(first, "five")
    assert Counter(said(first)) == dict.fromkeys(["one", "two", "three", "four", "five"], 20)
    (aside,) = (first / "backups").glob("lost-*")
    assert Counter(said(aside)) == dict.fromkeys(["one", "lost a", "lost b"], 20)
