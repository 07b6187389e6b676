"""What there is to find in a scope, read once and then only what is new."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from agent.memory.history.history_log import HistoryEntry, HistoryLog
from agent.memory.scopes import scope_folder
from agent.memory.search.search_unit import SearchUnit, SourceReading, UnitSource
from agent.memory.search.sources.scope_source import SESSIONS, ScopeSource, lines_around
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.storage.transcript_lines import forgotten_line
from gateway.ports import TurnRecord
from tests.fakes.memory import SCOPE, CountingDisk, FakeRecords, exchange, talk


class SourceScope:
    """A scope on a disk, and the index's side of it: what was read up to where."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = scope_folder(home, SCOPE)
        self.disk = CountingDisk()
        self.records = FakeRecords()
        self.known: dict[UnitSource, str] = {}
        self.units: dict[str, list[SearchUnit]] = {}
        self.sources = self.opened()

    def opened(self) -> ScopeSource:
        """Return the sources as after a start."""
        return ScopeSource(self.folder, zone=lambda: "Europe/Berlin", disk=self.disk)

    async def commit(self, *records: TurnRecord) -> None:
        """Have turns, and their lines on the disk."""
        for record in records:
            self.records.commit(record)
        await SessionFileWriter(self.home, self.records, self.records.transcripts).close()

    def sync(self) -> dict[str, SourceReading | None]:
        """Do as the index does; return what was read of what changed, None for what is gone."""
        marks = self.sources.marks()
        found: dict[str, SourceReading | None] = {}
        for source in self.known.keys() - marks:
            del self.known[source], self.units[source.name]
            found[source.name] = None
        for source, mark in marks.items():
            if mark == self.known.get(source):
                continue
            reading = self.sources.read(source, self.known.get(source, ""))
            self.known[source] = reading.mark
            before = self.units.get(source.name, []) if reading.is_more else []
            self.units[source.name] = [*before, *reading.units]
            found[source.name] = reading
        return found

    def one(self) -> SourceReading:
        """Do as the index does; return the one thing that was read."""
        (reading,) = self.sync().values()
        assert reading is not None
        return reading

    @property
    def talk(self) -> list[SearchUnit]:
        """The one conversation there is."""
        (name,) = [name for name in self.units if name.startswith(SESSIONS)]
        return self.units[name]


async def test_a_conversation_is_read_once_and_then_what_is_new(tmp_path: Path) -> None:
    """People's messages and answers, each once; a look without news reads nothing, and a turn costs a turn."""
    list_sources = SourceScope(tmp_path)
    await list_sources.commit(*talk(300))
    list_sources.one()
    assert [unit.line for unit in list_sources.talk] == list(range(1, 601))
    assert {unit.role for unit in list_sources.talk} == {"user", "assistant"}
    assert list_sources.sync() == {}
    list_sources.disk.bytes_read = 0
    await list_sources.commit(exchange(300, 600, said="what is new"))
    reading = list_sources.one()
    assert reading.is_more
    assert [unit.text for unit in reading.units] == ["what is new", "answer 300"]
    assert list_sources.disk.bytes_read < 5_000


async def test_after_a_start_a_conversation_is_read_on_and_not_again(tmp_path: Path) -> None:
    """What the index's mark says is enough; nobody has to have read the beginning in this life."""
    list_sources = SourceScope(tmp_path)
    await list_sources.commit(*talk(300))
    list_sources.sync()
    list_sources.sources = list_sources.opened()
    list_sources.disk.bytes_read = 0
    await list_sources.commit(exchange(300, 600, said="what is new"))
    assert list_sources.one().is_more
    assert len(list_sources.talk) == 602
    assert list_sources.disk.bytes_read < 5_000
    assert list_sources.sync() == {}


async def test_what_was_taken_back_is_read_anew(tmp_path: Path) -> None:
    """The file was written anew, so the index's source is; the words are in no unit."""
    list_sources = SourceScope(tmp_path)
    await list_sources.commit(*talk(3, said="the safe opens with zeppelin"))
    list_sources.sync()
    await list_sources.commit(exchange(3, 6, before=[forgotten_line("m1")], said="thanks"))
    assert not list_sources.one().is_more
    said = [unit.text for unit in list_sources.talk if unit.role == "user"]
    assert said == ["the safe opens with zeppelin", "the safe opens with zeppelin", "thanks"]


async def test_a_new_conversation_is_another_source_and_the_archive_stays(tmp_path: Path) -> None:
    """/new renames the file; nothing of the old one is read again."""
    list_sources = SourceScope(tmp_path)
    await list_sources.commit(*talk(2))
    list_sources.sync()
    await list_sources.commit(
        exchange(2, 4, new_transcript="t2"), exchange(3, 0, transcript="t2", said="a fresh start")
    )
    found = list_sources.sync()
    fresh = found.pop(f"{SESSIONS}t2")
    (old,) = found.values()
    assert fresh is not None
    assert old is not None
    assert old.is_more
    assert len(old.units) == 2
    assert fresh.units[0].text == "a fresh start"
    assert list_sources.sync() == {}


async def test_files_that_were_rewritten_into_each_others_inodes_are_all_read(tmp_path: Path) -> None:
    """An erasure rewrites every conversation, and the file system gives the number of one file to another."""
    scope = SourceScope(tmp_path)
    await scope.commit(*talk(2), exchange(2, 4, new_transcript="t2"), exchange(3, 0, transcript="t2"))
    scope.sync()
    before = {name: [unit.text for unit in units] for name, units in scope.units.items()}
    assert len(before) == 2
    first, second = sorted((scope.folder / "sessions").glob("*.jsonl"))
    texts = first.read_bytes(), second.read_bytes()
    (spare := first.with_suffix(".new")).write_bytes(texts[0])
    first.rename(freed := first.with_suffix(".old"))
    spare.rename(first)
    freed.write_bytes(texts[1])
    freed.rename(second)
    scope.sync()
    assert {name: [unit.text for unit in units] for name, units in scope.units.items()} == before


async def test_a_long_silence_begins_another_sitting(tmp_path: Path) -> None:
    """What was said hours before is no context, also when it was read at another time."""
    list_sources = SourceScope(tmp_path)
    await list_sources.commit(exchange(0, 0), exchange(60, 2))  # minutes
    list_sources.sync()
    await list_sources.commit(exchange(120, 4), exchange(120 + 361, 6))
    list_sources.sync()
    assert [unit.group for unit in list_sources.talk] == ["1"] * 6 + ["7"] * 2


def test_papers_and_entries_are_read_when_they_change(tmp_path: Path) -> None:
    """MEMORY.md, USER.md, notes and history, with their dates; what is ours alone is none of them."""
    list_sources = SourceScope(tmp_path)
    memory = list_sources.folder / "memory"
    memory.mkdir(parents=True)
    (memory / "MEMORY.md").write_text("# Likes\n- green tea\n")
    (memory / "2026-03-25-api.md").write_text("- chose REST\n")
    (memory / ".flushed.json").write_text("{}")
    (list_sources.folder / "USER.md").write_text("Ann, a gardener\n")
    HistoryLog(memory).append(HistoryEntry(timestamp="2026-03-25 14:30", content="They chose REST.\n\nThen tea."))
    assert sorted(list_sources.sync()) == [
        "USER.md",
        "memory/2026-03-25-api.md",
        "memory/MEMORY.md",
        "memory/history.jsonl",
    ]
    entry = list_sources.units["memory/history.jsonl"]
    assert [(unit.line, unit.text) for unit in entry] == [(1, "They chose REST."), (1, "Then tea.")]
    assert entry[0].at == datetime(2026, 3, 25, 13, 30, tzinfo=UTC)
    assert list_sources.units["memory/2026-03-25-api.md"][0].at == datetime(2026, 3, 25, 12, tzinfo=UTC)
    assert list_sources.sync() == {}
    (memory / "MEMORY.md").write_text("# Likes\n- black tea\n")
    (memory / "2026-03-25-api.md").unlink()
    found = list_sources.sync()
    assert found.pop("memory/2026-03-25-api.md") is None
    assert [unit.text for unit in list_sources.units["memory/MEMORY.md"]] == ["- black tea"]
    assert list(found) == ["memory/MEMORY.md"]


def test_reading_on_says_where_it_cut_and_keeps_the_hit_whole() -> None:
    """The line that was asked for is whole; a long one beside it says how much is missing and how to read it."""
    asked, beside, _ = lines_around("a.md", f"{'x' * 5_000}\n{'y' * 5_000}\nshort", 1)
    assert asked.text == "x" * 5_000
    assert beside.text == f"{'y' * 2_000}… (cut: 3000 more characters; read line 2 for all)"
