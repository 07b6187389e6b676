"""The gateway on a real PostgreSQL: kills, backups, moves, and databases older than the home."""

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
from tests.fakes.gateway import GatewayProcess, free_port
from tests.fakes.inprocess_gateway import InstantModel
from tests.fakes.inprocess_gateway import gateway as in_process
from tests.fakes.openai_server import FakeOpenAI, ScriptedAnswer, open_server
from tests.fakes.postgres_server import PostgresServer
from tests.faults.process_pool import ForkServer

KEY = "web:owner"


def settings(server: PostgresServer, model: FakeOpenAI | None = None) -> dict[str, str]:
    """Return the environment of a gateway on *server*."""
    store = {"PARLOUR_STORE__URL": server.address}
    if model is None:
        return store
    return store | {
        "PARLOUR_LLM__MODEL": "openai/scripted", "PARLOUR_LLM__API_BASE": model.base, "PARLOUR_LLM__API_KEY": "sk-x",
    }  # fmt: skip


def said_in(home: Path) -> list[tuple[str, str]]:
    """Return role and text of every message in the page's transcripts."""
    found = []
    for path in sorted(home.glob("people/*/sessions/*.jsonl")):
        for line in path.read_text().splitlines():
            fields = json.loads(line)
            if fields.get("role") in ("user", "assistant") and fields.get("content"):  # not a call alone
                found.append((fields["role"], str(fields.get("content", ""))))
    return found


async def until_answered(gateway: GatewayProcess, count: int) -> None:
    """Return when the transcript has *count* answers."""
    for _ in range(600):
        if sum(role == "assistant" for role, _ in said_in(gateway.home)) >= count:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("\n".join(gateway.log[-30:]))


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    """Return a server with empty tables."""
    postgres.empty()
    return postgres


async def test_a_killed_gateway_on_postgresql_answers_once(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer
) -> None:
    """Killed in the middle of a turn, beside a message that waits: the next process answers both, once, in order.

    Then its server is killed under it, and the gateway goes on when that is back.
    """
    asked = asyncio.Event()

    def script(body: object, n: int) -> ScriptedAnswer:
        asked.set()
        return ScriptedAnswer(text=f"answer {n}", latency=30.0 if n == 1 else 0.0)

    async with open_server(script) as model:
        gateway = GatewayProcess(tmp_path / "home", free_port(), zygote, **settings(server, model))
        try:
            await gateway.start()
            await gateway.command("send", KEY, "one")
            await asked.wait()
            await gateway.command("send", KEY, "two")
            await gateway.kill()
            assert server.query("SELECT count(*) FROM inbox WHERE ended_at IS NULL") == [(2,)]
            await gateway.start()
            await until_answered(gateway, 2)
            if server.is_ours:
                server.kill()
                server.start()
                async with asyncio.timeout(30):  # the gateway connects again within a second
                    while (await gateway.run_to_its_end("send", KEY, "three"))[0]:  # noqa: ASYNC110 - nobody is told
                        await asyncio.sleep(0.1)
                await until_answered(gateway, 3)
            assert await gateway.stop() == 0
        finally:
            await gateway.close()
    told = said_in(tmp_path / "home")
    expected = ["one", "two", "three"] if server.is_ours else ["one", "two"]
    assert [text.split()[-1] for role, text in told if role == "user"] == expected
    assert [role for role, _ in told] == ["user", "assistant"] * len(expected)
    assert server.query("SELECT count(*) FROM inbox WHERE ended_at IS NULL") == [(0,)]
    assert not (tmp_path / "home" / "journal.db").exists()


async def test_a_backup_of_a_gateway_on_postgresql_is_a_home_of_its_own(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer
) -> None:
    """The archive holds the tables as a journal, and a gateway without a server goes on with it."""
    first = GatewayProcess(tmp_path / "home", free_port(), zygote, **settings(server))
    second = GatewayProcess(tmp_path / "restored", free_port(), zygote)
    try:
        await first.start()
        await first.command("send", KEY, "hello")
        await until_answered(first, 1)
        assert "the journal is in PostgreSQL" in (await first.run_to_its_end("doctor"))[1]
        (worker,) = json.loads("[" + (await first.command("workers", "--json")).strip() + "]")
        assert (worker["running"], worker["turns"]) == (True, 0)
        await first.command("backup", str(tmp_path / "backup.tar.gz"))
        await first.stop()
        await second.command("restore", str(tmp_path / "backup.tar.gz"), "--yes")
        await second.start()
        await second.command("send", KEY, "again")
        await until_answered(second, 2)
        assert [role for role, _ in said_in(second.home)] == ["user", "assistant"] * 2
    finally:
        await first.close()
        await second.close()


async def test_a_home_moves_to_postgresql_and_back(tmp_path: Path, server: PostgresServer, zygote: ForkServer) -> None:
    """The conversation goes on there, and in the file again; a start on the store that was left says how to mend it.

    A backup of the gateway in the database is restored into it.
    """
    on_file = GatewayProcess(tmp_path / "home", free_port(), zygote)
    on_server = GatewayProcess(tmp_path / "home", free_port(), zygote, **settings(server))

    async def talk(gateway: GatewayProcess, answers: int) -> None:
        await gateway.start()
        await gateway.command("send", KEY, "hello")
        await until_answered(gateway, answers)

    try:
        await talk(on_file, 1)
        assert (await on_server.run_to_its_end("store", "migrate", "postgresql"))[0] == 2  # the gateway runs
        await on_file.stop()
        code, printed = await on_server.run_to_its_end("run")
        assert (code, "parlour store migrate postgresql" in printed) == (2, True)
        assert "rows are in the database" in await on_server.command("store", "migrate", "postgresql")
        for command in ("run", "doctor"):
            code, printed = await on_file.run_to_its_end(command)
            assert (code, "set PARLOUR_STORE__URL" in printed) == (2, True)
        await talk(on_server, 2)
        await on_server.command("backup", str(tmp_path / "backup.tar.gz"))
        await on_server.stop()
        assert "rows are in" in await on_server.command("store", "migrate", "sqlite")
        assert (await on_server.run_to_its_end("run"))[0] == 2
        await talk(on_file, 3)
        await on_file.stop()
        await on_server.command("restore", str(tmp_path / "backup.tar.gz"), "--force", "--yes")
        await on_server.command("store", "migrate", "postgresql")
        await talk(on_server, 3)
        await on_server.stop()
    finally:
        await on_file.close()
        await on_server.close()
    assert [role for role, _ in said_in(tmp_path / "home")] == ["user", "assistant"] * 3


def put_aside(server: PostgresServer) -> None:
    """Keep a copy of every table."""
    server.query("DROP SCHEMA IF EXISTS older CASCADE")
    server.query("CREATE SCHEMA older")
    for (name,) in server.query("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        server.query(f"CREATE TABLE older.{name} AS TABLE public.{name}")


def put_back(server: PostgresServer) -> None:
    """Restore the copies, as an operator restores an older dump."""
    for (name,) in server.query("SELECT tablename FROM pg_tables WHERE schemaname = 'older'"):
        # One transaction for each table: a gateway that runs writes a row of its own every second.
        copied = f"INSERT INTO public.{name} SELECT * FROM older.{name}"  # noqa: S608 - our tables
        server.query(f"TRUNCATE public.{name}; {copied}")
    server.query("DROP SCHEMA older CASCADE")


async def test_a_database_older_than_the_transcripts_is_noticed(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer
) -> None:
    """A start would give indices of stored turns again: it is refused, until the loss is accepted. So is the doctor."""
    gateway = GatewayProcess(tmp_path / "home", free_port(), zygote, **settings(server))
    try:
        await gateway.start()
        await gateway.command("send", KEY, "one")
        await until_answered(gateway, 1)
        await gateway.stop()
        put_aside(server)
        await gateway.start()
        await gateway.command("send", KEY, "two")
        await until_answered(gateway, 2)
        await gateway.stop()
        assert "nothing is lost" in await gateway.command("accept-loss", "--yes")
        put_back(server)
        for command in ("run", "doctor"):
            code, printed = await gateway.run_to_its_end(command)
            assert code == 2
            assert "the database of store.url lacks turns that are in the transcript of web:owner" in printed
            assert "parlour accept-loss" in printed
        assert "the next start uses the database" in await gateway.command("accept-loss", "--yes")
        await gateway.start()
        await gateway.command("send", KEY, "three")
        await until_answered(gateway, 3)
        await gateway.stop()
    finally:
        await gateway.close()
    (path,) = (tmp_path / "home").glob("people/*/sessions/*.jsonl")
    indices = [line["i"] for line in map(json.loads, path.read_text().splitlines()) if "i" in line]
    assert sorted(set(indices)) == indices
    assert [role for role, _ in said_in(tmp_path / "home")] == ["user", "assistant"] * 3


async def test_the_doctor_reads_a_database_whose_gateway_does_not_run(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer
) -> None:
    """Dead letters, owners who claimed the bot, and kills. A server that cannot be reached is one line."""
    gateway = GatewayProcess(tmp_path / "home", free_port(), zygote, **settings(server))
    try:
        await gateway.start()
        await gateway.kill()
        server.query("INSERT INTO dead VALUES ('t.1.1', 't', 'telegram:42', 'chat not found', 1790000000000000)")
        server.query("INSERT INTO access VALUES ('telegram', '7', 'owner', 'claim', 1)")
        _, printed = await gateway.run_to_its_end("doctor")
        assert "1 to telegram" in printed
        assert "chat not found" in printed
        assert "telegram:7 (by claim code)" in printed
        assert "the gateway was killed" in printed
        gateway.environment["PARLOUR_STORE__URL"] = "postgresql://127.0.0.1:1/none"
        _, printed = await gateway.run_to_its_end("doctor")
        assert printed.count("cannot be used") == 1
    finally:
        await gateway.close()


Open = Callable[[str], GatewayProcess]


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
