"""Histories when accounts are linked and unlinked: entries, raw messages, notes, archives of MEMORY.md and keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent.base.disk import Disk
from agent.memory.account_links.account_linker import AccountLinker
from agent.memory.editing.memory_archive import MemoryArchive
from agent.memory.editing.memory_file_writer import MemoryFileWriter
from agent.memory.history.history_files import add_keys
from agent.memory.jobs.job_runner import ScopeLock
from agent.memory.storage.scope_documents import ScopeDocuments, line_fingerprint
from agent.memory.storage.session_file_writer import SessionFileWriter
from gateway.events import PlatformAccount, SessionKey
from gateway.ports.access import ScopeMove
from gateway.ports.memory import HistoryEntry, MarkKind, NoteChange
from gateway.store.account_links import LinkSnapshot, SqlAccountLinks
from tests.fakes.histories import KilledHistory, SyncHistory
from tests.fakes.memory import START, DyingDisk, FakeRecords, talk

ANN, BOB = "people/telegram%3a1", "people/slack%3at%3a2"
ANNS, BOBS = SessionKey("telegram", "1"), SessionKey("slack", "t/2")
LIMIT = 2_000
KEYS = {
    ANN: {line_fingerprint("telegram%3a1 owns item number 0 of the collection"): "one"},
    BOB: {line_fingerprint("slack%3at%3a2 owns item number 0 of the collection"): "two"},
}
NAMES = {ANN: "2026-11-20-talk.md", BOB: "2026-11-20-talk-2.md"}


class LinkedPeople:
    """Two people with a history each, and what links and unlinks them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.records = FakeRecords(
            *talk(2, key=ANNS, scope=ANN), *talk(2, first=10, key=BOBS, scope=BOB, transcript="b" * 16)
        )
        archive = MemoryArchive(max_chars=LIMIT, history=self.records.history, now=lambda: START)
        self.documents = ScopeDocuments(self.records.documents, fit=archive.fit)
        self.links = SqlAccountLinks(self.records.engine, LinkSnapshot(), {})

    async def fill(self, scope: str, key: SessionKey) -> None:
        """Give a person a history, and so many lines that the first ones are in an archive."""
        name, history = scope.removeprefix("people/"), self.records.history
        text = "".join(f"- {name} owns item number {n} of the collection\n" for n in range(60))
        await self.documents.write(scope, "MEMORY.md", text, was="", why="remember:t", by=name)
        await add_keys(history, scope, KEYS[scope], text)
        spoke = HistoryEntry(timestamp="2026-11-20 10:00", content=f"{name} spoke", session=str(key), entry=f"e{name}")
        life = HistoryEntry(timestamp="2026-11-19 10:00", content=f"{name}'s old life")
        await history.append(scope, spoke, life)
        await history.advance_dream(scope, 1)
        raw = HistoryEntry(timestamp="2026-11-21 10:00", content="[raw]", session=str(key), entry=f"r{name}")
        await history.keep_raw(scope, raw, [{"role": "user", "content": f"{name} was not summarised"}])
        notes = {
            "2026-11-20-talk.md": f"# Session Memory\n\n- **Session**: {key}\n\n{name} talked.\n",
            "2026-11-20.md": f"## Flush at 10:00 (session: {key})\n\n- {name} flushed\n",
            f"2026-11-19-{name[:5]}.md": f"{name} wrote this\n",
        }
        marks = {MarkKind.FLUSHED: {str(key): "c1"}}
        changes = {each: NoteChange(was=None, body=text.encode()) for each, text in notes.items()}
        assert await history.write(scope, notes=changes, marks=marks)

    def linker(self, disk: Disk | None = None) -> AccountLinker:
        """Return what a process has after its start."""
        disk = disk or Disk()
        history = KilledHistory(self.records.engine, disk if isinstance(disk, DyingDisk) else None)

        async def nothing(_: str) -> None:
            """There is nothing to close."""

        return AccountLinker(
            links=self.links,
            records=self.records,
            jobs=None,
            transcripts=self.records.transcripts,
            session_files=SessionFileWriter(self.home, self.records, self.records.transcripts, disk=disk),
            scope_lock=ScopeLock(),
            writing=asyncio.Lock(),
            history=history,
            files=self.records.files,
            home=self.home,
            documents=self.records.documents,
            memory_files=MemoryFileWriter(self.home, self.records.documents, history, has_git=False, disk=disk),
            reopen=lambda _: None,
            close_files=nothing,
            now=lambda: START,
            disk=disk,
        )

    async def link(self) -> None:
        """Make Bob a part of Ann."""
        await self.links.link(ScopeMove(id="link:1", kind="link", source=BOB, target=ANN, at=START))

    async def unlink(self) -> None:
        """Make him somebody else again."""
        account = PlatformAccount.from_name("slack%3at%3a2")
        await self.links.unlink(ScopeMove(id="u:1", kind="unlink", source=ANN, target=BOB, at=START, account=account))

    def history(self, scope: str) -> SyncHistory:
        """Return what is stored."""
        return SyncHistory(self.records.connection, scope)

    def state(self, scope: str) -> dict[str, object]:
        """Return what counts of a scope: what is stored, and its files."""
        stored = self.history(scope).load()
        folder = self.home / scope / "memory"
        files = {path.name: path.read_text() for path in folder.glob("[!.]*") if path.is_file()}
        rows = {"entries": stored.entries, "raws": stored.raws, "notes": stored.notes, "marks": stored.marks}
        return {**rows, "dream": stored.dream_cursor, **files}


async def people(home: Path) -> LinkedPeople:
    """Return two people with histories."""
    made = LinkedPeople(home)
    await made.fill(ANN, ANNS)
    await made.fill(BOB, BOBS)
    return made


async def test_linked_everything_is_in_one_history(tmp_path: Path) -> None:
    """Entries by time with new cursors, dreamt ones first; days joined, other notes with a number; keys of both."""
    made = await people(tmp_path)
    await made.link()
    await made.linker().resume()
    history = made.history(ANN)
    assert [each.content for each in history.after(0)] == [
        "telegram%3a1 spoke",
        "slack%3at%3a2 spoke",
        "telegram%3a1's old life",
        "slack%3at%3a2's old life",
        "[raw]",
        "[raw]",
    ]
    assert [each.cursor for each in history.after(0)] == [4, 5, 6, 7, 8, 9]
    assert history.dream_cursor == 5
    assert [name for name, text in history.notes.items() if "talked" in text] == sorted(NAMES.values())
    assert all(f"- {name} flushed" in history.notes["2026-11-20.md"] for name in ("telegram%3a1", "slack%3at%3a2"))
    [archive] = [text for name, text in history.notes.items() if name.endswith(".archive.md")]
    assert all(f"- {name} owns item number 0 " in archive for name in ("telegram%3a1", "slack%3at%3a2"))
    assert history.marks(MarkKind.KEYS) == KEYS[ANN] | KEYS[BOB]
    assert made.history(BOB).load().entries == ()
    assert "slack%3at%3a2 spoke" in (tmp_path / ANN / "memory" / "HISTORY.md").read_text()
    assert not (tmp_path / BOB).exists()


async def test_apart_again_each_has_their_own(tmp_path: Path) -> None:
    """By session, by owner where there is none, and by author where the lines of an archive are concerned."""
    made = await people(tmp_path)
    await made.link()
    await made.linker().resume()
    await made.unlink()
    await made.linker().resume()
    for scope, other in ((ANN, "slack%3at%3a2"), (BOB, "telegram%3a1")):
        stored = made.history(scope).load()
        parts = (*stored.entries, *stored.raws, *(note.body for note in stored.notes.values()))
        name, everything = scope.removeprefix("people/"), b"".join(parts).decode()
        for trace in (
            " spoke",
            "'s old life",
            " was not summarised",
            " talked",
            " flushed",
            " wrote this",
            " owns item",
        ):
            assert name + trace in everything
        assert other not in everything
        assert made.history(scope).marks(MarkKind.KEYS) == KEYS[scope]
        assert len(made.history(scope).marks(MarkKind.FLUSHED)) == 1
