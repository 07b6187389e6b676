"""What there is to find in a scope, read once and then only what is new."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from agent.memory.files.lines import forgotten
from agent.memory.files.projector import Projector
from agent.memory.history.log import HistoryEntry, HistoryLog
from agent.memory.scopes import scope_folder
from agent.memory.search.sources.papers import paper_units
from agent.memory.search.sources.scope import Change, ScopeSources
from agent.memory.search.unit import Source
from gateway.ports import TurnRecord
from tests.fakes.memory import SCOPE, CountingDisk, FakeRecords, exchange, talk

NOTE = """# Session Memory: 2026-03-25 14:30

- **Session**: telegram:42

## Summary

We chose PostgreSQL.
It goes live in May.

- book the hall
  - for forty people
- call Ann

```
# no heading
```
<!-- abc -->
"""


def test_a_paper_is_its_bullets_and_paragraphs() -> None:
    """Each with its lines and the headings above; what is indented stays with its bullet, code is no heading."""
    found = [(unit.line, unit.end, unit.about, unit.text) for unit in paper_units(NOTE)]
    assert found == [
        (3, 3, "Session Memory: 2026-03-25 14:30", "- **Session**: telegram:42"),
        (7, 8, "Session Memory: 2026-03-25 14:30 / Summary", "We chose PostgreSQL.\nIt goes live in May."),
        (10, 11, "Session Memory: 2026-03-25 14:30 / Summary", "- book the hall\n  - for forty people"),
        (12, 12, "Session Memory: 2026-03-25 14:30 / Summary", "- call Ann"),
        (14, 16, "Session Memory: 2026-03-25 14:30 / Summary", "```\n# no heading\n```"),
    ]


def test_a_long_paragraph_is_pieces_with_lines_of_their_own() -> None:
    """Nothing of it is lost, and each piece says where it stands."""
    text = "\n".join(f"Sentence number {n} of a long story." for n in range(200))
    units = paper_units(text)
    assert len(units) > 5
    assert "\n".join(unit.text for unit in units) == text
    assert [unit.line for unit in units[1:]] == [unit.end + 1 for unit in units[:-1]]


class Shelf:
    """A scope on a disk, and the index's side of it: what was read up to where."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = scope_folder(home, SCOPE)
        self.disk = CountingDisk()
        self.records = FakeRecords()
        self.marks: dict[Source, str] = {}
        self.texts: dict[str, list[str]] = {}
        self.sources = self.opened()

    def opened(self) -> ScopeSources:
        """Return the sources as after a start."""
        return ScopeSources(self.folder, zone=lambda: "Europe/Berlin", disk=self.disk)

    async def commit(self, *records: TurnRecord) -> None:
        """Have turns, and their lines on the disk."""
        for record in records:
            self.records.commit(record)
        await Projector(self.home, self.records).close()

    def sync(self) -> Sequence[Change]:
        """Do as the index does."""
        changes = list(self.sources.changes(self.marks))
        for change in changes:
            if change.fresh is None:
                del self.marks[change.source], self.texts[change.source.name]
                continue
            self.marks[change.source] = change.fresh.mark
            before = [] if change.fresh.is_whole else self.texts[change.source.name]
            self.texts[change.source.name] = [*before, *(unit.text for unit in change.fresh.units)]
        return changes


async def test_a_conversation_is_read_once_and_then_what_is_new(tmp_path: Path) -> None:
    """People's messages and answers, each once; a look without news yields nothing, and a turn costs a turn."""
    shelf = Shelf(tmp_path)
    await shelf.commit(*talk(300))
    (change,) = shelf.sync()
    assert change.fresh is not None
    units = change.fresh.units
    assert [unit.line for unit in units] == list(range(1, 601))
    assert {(unit.role, unit.who) for unit in units} == {("user", ""), ("assistant", "")}
    assert shelf.sync() == []
    shelf.disk.bytes_read = 0
    await shelf.commit(exchange(300, 600, said="what is new"))
    (change,) = shelf.sync()
    assert change.fresh is not None
    assert not change.fresh.is_whole
    assert change.fresh.units[0].text == "what is new"
    assert len(shelf.texts[change.source.name]) == 602
    assert shelf.disk.bytes_read < 5_000
    shelf.sources = shelf.opened()
    assert shelf.sync() == []


async def test_what_was_taken_back_is_read_anew(tmp_path: Path) -> None:
    """The file was written anew, so the index's source is; the words are in no unit."""
    shelf = Shelf(tmp_path)
    await shelf.commit(*talk(3, said="the safe opens with zeppelin"))
    shelf.sync()
    await shelf.commit(exchange(3, 6, before=[forgotten("m1")], said="thanks"))
    (change,) = shelf.sync()
    assert change.fresh is not None
    assert change.fresh.is_whole
    assert shelf.texts[change.source.name].count("the safe opens with zeppelin") == 2
    assert shelf.texts[change.source.name][-2:][0] == "thanks"


async def test_a_new_conversation_is_another_source_and_the_archive_stays(tmp_path: Path) -> None:
    """/new renames the file; nothing of the old one is read again."""
    shelf = Shelf(tmp_path)
    await shelf.commit(*talk(2))
    shelf.sync()
    await shelf.commit(exchange(2, 4, new_transcript="t2"), exchange(3, 0, transcript="t2", said="a fresh start"))
    before, after = sorted(shelf.sync(), key=lambda change: change.source.name != next(iter(shelf.marks)).name)
    assert before.fresh is not None
    assert after.fresh is not None
    assert not before.fresh.is_whole
    assert after.fresh.units[0].text == "a fresh start"
    assert shelf.sync() == []


async def test_a_long_silence_begins_another_sitting(tmp_path: Path) -> None:
    """What was said hours before is no context, also when it was read at another time."""
    shelf = Shelf(tmp_path)
    await shelf.commit(exchange(0, 0), exchange(60, 2))  # minutes
    (first,) = shelf.sync()
    await shelf.commit(exchange(120, 4), exchange(120 + 241, 6))
    (second,) = shelf.sync()
    assert first.fresh is not None
    assert second.fresh is not None
    groups = [unit.group for unit in (*first.fresh.units, *second.fresh.units)]
    assert groups == ["0"] * 6 + ["6"] * 2


def test_papers_and_entries_are_read_when_they_change(tmp_path: Path) -> None:
    """MEMORY.md, USER.md, notes and history; a file touched without a change is left alone, one that went is gone."""
    shelf = Shelf(tmp_path)
    memory = shelf.folder / "memory"
    memory.mkdir(parents=True)
    (memory / "MEMORY.md").write_text("# Likes\n- green tea\n")
    (memory / "2026-03-25-api.md").write_text("- chose REST\n")
    (memory / ".flushed.json").write_text("{}")
    (shelf.folder / "USER.md").write_text("Ann, a gardener\n")
    HistoryLog(memory).append(HistoryEntry(timestamp="2026-03-25 14:30", content="They chose REST."))
    changes = {change.source.name: change.fresh for change in shelf.sync()}
    assert sorted(changes) == ["USER.md", "memory/2026-03-25-api.md", "memory/MEMORY.md", "memory/history.jsonl"]
    entry = changes["memory/history.jsonl"]
    note = changes["memory/2026-03-25-api.md"]
    assert entry is not None
    assert note is not None
    assert entry.units[0].at == datetime(2026, 3, 25, 13, 30, tzinfo=UTC)
    assert note.units[0].at is not None
    assert note.units[0].at.date().isoformat() == "2026-03-25"
    os.utime(memory / "MEMORY.md", (1, 1))
    assert shelf.sync() == []
    (memory / "MEMORY.md").write_text("# Likes\n- black tea\n")
    (memory / "2026-03-25-api.md").unlink()
    changed, gone = sorted(shelf.sync(), key=lambda change: change.fresh is None)
    assert changed.source.name == "memory/MEMORY.md"
    assert gone == Change(Source(name="memory/2026-03-25-api.md"), None)
