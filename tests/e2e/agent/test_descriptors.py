"""What memory work opens is closed again, and the threads that it takes are a fixed number."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections import Counter
from pathlib import Path

import pytest

from agent.memory.search import scope_recall
from tests.fakes.held_model import HeldScriptModel
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

CHATS = 8


def open_files(home: Path) -> Counter[str]:
    """Return what descriptors of this process stand in *home*, by kind."""
    found: Counter[str] = Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:  # the one that lists them
            continue
        if target.startswith(str(home)):
            found[re.sub(r".*/(journal|index)\.db.*|.*/.*(\.jsonl)$", r"\1\2", target)] += 1
    return found


def threads() -> Counter[str]:
    """Return the threads of this process by their pools."""
    return Counter(re.sub(r"[-_ ]?\d+.*", "", each.name) for each in threading.enumerate())


async def work(parlour: InProcessGateway) -> None:
    """Let people of many scopes write, keep something and search."""
    for n in range(2 * CHATS):
        chat = f"c{n % CHATS}"
        await parlour.channel.ask(chat, f"I like number {n}", sender=chat)
        await parlour.channel.ask(chat, f"/remember I own {n} boats", sender=chat)
        await parlour.channel.ask(chat, "/search boats", sender=chat)


async def test_descriptors_return_to_their_level_after_memory_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes stay open while they are used, a bounded number of them, then close; transcripts are not held open."""
    # A loop that an earlier test of this process killed leaves its threads, which have the same names.
    left_over = threads()["asyncio"]
    async with gateway(model=HeldScriptModel()) as parlour:
        before, threads_before = open_files(parlour.home), threads()
        assert before["journal"] > 0
        await work(parlour)
        during = open_files(parlour.home)
        assert during[".jsonl"] == 0
        assert during["index"] >= CHATS
        grown = threads() - threads_before
        # Pools give no thread back, and have a limit each: asyncio's own, two that search (the second is made when the
        # first is busy) and one that writes.
        assert set(grown) <= {"asyncio", "recall-search", "recall-write"}
        assert threads()["asyncio"] - left_over <= min(32, (os.cpu_count() or 1) + 4)
        assert 1 <= grown["recall-search"] <= 2
        assert grown["recall-write"] == 1
        monkeypatch.setattr(scope_recall, "IDLE", 0.05)
        await parlour.channel.ask("c0", "one more", sender="c0")
        while open_files(parlour.home) - before:  # noqa: ASYNC110 - another thread closes them and rings no event
            await asyncio.sleep(0.01)
        await work(parlour)  # and all of it still works
