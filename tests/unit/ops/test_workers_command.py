"""`parlour workers`: the gateway that uses the home's journal, running or killed."""

from __future__ import annotations

import asyncio
import os
import sqlite3

from tests.fakes.inprocess_gateway import gateway
from tests.unit.ops.test_memory_cli import CommandTerminal
from tests.unit.ops.test_memory_cli import terminal as terminal


async def test_a_gateway_is_listed_while_it_runs(terminal: CommandTerminal) -> None:
    """An embedded journal has one at most, and no heartbeat: the home's lock says that it runs."""
    assert await asyncio.to_thread(terminal.lines, "workers") == []
    assert await asyncio.to_thread(terminal.well, "workers") == "no gateway is running\n"
    async with gateway(home=terminal.home):
        (line,) = await asyncio.to_thread(terminal.lines, "workers")
        assert (line["process"], line["running"], line["heartbeat_seconds"]) == (os.getpid(), True, None)
        assert (line["turns"], line["jobs"]) == (0, 0)
        assert "0 turns and 0 jobs" in await asyncio.to_thread(terminal.well, "workers")
    assert await asyncio.to_thread(terminal.lines, "workers") == []


def test_a_killed_gateway_is_listed_until_the_next_start(terminal: CommandTerminal) -> None:
    """Its host is printed without the characters that would move the cursor."""
    terminal.make_home()
    terminal.well("prune")
    with sqlite3.connect(terminal.home / "journal.db") as database:
        database.execute("INSERT INTO worker VALUES ('w', 'host\x1b[2J', 7, '0.1', 0, 0, 0)")
    database.close()
    (row,) = terminal.well("workers").splitlines()
    assert row.startswith("killed  host")
    assert "process 7" in row
    assert "taken over at the next start" in row
    assert "\x1b" not in row
    terminal.well("prune")
    assert terminal.lines("workers") == []
