"""An outage is not an answer: no summary, note or flush is lost, and a raw archive is summarised later."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from agent.base.scopes import scope_folder
from agent.memory.prompt.due_jobs import NOTE, SUMMARISE, flush_job
from agent.memory.storage.messages import MessageRange
from gateway.errors import FailureCause, ModelRateLimited, ModelRefused, ModelTimeout, ModelUnreachable
from gateway.ports.journal import Job
from tests.fakes.consolidation_scene import TURNS, ConsolidationScene, begin
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, killed_runs

OUTAGES = [
    ModelUnreachable("m: InternalServerError, HTTP 500"),
    ModelRateLimited("m: RateLimitError, HTTP 429"),
    ModelTimeout("m: no answer in time"),
    ModelRefused("m: AuthenticationError, HTTP 401", FailureCause.KEY),
]


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda error: type(error).__name__)
async def test_an_outage_of_two_days_loses_no_summary(tmp_path: Path, outage: Exception) -> None:
    """Summary, note and flush wait with backoff, in a new process each time, and are written when the model answers."""
    world = await begin(tmp_path)
    payload = {"key": str(ANN), "transcript": TRANSCRIPT, "length": 2 * TURNS}
    await world.jobs.put(Job(id=f"{NOTE}:{TRANSCRIPT}", kind=NOTE, scope=SCOPE, payload=payload, due_at=START))
    await world.jobs.put(flush_job(ANN, SCOPE, TRANSCRIPT, MessageRange(0, 12), START))
    end = START + timedelta(days=2)
    world.model.outage, world.model.is_down = outage, lambda: world.jobs.now < end
    memory = scope_folder(tmp_path, SCOPE) / "memory"
    await world.run_until(end - timedelta(seconds=1))
    assert world.history.after(0) == ()
    assert not list(memory.glob("20*.md"))
    assert world.model.calls <= 3 * 12  # three jobs, with growing pauses
    await world.run_until(end + timedelta(days=1))
    [entry] = world.history.after(0)
    assert (entry.raw, entry.start, entry.end) == ("", 0, 8)
    assert "[raw]" not in entry.content
    assert not (memory / "raw.jsonl").exists()
    note, flushed = sorted(memory.glob("20*.md"))
    assert "- a lasting fact" in flushed.read_text()
    assert "They talked." in note.read_text()
    assert world.jobs.jobs == {}


async def test_pauses_grow_to_a_day(tmp_path: Path) -> None:
    """A month without the model costs one call a day."""
    world = await begin(tmp_path)
    asked: list[datetime] = []

    def is_down() -> bool:
        asked.append(world.jobs.now)
        return True

    world.model.is_down = is_down
    await world.run_until(START + timedelta(days=30))
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses[0] == timedelta(minutes=2)
    assert pauses == sorted(pauses)
    assert pauses[-1] == timedelta(days=1)
    assert 35 <= len(asked) <= 45


async def test_only_bad_answers_count(tmp_path: Path) -> None:
    """Bad, outage, bad, outage, a summary: no raw archive, whatever came in between."""
    world = await begin(tmp_path)
    outages = iter([False, True, False, True, True, True, False])
    world.model.is_down, world.model.bad_answers = lambda: next(outages), 2
    await world.run_until(START + timedelta(days=3))
    [entry] = world.history.after(0)
    assert entry.content == "[2026-11-21 21:00] They talked."


async def test_a_raw_archive_becomes_a_summary_later(tmp_path: Path) -> None:
    """A day later, in its place: the same cursor and range, HISTORY.md and MEMORY.md included, asked once."""
    world = await begin(tmp_path)
    world.model.bad_answers = 3
    await world.run_until(START + timedelta(hours=12))
    [raw] = world.history.after(0)
    assert raw.content.startswith("[raw] 8 messages")
    await world.run_until(START + timedelta(days=40))
    [entry] = world.history.after(0)
    assert (entry.cursor, entry.start, entry.end, entry.timestamp) == (1, 0, 8, raw.timestamp)
    assert (entry.content, entry.raw) == ("[2026-11-21 21:00] They talked.", "")
    assert "[raw]" not in (scope_folder(tmp_path, SCOPE) / "memory" / "HISTORY.md").read_text()
    assert await world.memory() == "- old fact\n- new fact\n"
    assert world.model.calls == 4
    await world.raw_archives().catch_up()
    assert world.jobs.jobs == {}


async def test_a_raw_archive_without_a_job_is_found_at_the_start(tmp_path: Path) -> None:
    """An earlier version left it; bad answers are tried again with pauses of days."""
    world = await begin(tmp_path)
    world.model.bad_answers = 5
    await world.run(world.consolidator())
    world.jobs.jobs.clear()
    await world.raw_archives().catch_up()
    await world.run_until(START + timedelta(days=2))
    assert world.history.after(0)[0].raw
    await world.run_until(START + timedelta(days=4))
    assert not world.history.after(0)[0].raw


async def test_killed_at_every_write_of_a_raw_summary(tmp_path: Path) -> None:
    """One entry, one fact; the model is asked once more unless the answer was stored."""

    async def prepare(home: Path) -> ConsolidationScene:
        world = await begin(home)
        world.model.bad_answers = 3
        await world.run(world.consolidator())
        return world

    kills = killed_runs(tmp_path, prepare, lambda world, disk: world.run(world.updates(disk)), more_than=1)
    async for at, world in kills:
        [entry] = world.history.after(0)
        assert (entry.content, entry.raw) == ("[2026-11-21 21:00] They talked.", ""), at
        memory = scope_folder(world.home, SCOPE) / "memory"
        assert (memory / "HISTORY.md").read_text() == "[2026-11-21 21:00] They talked.\n\n", at
        assert not list(memory.glob("HISTORY.md.*")), at
        assert await world.memory() == "- old fact\n- new fact\n"
        assert world.model.calls == 4, at


async def test_a_conversation_of_greetings_has_no_summary(tmp_path: Path) -> None:
    """Five times "hi" and /new: no entry, no note, no call of the model; with one question more there are both."""
    for question, summaries in (("hi", 0), ("hi, my cat is called Tom", 1)):
        world = ConsolidationScene(tmp_path / str(summaries), question=question, turns=5, is_numbered=False)
        payload = {"key": str(ANN), "transcript": TRANSCRIPT, "length": 10}
        ending = Job(id=f"{SUMMARISE}:{TRANSCRIPT}", kind=SUMMARISE, scope=SCOPE, payload=payload, due_at=START)
        await world.jobs.put(ending)
        await world.run_until(START + timedelta(days=1))
        assert len(world.history.after(0)) == summaries
        assert world.model.calls == 2 * summaries
        assert len(list((world.home / SCOPE / "memory").glob("20*.md"))) == summaries
