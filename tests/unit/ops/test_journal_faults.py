"""A journal that cannot be used: permission, lock, full disk and damage are told apart, by `run` and by the doctor."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gateway.errors import StoreUnavailable
from gateway.journal_file import journal_fault
from gateway.store.engine import StoreLimits
from gateway.store.sqlite import FILE, open_file, schema
from gateway.store.sqlite.connection import SqliteConnection
from tests.fakes.gateway import GatewayProcess, free_port
from tests.faults.process_pool import ForkServer

OTHER = 12345  # a user id that owns nothing


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    """A journal that was closed."""
    store = await open_file(tmp_path / FILE, StoreLimits())
    await store.close()
    return tmp_path / FILE


@contextmanager
def forbidden(journal: Path) -> Iterator[Path]:
    """Give a copy of the journal that this process may not read; root becomes another user for that."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own folders keep other users out
        copy = Path(shutil.copy(journal, folder))
        copy.chmod(0)
        if is_root:
            os.chown(folder, OTHER, OTHER)
            os.seteuid(OTHER)
        try:
            yield copy
        finally:
            if is_root:
                os.seteuid(0)


async def opening(journal: Path) -> str:
    """Return the line with which opening the store ends."""
    with pytest.raises(StoreUnavailable) as refused:
        await open_file(journal, StoreLimits())
    return str(refused.value)


async def test_another_owners_journal_is_not_damaged(journal: Path) -> None:
    """What may not be read is named with whom it keeps out; no restore is advised, which would drop everything."""
    with forbidden(journal) as kept:
        fault = journal_fault(kept)
        assert f"user id {os.geteuid()} cannot read and write {kept}" in fault
        assert "no data is damaged" in fault
        assert "restore" not in fault
    assert journal_fault(journal) == ""


async def test_a_locked_journal_is_not_damaged(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program that holds the file is said, by the start and by the doctor."""
    monkeypatch.setattr(schema, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(journal, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("UPDATE meta SET value = value")
        for line in (journal_fault(journal), await opening(journal)):
            assert "is locked by another program" in line
            assert "restore" not in line


async def test_a_full_disk_is_not_damage(tmp_path: Path) -> None:
    """SQLite's own word for a full disk asks for room."""

    def connect(path: Path) -> SqliteConnection:
        connection = schema.connect(path)
        connection.execute("PRAGMA max_page_count = 2")
        return connection

    with pytest.raises(StoreUnavailable, match="is full: free some space and start again; no data is damaged"):
        await open_file(tmp_path / FILE, StoreLimits(), connect=connect)


def damage(journal: Path) -> None:
    """Write over everything but the journal's first page."""
    whole = journal.read_bytes()
    journal.write_bytes(whole[:4_000] + b"\xff" * (len(whole) - 4_000))


async def test_the_commands_in_the_line_about_damage_work_as_printed(tmp_path: Path, zygote: ForkServer) -> None:
    """A start on a damaged journal names two commands; after either, run as it is printed, the next one succeeds."""
    gateway = GatewayProcess(tmp_path / "a home", free_port(), zygote, XDG_RUNTIME_DIR=str(tmp_path))
    await gateway.start()
    await gateway.command("send", "web:owner", "Hello.")
    async with asyncio.timeout(60):
        while "Hello." not in await gateway.command("sessions", "show", "web:owner"):
            pass  # accepted, and answered in a moment: the backup must hold it
    (gateway.home / "backups").mkdir(mode=0o700)
    await gateway.command("backup", str(gateway.home / "backups" / "now.tar.gz"))
    for chosen in range(2):
        assert await gateway.stop() == 0
        damage(gateway.home / FILE)
        code, said = await gateway.run_to_its_end("run")
        assert code == 1, said
        line = next(line for line in said.splitlines() if line.startswith("parlour: "))
        assert "is damaged" in line
        _, doctor = await gateway.run_to_its_end("doctor", "--offline")
        assert line.removeprefix("parlour: ") in doctor
        commands = re.findall(r"run `([^`]+)`", line)
        assert len(commands) == 2
        name, *words = shlex.split(commands[chosen])
        assert name.endswith("/bin/parlour")
        code, said = await gateway.run_to_its_end(*words, typed="y\n")
        assert code == 0, said
        await gateway.start()
        assert "Hello." in await gateway.command("sessions", "show", "web:owner")
    assert await gateway.stop() == 0
    assert len([*(gateway.home / "backups").glob("lost-*/journal.db")]) == 1
