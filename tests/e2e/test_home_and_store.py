"""A home that is not there is not made by a command, and a home that names its store starts on no other."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from gateway.backup import MANIFEST
from tests.e2e.test_postgres_gateway import KEY, settings, until_answered
from tests.fakes.gateway import GatewayProcess, free_port
from tests.fakes.postgres_server import PostgresServer
from tests.faults.process_pool import ForkServer

READING = [
    ("backup", "out.tar.gz"),
    ("status",),
    ("sessions", "list"),
    ("turn", "tabc"),
    ("usage",),
    ("tools",),
    ("memory",),
    ("search", "oolong"),
    ("people", "list"),
    ("people", "audit"),
    ("owner", "list"),
    ("why", "web"),
    ("quarantine", "list"),
    ("web", "logins"),
    ("prune",),
]


@pytest.mark.parametrize("words", READING, ids=lambda words: " ".join(words[:2]))
async def test_a_command_refuses_a_home_that_is_not_there(
    tmp_path: Path, zygote: ForkServer, words: tuple[str, ...]
) -> None:
    """One line, exit code 2, and neither a home nor an archive: the shell's `&&` deletes no older one."""
    gateway = GatewayProcess(tmp_path / "home", free_port(), zygote)
    words = tuple(str(tmp_path / word) if word.endswith(".gz") else word for word in words)
    code, printed = await gateway.run_to_its_end(*words)
    assert (code, printed.count("\n")) == (2, 1)
    assert f"no Parlour home exists at {tmp_path / 'home'}" in printed
    assert not await asyncio.to_thread(os.listdir, tmp_path)


async def test_an_empty_directory_is_no_home_to_back_up(tmp_path: Path, zygote: ForkServer) -> None:
    """A directory that someone has made, or that only has settings, has nothing to back up."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "parlour.yaml").write_text("language: en\n")
    gateway = GatewayProcess(tmp_path / "home", free_port(), zygote)
    code, printed = await gateway.run_to_its_end("backup", str(tmp_path / "out.tar.gz"))
    assert (code, "no Parlour home exists" in printed) == (2, True)
    assert not (tmp_path / "out.tar.gz").exists()
    assert [each.name for each in (tmp_path / "home").iterdir()] == ["parlour.yaml"]


async def test_a_backup_says_how_much_it_has(tmp_path: Path, zygote: ForkServer) -> None:
    """The command prints the number of turns and people, and the manifest has them."""
    gateway = GatewayProcess(tmp_path / "home", free_port(), zygote)
    try:
        await gateway.start()
        for n in range(1, 3):
            await gateway.command("send", KEY, f"message {n}")
            await until_answered(gateway, n)
        printed = await gateway.command("backup", str(tmp_path / "out.tar.gz"))
        assert "2 turns, memories of 1 person" in printed
    finally:
        await gateway.close()
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        member = archive.extractfile(MANIFEST)
        assert member is not None
        manifest = json.load(io.BytesIO(member.read()))
    assert (manifest["turns"], manifest["people"]) == (2, 1)


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    """Return a server with empty tables."""
    postgres.empty()
    return postgres


async def test_a_home_on_postgresql_does_not_start_on_a_file(
    tmp_path: Path, server: PostgresServer, zygote: ForkServer
) -> None:
    """Started without its address, it is refused with the line that names the database and the variable.

    No journal is made, also by no command, and the way back stays open. So it is for a home of before this note.
    """
    on_server = GatewayProcess(tmp_path / "home", free_port(), zygote, **settings(server))
    on_file = GatewayProcess(tmp_path / "home", free_port(), zygote)
    try:
        await on_server.start()
        await on_server.command("send", KEY, "hello")
        await until_answered(on_server, 1)
        await on_server.stop()
        for words in (("run",), ("doctor", "--offline"), ("status",), ("backup", str(tmp_path / "b.tar.gz"))):
            code, printed = await on_file.run_to_its_end(*words)
            assert (code, "set PARLOUR_STORE__URL to its address" in printed) == (2, True), printed
        assert not list((tmp_path / "home").glob("journal.db*"))
        assert not (tmp_path / "b.tar.gz").exists()
        (tmp_path / "home" / "journal.moved").unlink()
        code, printed = await on_file.run_to_its_end("run")
        assert (code, "are in a PostgreSQL database: set PARLOUR_STORE__URL" in printed) == (2, True), printed
        await on_server.start()
        await on_server.stop()
        assert "rows are in" in await on_server.command("store", "migrate", "sqlite")
        await on_file.start()
        await on_file.stop()
    finally:
        await on_server.close()
        await on_file.close()


async def test_a_home_starts_on_no_other_database(tmp_path: Path, server: PostgresServer, zygote: ForkServer) -> None:
    """A database with another home's messages, or with none, is refused by name until the loss is accepted."""
    first = GatewayProcess(tmp_path / "home", free_port(), zygote, **settings(server))
    try:
        await first.start()
        await first.stop()
        server.empty()
        for command in ("run", "doctor"):
            code, printed = await first.run_to_its_end(command)
            assert (code, "has no messages of a Parlour" in printed) == (2, True), printed
        other = GatewayProcess(tmp_path / "other", free_port(), zygote, **settings(server))
        await other.start()
        await other.stop()
        code, printed = await first.run_to_its_end("run")
        assert (code, "belongs to another home" in printed) == (2, True), printed
        assert "names it in the home" in await first.command("accept-loss", "--yes")
        await first.start()
        await first.stop()
    finally:
        await first.close()
