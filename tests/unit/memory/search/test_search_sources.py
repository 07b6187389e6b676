"""What there is to find in a scope, read once and then only what is new."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from agent.base.scopes import scope_folder
from agent.base.transcript_lines import forgotten_line
from agent.memory.search.scope_source import SESSIONS, ScopeSource, TranscriptSource, lines_around
from agent.memory.search.search_unit import SearchUnit, SourceReading, UnitSource
from gateway.events import SessionKey
from gateway.ports.journal import TurnRecord
from gateway.ports.memory import HistoryEntry
from tests.fakes.histories import SyncHistory
from tests.fakes.memory import ANN, SCOPE, START, CountingTranscripts, FakeRecords, exchange, talk

THREAD = SessionKey("telegram", "42/7")


class SourceScope:
    """A scope, and the index's side of it: what was read up to where."""

    def __init__(self, home: Path) -> None:
        self.folder = scope_folder(home, SCOPE)
        self.known: dict[UnitSource, str] = {}
        self.units: dict[str, list[SearchUnit]] = {}
        self.records = FakeRecords()
        self.turns = CountingTranscripts(self.records)
        self.sources = self.opened()

    def opened(self, records: FakeRecords | None = None) -> ScopeSource:
        """Return the sources as after a start."""
        self.records = records or self.records
        self.turns = CountingTranscripts(self.records)
        return ScopeSource(
            self.folder,
            SCOPE,
            self.records.history,
            zone=lambda: "Europe/Berlin",
            transcripts=TranscriptSource(SCOPE, self.turns),
            documents=self.records.documents,
        )

    async def remember(self, name: str, text: str) -> None:
        """Change a document."""
        was = (await self.records.documents.read(SCOPE, name)).rev
        await self.records.documents.write(SCOPE, name, text, was=was, why="t")

    def commit(self, *records: TurnRecord) -> None:
        """Have turns."""
        for record in records:
            self.records.commit(record)

    async def sync(self) -> dict[str, SourceReading | None]:
        """Do as the index does; return what was read of what changed, None for what is gone."""
        marks = await self.sources.marks()
        found: dict[str, SourceReading | None] = {}
        for source in self.known.keys() - marks:
            del self.known[source], self.units[source.name]
            found[source.name] = None
        for source, mark in marks.items():
            if mark == self.known.get(source, "").partition("#")[0]:
                continue
            reading = await self.sources.read(source, self.known.get(source, ""))
            self.known[source] = reading.mark
            before = self.units.get(source.name, []) if reading.is_more else []
            self.units[source.name] = [*before, *reading.units]
            found[source.name] = reading
        return found

    async def one(self) -> SourceReading:
        """Do as the index does; return the one thing that was read."""
        (reading,) = (await self.sync()).values()
        assert reading is not None
        return reading

    @property
    def talk(self) -> list[SearchUnit]:
        """The one conversation there is."""
        (name,) = [name for name in self.units if name.startswith(SESSIONS)]
        return self.units[name]

    @property
    def texts(self) -> list[str]:
        """What people said, in every conversation."""
        return sorted(unit.text for units in self.units.values() for unit in units if unit.role == "user")


async def test_a_conversation_is_read_once_and_then_what_is_new(tmp_path: Path) -> None:
    """People's messages and answers, each once; a look without news reads nothing, and a turn costs a turn."""
    scope = SourceScope(tmp_path)
    scope.commit(*talk(300))
    await scope.one()
    assert [unit.line for unit in scope.talk] == list(range(1, 601))
    assert {unit.role for unit in scope.talk} == {"user", "assistant"}
    scope.turns.bytes_read = 0
    assert await scope.sync() == {}
    assert scope.turns.bytes_read == 0
    scope.commit(exchange(300, 600, said="what is new"))
    reading = await scope.one()
    assert reading.is_more
    assert [unit.text for unit in reading.units] == ["what is new", "answer 300"]
    assert scope.turns.bytes_read < 1_000


async def test_after_a_start_a_conversation_is_read_on_and_not_again(tmp_path: Path) -> None:
    """What the index's mark says is enough; nobody has to have read the beginning in this life."""
    scope = SourceScope(tmp_path)
    scope.commit(*talk(300))
    await scope.sync()
    scope.sources = scope.opened()
    assert await scope.sync() == {}
    scope.commit(exchange(300, 600, said="what is new"))
    assert (await scope.one()).is_more
    assert len(scope.talk) == 602
    assert scope.turns.bytes_read < 1_000


async def test_what_was_taken_back_is_read_anew(tmp_path: Path) -> None:
    """The turn was changed, so the whole conversation is read; the words are in no unit."""
    scope = SourceScope(tmp_path)
    scope.commit(*talk(3, said="the safe opens with zeppelin"))
    await scope.sync()
    scope.commit(exchange(3, 6, before=[forgotten_line("m1")], said="thanks"))
    assert not (await scope.one()).is_more
    said = [unit.text for unit in scope.talk if unit.role == "user"]
    assert said == ["the safe opens with zeppelin", "the safe opens with zeppelin", "thanks"]


async def test_erased_lines_leave_their_conversation_and_no_other_is_read(tmp_path: Path) -> None:
    """Also where another gateway has erased them, whose file nobody sees."""
    scope = SourceScope(tmp_path)
    scope.commit(*talk(2, said="zeppelin"), exchange(2, 0, key=THREAD, transcript="t2", said="tea"))
    await scope.sync()
    await scope.records.transcripts.rewrite(SCOPE, lambda raw: raw.replace(b"zeppelin", b"-"))
    assert [reading is not None for reading in (await scope.sync()).values()] == [True]
    assert scope.texts == ["-", "-", "tea"]


async def test_removed_conversations_leave_the_index(tmp_path: Path) -> None:
    """One of a session, all of a session, and turns that age has removed from one that goes on."""
    scope = SourceScope(tmp_path)
    scope.commit(exchange(0, 0, new_transcript="t2", said="old"), exchange(1, 0, transcript="t2", said="new"))
    scope.commit(exchange(2, 0, key=THREAD, transcript="t3", said="tea"))
    await scope.sync()
    assert scope.texts == ["new", "old", "tea"]
    scope.records.mark_written([each.seq for each in scope.records.stored])
    await scope.records.transcripts.lapse(SCOPE, START.replace(second=30), lambda raw: raw)
    await scope.sync()
    assert scope.texts == ["new", "tea"]
    await scope.records.transcripts.remove(SCOPE, keys={THREAD})
    await scope.sync()
    assert scope.texts == ["new"]
    scope.commit(exchange(4, 0, key=THREAD, transcript="t4", said="late"))
    await scope.sync()
    await scope.records.transcripts.remove(SCOPE, keys={THREAD})
    scope.records.forget_removed()  # between two looks: nothing tells of it any more
    scope.commit(exchange(5, 0, key=THREAD, transcript="t5", said="again"))
    await scope.sync()
    assert scope.texts == ["again", "new"]
    await scope.records.transcripts.remove(SCOPE)
    assert list((await scope.sync()).values()) == [None, None]


async def test_a_new_conversation_is_another_source_and_the_old_one_stays(tmp_path: Path) -> None:
    """Nothing of the old one is read again after /new, and its last turn is."""
    scope = SourceScope(tmp_path)
    scope.commit(*talk(2))
    await scope.sync()
    scope.commit(exchange(2, 4, new_transcript="t2"), exchange(3, 0, transcript="t2", said="a fresh start"))
    found = await scope.sync()
    fresh = found.pop(f"{SESSIONS}t2")
    (old,) = found.values()
    assert fresh is not None
    assert old is not None
    assert old.is_more
    assert len(old.units) == 2
    assert fresh.units[0].text == "a fresh start"
    assert await scope.sync() == {}


async def test_turns_of_another_store_are_all_read(tmp_path: Path) -> None:
    """A store that was lost and filled again has the same numbers for other turns, or others for the same."""
    scope = SourceScope(tmp_path)
    scope.commit(*talk(4))
    await scope.sync()
    others = FakeRecords(exchange(9, 0, key=THREAD, transcript="t9", said="another"), *talk(3, said="other words"))
    others.commit(exchange(7, 6, said="later"))
    scope.sources = scope.opened(others)
    await scope.sync()
    assert scope.texts == ["another", "later", "other words", "other words", "other words"]


async def test_a_turn_that_comes_while_another_is_read_is_read_once(tmp_path: Path) -> None:
    """Between the look and the reading: it is read with the others, and not again at the next look."""
    scope = SourceScope(tmp_path)
    scope.commit(*talk(2))
    (source,) = await scope.sources.marks()
    scope.commit(exchange(2, 4, said="in between"))
    reading = await scope.sources.read(source, "")
    assert [unit.line for unit in reading.units] == [1, 2, 3, 4, 5, 6]
    assert (await scope.sources.marks())[source] == reading.mark.partition("#")[0]
    await scope.records.transcripts.rewrite(SCOPE, lambda raw: raw.replace(b"between", b"-"), keys={ANN})
    assert (await scope.sources.marks())[source] != reading.mark.partition("#")[0]


async def test_a_long_silence_begins_another_sitting(tmp_path: Path) -> None:
    """What was said hours before is no context, also when it was read at another time."""
    scope = SourceScope(tmp_path)
    scope.commit(exchange(0, 0), exchange(60, 2))  # minutes
    await scope.sync()
    scope.commit(exchange(120, 4), exchange(120 + 361, 6))
    await scope.sync()
    assert [unit.group for unit in scope.talk] == ["1"] * 6 + ["7"] * 2


async def test_papers_and_entries_are_read_when_they_change(tmp_path: Path) -> None:
    """MEMORY.md, USER.md, notes and history, with their dates; what is ours alone is none of them."""
    scope = SourceScope(tmp_path)
    memory = scope.folder / "memory"
    memory.mkdir(parents=True)
    await scope.remember("MEMORY.md", "# Likes\n- green tea\n")
    (memory / "2026 plans.md").write_text("- a boat\n")  # a person's own
    history = SyncHistory(scope.records.connection)
    history.put_note("2026-03-25-api.md", "- chose REST\n")
    await scope.remember("USER.md", "Ann, a gardener\n")
    await scope.remember("SOUL.md", "kind\n")
    (memory / "MEMORY.md").write_text("the mirror, which is not read\n")
    history.append(HistoryEntry(timestamp="2026-03-25 14:30", content="They chose REST.\n\nThen tea."))
    assert sorted(await scope.sync()) == [
        "USER.md",
        "memory/2026 plans.md",
        "memory/2026-03-25-api.md",
        "memory/MEMORY.md",
        "memory/history.jsonl",
    ]
    entry = scope.units["memory/history.jsonl"]
    assert [(unit.line, unit.text) for unit in entry] == [(1, "They chose REST."), (1, "Then tea.")]
    assert entry[0].at == datetime(2026, 3, 25, 13, 30, tzinfo=UTC)
    assert scope.units["memory/2026-03-25-api.md"][0].at == datetime(2026, 3, 25, 12, tzinfo=UTC)
    assert await scope.sync() == {}
    await scope.remember("MEMORY.md", "# Likes\n- black tea\n")
    history.replace(replace(history.load(), notes={}))
    found = await scope.sync()
    assert found.pop("memory/2026-03-25-api.md") is None
    assert [unit.text for unit in scope.units["memory/MEMORY.md"]] == ["- black tea"]
    assert set(found) <= {"memory/MEMORY.md", "memory/history.jsonl"}


def test_reading_on_says_where_it_cut_and_keeps_the_hit_whole() -> None:
    """The line that was asked for is whole; a long one beside it says how much is missing and how to read it."""
    asked, beside, _ = lines_around("a.md", f"{'x' * 5_000}\n{'y' * 5_000}\nshort", 1)
    assert asked.text == "x" * 5_000
    assert beside.text == f"{'y' * 2_000}… (cut: 3000 more characters; read line 2 for all)"
