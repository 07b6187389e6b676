"""Taking another bot's memory over: once, whole, into one scope, whatever happens in between."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.base.disk import Disk
from agent.base.transcript_lines import kind_of
from agent.importers import SYSTEMS
from agent.importers.conversation_importer import ConversationImporter, ImportTarget
from agent.importers.import_data import ImportLedgers, ImportReportItem
from agent.importers.importer import MemoryImporter
from agent.memory.editing.memory_file_writer import MemoryFileWriter
from agent.memory.storage.scope_documents import ScopeDocuments
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.storage.transcript_files import read_transcript, transcript_of_archive
from gateway.events import SessionKey
from gateway.store.sql_store import SqlStore
from tests.fakes import other_bots
from tests.fakes.histories import KilledHistory
from tests.fakes.memory import START, FaultyDisk, ProcessCrash
from tests.fakes.other_bots import fingerprint, jsonl, write
from tests.fakes.store import open_inline_store

SCOPE = "people/telegram%3a42"
KEY = SessionKey("telegram", "42")


class ImportScene:
    """A home, and a bot that somebody used before."""

    def __init__(self, folder: Path, store: SqlStore) -> None:
        self.home = folder / "home"
        self.store = store
        self.theirs = folder / "theirs"
        self.passed = 0.0

    async def take(
        self,
        system: str = "nanobot",
        *,
        disk: Disk | None = None,
        mapped: Mapping[str, ImportTarget] | None = None,
        scope: str = SCOPE,
        is_dry: bool = False,
    ) -> list[ImportReportItem]:
        """Import everything, and see what is committed in its file."""
        disk = disk or Disk()
        documents = ScopeDocuments(self.store.documents)
        records, journal = self.store.records, self.store.journal
        history = KilledHistory(self.store._engine, disk if isinstance(disk, FaultyDisk) else None)
        ledgers = ImportLedgers(history, is_dry=is_dry)
        importer = MemoryImporter(
            home=self.home,
            system=system,
            documents=documents,
            history=history,
            ledgers=ledgers,
            conversations=ConversationImporter(
                home=self.home,
                system=system,
                ledgers=ledgers,
                session=journal.session,
                sessions=records.sessions,
                append=records.append,
                transcripts=self.store.transcripts,
                now=lambda: START,
                disk=disk,
                is_dry=is_dry,
            ),
            now=lambda: START,
            disk=disk,
            is_dry=is_dry,
        )
        items = await importer.run(SYSTEMS[system](self.theirs, "UTC"), scope, mapped or {})
        await SessionFileWriter(self.home, records, self.store.transcripts).flush()
        # A file that came out of an exchange is looked at once nobody writes into it any more.
        writer = MemoryFileWriter(
            self.home, self.store.documents, self.store.history, now=lambda: time.time() + self.passed
        )
        for _ in range(3):
            await writer.flush()
            self.passed += 10
        return items

    def text(self, name: str, scope: str = SCOPE) -> str:
        """Return a file of the scope, "" where there is none."""
        path = self.home / scope / name
        return path.read_text() if path.exists() else ""

    def said(self, scope: str = SCOPE) -> list[list[str]]:
        """Return what is said in each transcript of the scope."""
        found = []
        for path in sorted((self.home / scope / "sessions").glob("*.jsonl")):
            lines = [line for block in read_transcript(Disk(), path).blocks for line in block.lines]
            found.append([str(line["content"]) for line in lines if kind_of(line) == "message"])
        return sorted(found)

    def state(self) -> dict[str, Any]:
        """Return what an import leaves, without what names a moment."""
        return {
            "texts": [self.text(name) for name in ("SOUL.md", "USER.md", "memory/MEMORY.md", "memory/HISTORY.md")],
            "notes": {path.name: path.read_text() for path in (self.home / SCOPE / "memory").glob("2*.md")},
            "said": self.said(),
            "cursors": [json.loads(line)["cursor"] for line in self.text("memory/history.jsonl").splitlines()],
            "dream": self.text("memory/.dream_cursor"),
        }


@asynccontextmanager
async def open_import(folder: Path) -> AsyncIterator[ImportScene]:
    """Give a world with nanobot's folder in it."""
    store = await open_inline_store()
    world = ImportScene(folder, store)
    other_bots.nanobot(world.theirs)
    try:
        yield world
    finally:
        await store.close()


def counts(items: Sequence[ImportReportItem]) -> list[tuple[str, str, int, int]]:
    """Return what was taken of what."""
    return [(each.what, each.source, each.new, each.known) for each in items if each.what != "left"]


async def test_everything_of_theirs_is_there(tmp_path: Path) -> None:
    """Documents to the byte, history with cursors of ours, notes, conversations as archives under their keys."""
    async with open_import(tmp_path) as world:
        items = await world.take()
        source = world.theirs / "workspace"
        for theirs, ours in (("SOUL.md", "SOUL.md"), ("USER.md", "USER.md"), ("memory/MEMORY.md", "memory/MEMORY.md")):
            assert world.text(ours) == (source / theirs).read_text()
        assert world.text("memory/2026-03-25-api-design.md") == (source / "memory/2026-03-25-api-design.md").read_text()
        entries = await world.store.history.after(SCOPE)
        assert [(each.cursor, each.timestamp, each.origin) for each in entries] == [
            (1, "2026-04-03 00:02", "owner"),
            (2, "2026-04-04 10:00", "owner"),
        ]
        assert world.text("memory/.dream_cursor").strip() == "1"
        assert "Talked about boats." in world.text("memory/HISTORY.md")
        assert world.said() == [
            ["Hello"],
            ["My boat is Nessie", "Noted.", "What is it called?", "", "Nessie", "Nessie."],
        ]
        assert [(each.what, each.new, each.bad, each.unsummarised) for each in items if each.bad] == [
            ("history", 2, 1, 0),
            ("conversation", 6, 1, 4),
        ]
        corrupt = [path.read_bytes() for path in world.home.rglob("*.corrupt")]
        assert sorted(corrupt) == [b"not json\n", b"{torn\n"]
        assert [each.why for each in await world.store.documents.log(SCOPE, limit=9)] == ["imported from nanobot"] * 3
        assert not (world.home / "shared").exists()
        for path in world.home.rglob("*"):
            assert path.stat().st_mode & 0o077 == 0


async def test_twice_is_once_and_what_was_forgotten_stays_forgotten(tmp_path: Path) -> None:
    """The second run finds nothing to do, also where somebody changed or cleared what the first one brought."""
    async with open_import(tmp_path) as world:
        first = await world.take()
        memory = world.home / SCOPE / "memory" / "MEMORY.md"
        memory.write_text(memory.read_text().replace("- Favorite color: blue\n", "").replace("- Go", "- Go and Rust"))
        (world.home / SCOPE / "memory" / "2026-03-25-api-design.md").unlink()
        (world.home / SCOPE / "SOUL.md").unlink()
        before = fingerprint(world.home)
        second = await world.take()
        assert counts(second) == [(what, source, 0, new) for what, source, new, _ in counts(first)]
        assert fingerprint(world.home) == before


async def test_a_dry_run_says_the_same_and_does_nothing(tmp_path: Path) -> None:
    """The report of a dry run is that of the run; no file is made, and no session in the journal."""
    async with open_import(tmp_path) as world:
        goals = {"telegram:42": ImportTarget(scope=SCOPE, key=KEY)}
        told = await world.take(is_dry=True, mapped=goals)
        assert not world.home.exists()
        assert await world.store.records.sessions() == ()
        assert await world.take(mapped=goals) == told


async def test_what_they_go_on_saying_is_taken_later(tmp_path: Path) -> None:
    """Somebody tries us and goes back for a day: the next import brings that day, and nothing twice."""
    async with open_import(tmp_path) as world:
        await world.take()
        source = world.theirs / "workspace"
        with (source / "sessions" / "telegram_42.jsonl").open("a") as file:
            file.write('{"role": "user", "content": "One more", "timestamp": "2026-03-07T10:00:00"}\n')
        with (source / "memory" / "2026-03-25-api-design.md").open("a") as file:
            file.write("\nAnd GraphQL it is not.\n")
        write(source / "USER.md", "# User\n\n- Name: Ann\n- Lives in Bonn\n")
        items = await world.take()
        assert [(each.source, each.new) for each in items if each.new] == [
            ("workspace/USER.md", 1),
            ("workspace/memory/2026-03-25-api-design.md", 1),
            ("workspace/sessions/telegram_42.jsonl", 1),
        ]
        assert ["One more"] in world.said()
        assert world.text("USER.md") == "# User\n\n- Name: Ann\n- Lives in Bonn\n"
        assert world.text("memory/2026-03-25-api-design.md").count("REST it is.") == 1


async def test_memory_that_is_there_is_added_to_and_a_voice_is_kept(tmp_path: Path) -> None:
    """Nothing of ours changes: what theirs say is added under its headings, and our voice stays."""
    async with open_import(tmp_path) as world:
        ours = "# Preferences\n\n- Favorite color: green\n\n# Work\n\n- Go\n"
        await world.store.documents.write(SCOPE, "MEMORY.md", ours, was="", why="t")
        await world.store.documents.write(SCOPE, "SOUL.md", "I am ours.\n", was="", why="t")
        items = await world.take()
        text = world.text("memory/MEMORY.md")
        assert text.replace("- Favorite color: blue\n- Tea:\n  - green\n", "") == ours
        assert world.text("SOUL.md") == "I am ours.\n"
        assert ("left", "workspace/SOUL.md") in [(each.what, each.source) for each in items]


async def test_a_mapped_chat_goes_on(tmp_path: Path) -> None:
    """Its messages stand in the transcript of the chat, by the journal, with the pointer where their summaries end."""
    async with open_import(tmp_path) as world:
        await world.take(mapped={"telegram:42": ImportTarget(scope=SCOPE, key=KEY)})
        session = await world.store.journal.session(KEY)
        assert (session.next_index, session.scope) == (6, SCOPE)
        path = world.home / SCOPE / "sessions" / "telegram%3a42.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["last_consolidated"] for line in lines if line.get("kind") == "pointer"] == [2]
        assert [line["i"] for line in lines if "i" in line] == list(range(6))
        assert {line["imported"] for line in lines if line.get("kind") == "end" and line["to"] > line["from"]} == {
            "nanobot"
        }
        assert [line["origin"] for line in lines if line.get("role") == "tool"] == ["untrusted"]
        assert all(line.get("tainted") for line in lines if line.get("role") == "assistant")  # another bot's answers
        before = path.read_bytes()
        (item,) = [
            each
            for each in await world.take(mapped={"telegram:42": ImportTarget(scope=SCOPE, key=KEY)})
            if "telegram" in each.source
        ]
        assert (item.new, item.known) == (0, 6)
        assert path.read_bytes() == before


async def test_a_chat_that_has_spoken_keeps_its_own_conversation(tmp_path: Path) -> None:
    """Old words never come behind new ones: they go to an archive of the chat's scope."""
    async with open_import(tmp_path) as world:
        await world.take(mapped={"telegram:42": ImportTarget(scope=SCOPE, key=KEY)})
        with (world.theirs / "workspace/sessions/telegram_42.jsonl").open("a") as file:
            file.write('{"role": "user", "content": "One more", "timestamp": "2026-03-07T10:00:00"}\n')
        items = await world.take(mapped={"telegram:42": ImportTarget(scope=SCOPE, key=KEY)})
        (item,) = [each for each in items if each.new]
        assert "already has messages" in item.why
        assert ["One more"] in world.said()
        assert (await world.store.journal.session(KEY)).next_index == 6


async def test_archives_are_the_files_that_the_report_names(tmp_path: Path) -> None:
    """The mirror writes the rows of a conversation without a chat to the archive that was named before."""
    async with open_import(tmp_path) as world:
        targets = [each.target for each in await world.take() if each.what == "conversation" and each.new]
        assert targets
        files = (world.home / SCOPE / "sessions").glob("*.jsonl")
        assert {str(path.relative_to(world.home)) for path in files} == set(targets)
        stored = await world.store.transcripts.scan(SCOPE)
        for target in targets:
            path = world.home / target
            rows = [each for each in stored if each.transcript == transcript_of_archive(path)]
            assert rows
            assert path.read_bytes().partition(b"\n")[2] == b"".join(each.body for each in rows)


async def test_of_several_under_one_key_the_newest_goes_on(tmp_path: Path) -> None:
    """What both hold is taken once, also in a dry run; the older one stands in the archive of the chat's scope."""
    async with open_import(tmp_path) as world:
        about = {"_type": "metadata", "key": "telegram:42"}
        earlier = {"role": "user", "content": "Long ago", "timestamp": "2026-01-01T10:00:00"}
        again = {"role": "user", "content": "My boat is Nessie", "timestamp": "2026-03-06T10:00:00"}
        jsonl(world.theirs / "sessions" / "a_old.jsonl", [about, earlier, again])
        goals = {"telegram:42": ImportTarget(scope=SCOPE, key=KEY)}
        told = await world.take(is_dry=True, mapped=goals)
        assert await world.take(mapped=goals) == told
        assert [each.new for each in told if each.what == "conversation" and "cli" not in each.source] == [6, 1]
        session = await world.store.journal.session(KEY)
        assert session.next_index == 6
        assert ["Long ago"] in world.said()


async def test_a_scope_gets_what_is_its_own(tmp_path: Path) -> None:
    """A group's conversation that is mapped stands in the group's scope; everything else, in one person's."""
    async with open_import(tmp_path) as world:
        group = "chats/telegram%3a-100"
        jsonl(
            world.theirs / "workspace/sessions/telegram_-100.jsonl",
            [{"_type": "metadata", "key": "telegram:-100"}, {"role": "user", "content": "We meet at nine"}],
        )
        await world.take(mapped={"telegram:-100": ImportTarget(scope=group)})
        assert world.said(group) == [["We meet at nine"]]
        assert "We meet at nine" not in str(world.said())
        assert not (world.home / group / "memory" / "MEMORY.md").exists()
        # It stays there when a later run does not say so again.
        assert all(each.new == 0 for each in await world.take())
        assert "We meet at nine" not in str(world.said())


@pytest.mark.parametrize("is_mapped", [False, True])
async def test_a_rerun_after_a_crash_completes_it(tmp_path: Path, is_mapped: bool) -> None:
    """The process dies at touches of the disk all along; the next run leaves what an undisturbed one leaves."""
    mapped = {"telegram:42": ImportTarget(scope=SCOPE, key=KEY)} if is_mapped else {}
    (tmp_path / "whole").mkdir()
    async with open_import(tmp_path / "whole") as world:
        disk = FaultyDisk()
        await world.take(disk=disk, mapped=mapped)
        expected, steps = world.state(), disk.count
    assert steps > 20  # enough to be killed at; fingerprints are rows
    for at in range(0, steps, 7):
        (tmp_path / str(at)).mkdir()
        async with open_import(tmp_path / str(at)) as world:
            with pytest.raises(ProcessCrash):
                await world.take(disk=FaultyDisk(at=at, error=ProcessCrash()), mapped=mapped)
            await world.take(mapped=mapped)
            assert world.state() == expected, at
