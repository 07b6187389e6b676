"""MEMORY.md has a ceiling: what was not used lately moves to a dated archive, and nothing is lost on the way."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.memory import MemoryStore, Session
from agent.memory.editing.memory_archive import MemoryArchive
from agent.memory.history.folder_store import FileDocumentStore, FolderHistory
from agent.memory.search.search_unit import SearchHit
from agent.memory.storage.scope_documents import line_fingerprint
from agent.tools.tool import ScopedRecall
from agent.turns.turn_tools import TurnMemoryTools
from tests.fakes.consolidation_scene import LooseDisk
from tests.fakes.consolidator import ScriptedProvider
from tests.fakes.llm_context import FakeSearchIndex
from tests.fakes.memory import START, FaultyDisk, ProcessCrash

LIMIT = 2_000


class SteppedClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at = START

    def __call__(self) -> datetime:
        return self.at


def answer(*operations: dict[str, Any]) -> SimpleNamespace:
    """Return a consolidation with these operations."""
    arguments = {"history_entry": "[2026-11-21 21:00] They talked.", "operations": list(operations)}
    return SimpleNamespace(content=None, tool_calls=[SimpleNamespace(name="save_memory", arguments=arguments)])


def talk(first: int, *texts: str, messages: int = 100) -> Session:
    """Return a session of so many messages that begin with these."""
    said = [*texts, *(f"small talk {first + n}" for n in range(messages - len(texts)))]
    roles = ("user", "assistant")
    return Session(f"a:{first}", [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)])


def archived(workspace: Path) -> str:
    """Return all that the archives contain."""
    return "\n".join(path.read_text() for path in sorted((workspace / "memory").glob("*.archive.md")))


async def test_five_thousand_messages_leave_memory_within_its_limit(tmp_path: Path) -> None:
    """Every fact is in MEMORY.md or in an archive, one line names the archives, and a line in use stays."""
    clock = SteppedClock()
    store = MemoryStore(tmp_path, budget=LIMIT, disk=LooseDisk(), now=clock)
    longest = 0
    for n in range(125):
        clock.at = START + timedelta(hours=10 * n)
        new = {"op": "add", "text": f"- Project {n} uses the tool named T{n} on the server S{n}", "source": 0}
        keep = {"op": "add", "text": "- The sailing boat of Ann is called Pelikan", "source": 0}
        session = talk(40 * n, f"Is Pelikan, the sailing boat, ready? {n}", messages=40)
        assert await store.consolidate(session, ScriptedProvider(answer(new, keep)), "m", archive_all=True)
        longest = max(longest, len(store.read_long_term()))
    text = store.read_long_term()
    assert longest <= LIMIT
    assert text.count("Pelikan") == 1
    assert text.count("Older facts: ") == 1
    everything = text + archived(tmp_path)
    assert all(f"- Project {n} uses" in everything for n in range(125))
    assert "- Project 124 uses" in text
    assert len(list((tmp_path / "memory").glob("*.archive.md"))) > 30
    assert len(json.loads((tmp_path / "memory" / ".used.json").read_text())) < 100


async def test_lines_go_with_their_headings_and_items_with_what_is_nested_in_them(tmp_path: Path) -> None:
    """The archive can be read by itself, and an emptied section leaves no heading behind."""
    archive = MemoryArchive(max_chars=LIMIT, history=FolderHistory(tmp_path / "people" / "a"), now=lambda: START)
    documents = FileDocumentStore(tmp_path, fit=archive.fit)
    filler = "".join(f"- filler number {n} with a few words\n" for n in range(45))
    text = f"# Garden\n\n- roses:\n  - red ones\n  - white ones\n\n# House\n\n{filler}"
    await documents.write("people/a", "MEMORY.md", text, was="", why="t")
    now = await documents.read("people/a", "MEMORY.md")
    assert now.text == text
    longer = text + "".join(f"- another line number {n}\n" for n in range(20))
    await documents.write("people/a", "MEMORY.md", longer, was=now.rev, why="t")
    left = (await documents.read("people/a", "MEMORY.md")).text
    [path] = (tmp_path / "people" / "a" / "memory").glob("*.archive.md")
    assert path.name == "2026-11-21.archive.md"
    moved = path.read_text()
    assert moved.startswith("# Moved from MEMORY.md\n\n# Garden\n\n- roses:\n  - red ones\n  - white ones\n\n# House\n")
    assert left.startswith("# House\n")
    assert left.endswith("\n- Older facts: 2026-11-21.archive.md (search finds them)\n")
    assert set(longer.splitlines()) <= {*left.splitlines(), *moved.splitlines()}
    assert all(f"- another line number {n}\n" in left for n in range(20))


@pytest.mark.parametrize("at", range(1, 24, 2))
async def test_killed_at_any_write_no_line_is_lost(tmp_path: Path, at: int) -> None:
    """The archive is written before MEMORY.md; after a rerun a line stands there once."""
    text = "".join(f"- fact number {n} with a few words\n" for n in range(55))
    more = f"{text}- one more line\n"
    await FileDocumentStore(tmp_path).write("people/a", "MEMORY.md", text, was="", why="t")
    disk = FaultyDisk(at=at, error=ProcessCrash())
    for each in (disk, LooseDisk()):
        history = FolderHistory(tmp_path / "people" / "a", each)
        archive = MemoryArchive(max_chars=LIMIT, history=history, now=lambda: START)
        documents = FileDocumentStore(tmp_path, fit=archive.fit, disk=each)
        now = await documents.read("people/a", "MEMORY.md")
        try:
            if "one more line" not in now.text:
                await documents.write("people/a", "MEMORY.md", more, was=now.rev, why="t")
        except ProcessCrash:
            continue
    folder = tmp_path / "people" / "a" / "memory"
    left, moved = (folder / "MEMORY.md").read_text(), "".join(p.read_text() for p in folder.glob("*.archive.md"))
    assert len(left) <= LIMIT
    lines = [*left.splitlines(), *moved.splitlines()]
    assert all(lines.count(line) == 1 for line in more.splitlines())


@pytest.mark.parametrize("is_searched", [True, False])
async def test_a_line_that_a_search_returned_yesterday_stays(tmp_path: Path, is_searched: bool) -> None:
    """The oldest line moves first, unless `memory_search` returned it for an answer; archives keep no words of it."""
    clock = SteppedClock()
    archive = MemoryArchive(max_chars=LIMIT, history=FolderHistory(tmp_path / "people" / "a"), now=clock)
    documents = FileDocumentStore(tmp_path, fit=archive.fit)
    old = "- The zeppelin of uncle Gregor landed in Friedrichshafen"
    text = f"{old}\n" + "".join(f"- fact number {n} with a few words\n" for n in range(50))
    await documents.write("people/a", "MEMORY.md", text, was="", why="t")
    clock.at += timedelta(days=9)
    tools = TurnMemoryTools(tmp_path, cast("Any", None), cast("Any", None), archive)
    if is_searched:
        hit = SearchHit(source="memory/MEMORY.md", line=1, end=1, text=old, score=1.0)
        recall = ScopedRecall(FakeSearchIndex({"people/a": [hit]}), "people/a", lambda: None, tools.note_found)
        assert await recall.search("zeppelin")
    clock.at += timedelta(days=1)
    now = await documents.read("people/a", "MEMORY.md")
    more = text + "".join(f"- another line number {n}\n" for n in range(20))
    await documents.write("people/a", "MEMORY.md", more, was=now.rev, why="t")
    left = (await documents.read("people/a", "MEMORY.md")).text
    assert (old in left) is is_searched
    assert (old in archived(tmp_path / "people" / "a")) is not is_searched


async def test_the_record_of_use_is_small_and_forgets_with_the_line(tmp_path: Path) -> None:
    """It holds fingerprints, never words, a limited number of them, and none of a line that was erased."""
    archive = MemoryArchive(max_chars=LIMIT, history=FolderHistory(tmp_path / "people" / "a"), now=lambda: START)
    documents = FileDocumentStore(tmp_path, fit=archive.fit)
    folder = tmp_path / "people" / "a" / "memory"
    old = "- The zeppelin of uncle Gregor landed in Friedrichshafen"
    text = f"{old}\n" + "".join(f"- fact number {n} with a few words\n" for n in range(50))
    await documents.write("people/a", "MEMORY.md", text, was="", why="t")
    await archive.note_found("people/a", [old])
    record = folder / ".used.json"
    assert line_fingerprint(old) in record.read_text()
    assert "zeppelin" not in record.read_text()
    now = await documents.read("people/a", "MEMORY.md")
    await documents.write("people/a", "MEMORY.md", text.replace(f"{old}\n", ""), was=now.rev, why="t")
    assert line_fingerprint(old) not in record.read_text()
    await archive.note_found("people/a", [f"- made up {n}" for n in range(9_000)])
    assert record.stat().st_size < 200_000
    now = await documents.read("people/a", "MEMORY.md")
    await documents.write("people/a", "MEMORY.md", "- tea\n", was=now.rev, why="t")
    assert not record.exists()
    await archive.note_found("people/a", ["- tea"])
    assert not record.exists()
