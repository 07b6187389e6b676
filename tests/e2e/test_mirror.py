"""The mirror is written again from the store, and a lost store is rebuilt from the mirror."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.memory.documents.git_repository import open_repo
from gateway.app import build_operations
from gateway.ports import HistoryEntry, MarkKind, NoteChange
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

SCOPE, ROOM = "people/pocket%3aann", "chats/pocket%3aroom"


async def have_a_past(parlour: InProcessGateway) -> None:
    """Fill a home: conversations that ended and that go on, documents with an undo, histories, notes and marks."""
    ask = parlour.channel.ask
    await ask("ann", "Hello.")
    await ask("ann", "/remember I like green tea")
    await ask("ann", "/remember my dog is Bello")
    (newest, *_) = await parlour.app.store.documents.log(SCOPE, limit=1)
    await ask("ann", f"/memory undo {newest.short}")
    await ask("ann", "/new")
    await ask("ann", "Hello again.")
    await ask("room", "/remember we meet in Bonn", group=True)
    history = parlour.app.store.history
    for scope in (SCOPE, ROOM):
        entries = [
            HistoryEntry(timestamp=f"2026-11-2{n} 10:00", content=f"They talked, {n}.", entry=f"e{n}") for n in (1, 2)
        ]
        await history.append(scope, *entries)
        raw = HistoryEntry(timestamp="2026-11-23 10:00", content="Raw.", entry="e3")
        await history.keep_raw(scope, raw, [{"role": "user", "content": "Raw words."}])
        await history.advance_dream(scope, 2)
        notes = {"2026-11-22.md": NoteChange(was=None, body=b"## Flush at 10:00 (session: pocket:ann)\n- tea\n")}
        await history.write(scope, notes=notes, marks={MarkKind.FLUSHED: {"pocket:ann": "2"}})
    await settle(parlour)


async def settle(parlour: InProcessGateway) -> None:
    """Return when every file of the mirror is written."""
    await parlour.idle()
    await parlour.settle_documents()
    for scope in (SCOPE, ROOM):
        await parlour.app.history_files.settle(scope)


def printed(home: Path) -> Mapping[str, bytes]:
    """Return every printed file by its name, and the newest commit of each repository."""
    found: dict[str, bytes] = {}
    for scope in (SCOPE, ROOM):
        for path in sorted((home / scope).rglob("*")):
            name = path.relative_to(home)
            if path.is_file() and not {".git", ".mirror"} & set(name.parts) and path.suffix in (".jsonl", ".md", ""):
                found[str(name)] = path.read_bytes()
        with open_repo(home / scope / "memory" / ".git", make=False) as repo:
            found[f"{scope}/.git"] = repo.head()
    return found


async def test_a_deleted_mirror_is_written_again(tmp_path: Path) -> None:
    """Conversations, archives, documents, their commits, histories and notes get the same bytes while people chat."""
    async with gateway(home=tmp_path / "home") as parlour:
        await have_a_past(parlour)
        before = printed(parlour.home)
        assert sum(name.endswith(".jsonl") and "/sessions/" in name for name in before) == 3
        for scope in (SCOPE, ROOM):
            shutil.rmtree(parlour.home / scope / "sessions")
            shutil.rmtree(parlour.home / scope / "memory")
        lines = [dict(line) async for line in build_operations(parlour.app)["mirror rebuild"]({})]
        assert printed(parlour.home) == before
        counts: dict[str, Any] = {line["name"]: line["count"] for line in lines if line["scope"] == SCOPE}
        assert (counts["sessions"], counts["documents"], counts["history"]) == (2, 1, 3)
        assert await parlour.channel.ask("ann", "Still here?")
