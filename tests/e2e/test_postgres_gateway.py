"""The whole gateway on PostgreSQL: killed, its server killed, stopped, backed up and restored; each answer once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.fakes.gateway import GatewayProcess, free_port
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
