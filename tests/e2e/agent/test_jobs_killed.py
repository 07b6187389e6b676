"""Background work under a real kill -9: what was due is due again, is done once, and is not paid for twice."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.memory.history.history_log import HistoryLog
from tests.fakes.forked_command import fork_command
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.job_process import SCOPE, WINDOW, HangingJobModel, left
from tests.faults.process_pool import ForkServer


async def killed_at(zygote: ForkServer, home: Path, stage: str, word: str) -> list[str]:
    """Run a stage in a process of its own until it says *word*, kill it, and return what it said."""
    process = await fork_command(zygote, ("-m", "tests.fakes.job_process", str(home), stage), os.environ)
    assert process.stdout is not None
    said: list[str] = []
    try:
        async with asyncio.timeout(60):
            while word not in said:
                line = await process.stdout.readline()
                assert line, f"it ended by itself, having said {said}"
                said.append(line.decode().strip())
    finally:
        process.send_signal(signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
    return [each for each in said if each.startswith("asked")]


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold a scope's lock, so that whoever wants to write memory waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def test_what_was_due_before_a_kill_is_due_after_it(tmp_path: Path, zygote: ForkServer) -> None:
    """Killed while the model summarises, while its answer is applied, and while a note is written."""
    home = tmp_path / "home"
    memory = home / SCOPE / "memory"
    assert await killed_at(zygote, home, "consolidate", "asked consolidation") == ["asked consolidation"]
    assert HistoryLog(memory).after(0) == ()
    with hold_lock(memory / ".lock"):
        assert await killed_at(zygote, home, "apply", "answered") == ["asked consolidation"]
        assert not (memory / "MEMORY.md").exists()
    # Its answer was stored, and so nothing is asked for again before /new has something new to summarise.
    assert (await killed_at(zygote, home, "note", "asked note"))[-1] == "asked note"
    entries = HistoryLog(memory).after(0)
    assert [(each.start, each.end) for each in entries][:1] == [(0, 5)]
    assert (memory / "MEMORY.md").read_text() == "- fact\n"
    assert list(memory.glob("2*.md")) == []
    model = HangingJobModel()
    async with gateway(model=model, environment=WINDOW, home=home) as parlour:
        await left(parlour, apply=False)
        await parlour.idle()
    assert model.asked.count("note") == 1
    [note] = memory.glob("2*-roof.md")
    assert "They talked of the roof." in note.read_text()
    assert [(each.start, each.end) for each in HistoryLog(memory).after(0)] == [(0, 5), (5, 10)]
