"""Dates are the scope's own: over midnight, over both changes of clocks, and in zones that are off by half an hour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.base import transcript_lines as build
from agent.base.scopes import scope_folder
from agent.memory.prompt.due_jobs import consolidation_job, flush_job
from agent.memory.storage.messages import MessageRange, conversation
from agent.memory.update.notes import SessionMemoryWriter
from agent.turns.prompt_assembly import message_header
from tests.fakes.consolidation_scene import ConsolidationScene, begin
from tests.fakes.consolidator import ScriptedProvider
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, turn_name
from tests.fakes.turns import said

# What the clock on the wall says at a moment: the zone's last minute before something, and its first after it.
WALLS = [
    pytest.param(
        "Europe/Berlin", "2026-11-21T22:59:30Z", "Sat 21 Nov 2026 23:59 CET", "2026-11-21 23:59", id="before midnight"
    ),
    pytest.param(
        "Europe/Berlin", "2026-11-21T23:00:30Z", "Sun 22 Nov 2026 00:00 CET", "2026-11-22 00:00", id="midnight"
    ),
    pytest.param(
        "Europe/Berlin", "2026-03-29T00:59:30Z", "Sun 29 Mar 2026 01:59 CET", "2026-03-29 01:59", id="before spring"
    ),
    pytest.param(
        "Europe/Berlin", "2026-03-29T01:00:30Z", "Sun 29 Mar 2026 03:00 CEST", "2026-03-29 03:00", id="spring"
    ),
    pytest.param(
        "Europe/Berlin", "2026-10-25T00:30:30Z", "Sun 25 Oct 2026 02:30 CEST", "2026-10-25 02:30", id="before autumn"
    ),
    pytest.param("Europe/Berlin", "2026-10-25T01:30:30Z", "Sun 25 Oct 2026 02:30 CET", "2026-10-25 02:30", id="autumn"),
    pytest.param(
        "Asia/Kolkata", "2026-11-21T18:29:30Z", "Sat 21 Nov 2026 23:59 IST", "2026-11-21 23:59", id="half an hour"
    ),
    pytest.param(
        "Asia/Kolkata", "2026-11-21T18:30:30Z", "Sun 22 Nov 2026 00:00 IST", "2026-11-22 00:00", id="half past midnight"
    ),
    pytest.param(
        "Pacific/Kiritimati", "2026-12-31T10:00:00Z", "Fri 1 Jan 2027 00:00 +14", "2027-01-01 00:00", id="new year"
    ),
]


def at(stamp: str) -> datetime:
    """Return the moment."""
    return datetime.fromisoformat(stamp)


def still(moment: datetime) -> Callable[[], datetime]:
    """Return a clock that stands still."""
    return lambda: moment


@pytest.mark.parametrize(("zone", "stamp", "shown", "written"), WALLS)
def test_a_message_carries_the_time_of_its_place(zone: str, stamp: str, shown: str, written: str) -> None:
    """In its head, for the model; and in the line that a summary is made of. The two hours of autumn are told apart."""
    message = replace(said("hi"), sent_at=at(stamp))
    assert message_header(message, zone).startswith(shown)
    line = build.message(0, turn_name(0), "user", "hi", at(stamp))
    assert conversation([line], zone=zone) == [f"[{written}] USER: hi"]


@pytest.mark.parametrize(("zone", "stamp", "shown", "written"), WALLS)
async def test_what_is_written_down_has_the_day_of_its_place(
    tmp_path: Path, zone: str, stamp: str, shown: str, written: str
) -> None:
    """An entry of the history, a flushed day and a note: each by the scope's own clock when it is written."""
    day, clock = written.split()
    world: ConsolidationScene = await begin(tmp_path)
    await world.jobs.put(flush_job(ANN, SCOPE, TRANSCRIPT, MessageRange(0, 8), START))
    await world.run(world.updates(zone=zone, now=lambda: at(stamp)))
    assert [each.timestamp for each in world.history.after(0)] == [written]
    memory = scope_folder(tmp_path, SCOPE) / "memory"
    [flushed] = memory.glob("2*.md")
    assert flushed.name == f"{day}.md"
    assert flushed.read_text().startswith(f"## Flush at {clock} (session: {ANN})")
    writer = SessionMemoryWriter(memory.parent, ScriptedProvider(RuntimeError()), "m", zone=zone, now=lambda: at(stamp))
    messages = [{"role": "user", "content": f"said {n}", "timestamp": stamp} for n in range(3)]
    note = await writer.write_session_memory(str(ANN), messages)
    assert note is not None
    assert note.name == f"{day}-session.md"
    assert f"# Session Memory: {written}\n" in note.read_text()


async def test_two_messages_around_midnight_are_of_two_days(tmp_path: Path) -> None:
    """Flushed a minute before and a minute after: two files. Two notes of one slug: no `-2`, since the days differ."""
    first, second = at("2026-11-21T22:59:30Z"), at("2026-11-21T23:00:30Z")
    world = await begin(tmp_path)
    for moment, (start, end) in ((first, (0, 4)), (second, (4, 8))):
        await world.jobs.put(flush_job(ANN, SCOPE, TRANSCRIPT, MessageRange(start, end), START))
        await world.run(world.flushes(zone="Europe/Berlin", now=still(moment)))
    memory = scope_folder(tmp_path, SCOPE) / "memory"
    assert sorted(path.name for path in memory.glob("2*.md")) == ["2026-11-21.md", "2026-11-22.md"]
    names = []
    for moment in (first, second):
        writer = SessionMemoryWriter(
            memory.parent, ScriptedProvider(RuntimeError()), "m", zone="Europe/Berlin", now=still(moment)
        )
        messages = [{"role": "user", "content": f"{n}", "timestamp": str(moment)} for n in range(3)]
        note = await writer.write_session_memory(str(ANN), messages)
        assert note is not None
        names.append(note.name)
    assert names == ["2026-11-21-session.md", "2026-11-22-session.md"]


async def test_entries_of_the_hour_that_comes_twice_keep_their_order(tmp_path: Path) -> None:
    """In autumn 02:30 comes twice: the stamps are equal, the cursors are not, and readers go by these."""
    world = await begin(tmp_path, until=4)
    for n, hour in enumerate((0, 1)):
        moment = datetime(2026, 10, 25, hour, 30, tzinfo=UTC)
        await world.jobs.put(consolidation_job(ANN, SCOPE, TRANSCRIPT, MessageRange(4 * n, 4 * n + 4), START))
        await world.run(world.consolidator(zone="Europe/Berlin", now=still(moment)))
    entries = world.history.after(0)
    assert [each.timestamp for each in entries] == ["2026-10-25 02:30"] * 2
    assert [(each.cursor, each.start) for each in entries] == [(1, 0), (2, 4)]
    assert [each.start for each in world.history.after(1)] == [4]
