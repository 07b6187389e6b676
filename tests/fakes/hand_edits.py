"""A person who edits MEMORY.md in a text editor while the gateway writes it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from agent.memory.editing.memory_file_writer import MemoryFileWriter
from tests.fakes.memory import SCOPE, FakeRecords

_FIRST = "- likes tea\n"


def save_in_place(path: Path, text: str) -> None:
    """Empty a file and write it."""
    path.write_text(text)


def save_by_rename(path: Path, text: str) -> None:
    """Write beside a file, and rename."""
    beside = path.with_name("MEMORY.md~")
    beside.write_text(text)
    beside.replace(path)


def save_in_two_steps(path: Path, text: str) -> None:
    """Empty a file, write half of it, and the rest a moment later."""
    with path.open("w") as file:
        file.write(text[: len(text) // 2])
        file.flush()
        time.sleep(0.002)
        file.write(text[len(text) // 2 :])


def edit_often(path: Path, count: int, every: float) -> None:
    """Save *count* times, each time with one more line, in three ways."""
    for n in range(count):
        time.sleep(every)
        text = path.read_text()
        (save_in_place, save_by_rename, save_in_two_steps)[n % 3](path, f"{text}- mine {n}\n")


async def saves_beside_changes(home: Path, records: FakeRecords, *, saves: int, changes: int, every: float) -> None:
    """Have a person and a model at one document, each at its own pace, and look for each line of both."""
    documents, path = records.documents, home / SCOPE / "memory" / "MEMORY.md"
    writer = MemoryFileWriter(home, documents, records.history)
    await documents.write(SCOPE, "MEMORY.md", _FIRST, was="", why="t")
    await writer.flush()
    running = asyncio.create_task(writer.run())
    editing = asyncio.create_task(asyncio.to_thread(edit_often, path, saves, every))
    for n in range(changes):
        while True:
            now = await documents.read(SCOPE, "MEMORY.md")
            text = f"- model {n}\n{now.text}"
            if await documents.write(SCOPE, "MEMORY.md", text, was=now.rev, why="t") is not None:
                break
        await asyncio.sleep(every * saves / changes)
    await editing
    await writer.settle(SCOPE)
    running.cancel()
    text = (await documents.read(SCOPE, "MEMORY.md")).text
    expected = {_FIRST.strip(), *(f"- mine {n}" for n in range(saves)), *(f"- model {n}" for n in range(changes))}
    assert expected - set(text.splitlines()) == set()
    assert len(text.splitlines()) == len(expected)
    assert path.read_text() == text
