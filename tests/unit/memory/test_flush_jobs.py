"""The flush before a compaction, as jobs: one section in each cycle; strangers' words never."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.base.scopes import scope_folder
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.prompt.due_jobs import APPLY, FLUSH, flush_job, prompt_of
from agent.memory.storage.messages import MessageRange
from tests.fakes.consolidation_scene import ConsolidationScene, begin
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT

SECTION = "## Flush at 21:00 (session: telegram:42)\n\n- a lasting fact\n"


async def due(home: Path, **fields: Any) -> ConsolidationScene:
    """Return a world in which a compaction of the first eight messages is due, and a flush of all twelve before."""
    world = await begin(home, **fields)
    await world.jobs.put(flush_job(ANN, SCOPE, TRANSCRIPT, MessageRange(0, 12), START))
    return world


def days(home: Path) -> Sequence[Path]:
    """Return the days' files."""
    return sorted((scope_folder(home, SCOPE) / "memory").glob("20*.md"))


async def test_a_compaction_waits_for_its_flush(tmp_path: Path) -> None:
    """What lasts is written down before the messages leave the window; waiting is no failed attempt."""
    world = await due(tmp_path)
    consolidator = world.consolidator()
    job = next(each for each in world.jobs.jobs.values() if prompt_of(each) != FLUSH)
    waits = await consolidator.ask(job)
    assert isinstance(waits, RetryJobLater)
    assert not waits.counts
    await world.run(world.updates())
    assert world.pointers() == [8]
    assert days(tmp_path)[0].read_text() == SECTION


async def test_what_becomes_due_together_goes_in_a_row(tmp_path: Path) -> None:
    """The flush queues its compaction when it is written down, or when there is nothing to write."""
    for origin in ("user", "untrusted"):
        world = await due(tmp_path / origin, origin=origin)
        world.jobs.jobs.clear()
        await world.jobs.put(flush_job(ANN, SCOPE, TRANSCRIPT, MessageRange(0, 12), START, then=MessageRange(0, 8)))
        await world.run(world.updates())
        assert world.pointers() == [8]
        assert world.jobs.reasons == []
        assert bool(days(tmp_path / origin)) is (origin == "user")


async def test_a_cycle_is_flushed_once_and_a_pointer_begins_the_next(tmp_path: Path) -> None:
    """Also after a restart, when nobody remembers that it was done."""
    world = await due(tmp_path)
    job = next(each for each in world.jobs.jobs.values() if prompt_of(each) == FLUSH and each.kind != APPLY)
    await world.run(world.updates())
    assert await world.flushes().ask(job) is None
    assert world.jobs.jobs == {}
    assert world.model.calls == 2
    world.model.bullets = "- another fact"
    await world.jobs.put(flush_job(ANN, SCOPE, TRANSCRIPT, MessageRange(8, 12), START))
    await world.run(world.flushes())
    assert days(tmp_path)[0].read_text().count("## Flush at") == 2


async def test_silence_writes_nothing(tmp_path: Path) -> None:
    """No file and no second question."""
    world = await due(tmp_path)
    world.model.bullets = "[silent]"
    job = next(each for each in world.jobs.jobs.values() if prompt_of(each) == FLUSH and each.kind != APPLY)
    await world.run(world.flushes())
    assert days(tmp_path) == []
    assert await world.flushes().ask(job) is None
    assert world.model.calls == 1


async def test_words_of_strangers_are_left_out(tmp_path: Path) -> None:
    """A tainted window is not asked about at all: it never becomes memory by this door."""
    world = await due(tmp_path, origin="untrusted")
    await world.run(world.flushes())
    assert days(tmp_path) == []
    assert world.model.calls == 0


async def test_the_day_is_the_scopes_own(tmp_path: Path) -> None:
    """At 21:00 UTC it is the next morning in Tokyo."""
    world = await due(tmp_path)
    await world.run(world.flushes(zone="Asia/Tokyo"))
    [day] = days(tmp_path)
    assert day.name == "2026-11-22.md"
    assert day.read_text().startswith("## Flush at 06:00 (session: telegram:42)\n")


async def test_what_is_forgotten_meanwhile_is_not_flushed(tmp_path: Path) -> None:
    """The answer was made of what is gone: it is asked anew. An answer taken out of the queue is not written."""
    world = await due(tmp_path)
    flushes = world.flushes()
    job = next(each for each in world.jobs.jobs.values() if prompt_of(each) == FLUSH and each.kind != APPLY)
    async with world.writing:  # the model has answered, and its answer waits for the lock
        asking = asyncio.create_task(flushes.ask(job))
        await world.model.is_asked.wait()
        await world.documents.set_epoch(SCOPE, "t1")
    later = await asking
    assert isinstance(later, RetryJobLater)
    assert not later.counts
    assert not any(each.kind == APPLY for each in world.jobs.jobs.values())
    assert await flushes.ask(job) is None
    stored = next(each for each in world.jobs.jobs.values() if each.kind == APPLY)
    await world.jobs.finish(stored)
    await flushes.apply(stored)
    assert days(tmp_path) == []


async def test_messages_that_are_not_in_their_file_yet_are_waited_for(tmp_path: Path) -> None:
    """Three times; then what is there is looked through."""
    world = await due(tmp_path)
    job = flush_job(ANN, SCOPE, TRANSCRIPT, MessageRange(0, 99), START)
    assert isinstance(await world.flushes().ask(job), RetryJobLater)
    assert await world.flushes().ask(replace(job, attempts=3)) is None
    assert world.model.calls == 1


async def test_a_flush_shows_what_fits(tmp_path: Path) -> None:
    """The newest lines that the model takes; the oldest are in the summary that follows."""
    world = await due(tmp_path, question="why " * 200)
    world.prompt_limit = 1_000
    await world.run(world.flushes())
    [shown] = world.model.shown
    assert len(shown) < 4_000
    assert "answer 5" in shown
    assert "answer 0" not in shown
