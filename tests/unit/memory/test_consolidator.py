"""Killed at every write of a consolidation: one entry, one fact, the right pointer, and it is paid for once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent.llm.port import ChatReply, ChatRequest, Sink, Tokens, ToolCall
from agent.memory.background import Later
from agent.memory.consolidation.slice import Slice
from agent.memory.consolidator import Consolidator
from agent.memory.due import APPLY, SUMMARISE, consolidation
from agent.memory.files import lines as build
from agent.memory.files.disk import Disk
from agent.memory.files.documents import FileDocuments
from agent.memory.files.projector import Projector
from agent.memory.history.log import HistoryLog
from agent.memory.reading import Passages
from agent.memory.revising import Reviser
from agent.memory.scopes import scope_folder
from gateway.errors import ModelUnreachable
from gateway.events import SessionKey
from gateway.ports import EndState, Job, SessionRow, TurnRecord
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, Crash, FakeJobs, FakeRecords, FaultyDisk, turn_name

TURNS = 6


class Model:
    """Summarises politely, and counts."""

    name = "test/model"

    def __init__(self) -> None:
        self.calls = 0
        self.fails = 0

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Summarise."""
        self.calls += 1
        if self.fails:
            self.fails -= 1
            raise ModelUnreachable("down")
        saved = {"history_entry": "[2026-11-21 21:00] They talked.", "memory_update": "- old fact\n- new fact"}
        call = ToolCall("c", "save_memory", json.dumps(saved))
        return ChatReply(text="", tool_calls=(call,), model=self.name, tokens=Tokens(1, 1), cost=0.0)

    async def warm(self) -> None:
        """Nothing."""

    async def close(self) -> None:
        """Nothing."""


class World:
    """A home with six turns in a transcript, and a consolidator over it whose disk can die."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.records = FakeRecords()
        self.jobs = FakeJobs()
        self.model = Model()
        self.adopted: list[TurnRecord] = []
        for n in range(TURNS):
            turn = turn_name(n)
            said = (
                build.message(2 * n, turn, "user", f"question {n}", START, mid=f"m{n}"),
                build.message(2 * n + 1, turn, "assistant", f"answer {n}", START),
            )
            self.records.commit(
                TurnRecord(
                    turn=turn,
                    key=ANN,
                    transcript=TRANSCRIPT,
                    scope=SCOPE,
                    outcome=EndState.ANSWERED,
                    lines=said,
                    from_index=2 * n,
                    to_index=2 * n + 2,
                    inbox=(),
                    at=START,
                )
            )

    def consolidator(self, disk: Disk | None = None) -> Consolidator:
        """Return what a process has after its start."""
        disk = disk or Disk()
        projector = Projector(self.home, self.records)
        documents = FileDocuments(self.home, disk=disk)

        async def session(key: SessionKey) -> SessionRow:
            return self.records.rows[key]

        return Consolidator(
            home=self.home,
            jobs=self.jobs,
            passages=Passages(self.home, self.records, flush=projector.flush),
            records=self.records,
            session=session,
            adopt=self.adopted.append,
            writing=asyncio.Lock(),
            reviser=Reviser(self.home, documents, now=lambda: START, disk=disk),
            model=self.model,
            zone=lambda _: "UTC",
            now=lambda: START,
            disk=disk,
        )

    async def run(self, consolidator: Consolidator) -> None:
        """Run every job that is there to its end, as the background does."""
        handlers = {**consolidator.slow, **consolidator.quick}
        while jobs := [job for job in self.jobs.jobs.values() if job.kind in handlers]:
            for job in jobs:
                later = await handlers[job.kind](job)
                if later is None:
                    await self.jobs.finish(job)
                else:
                    await self.jobs.put_off(job, later.delay, later.reason, counts=later.counts)

    def pointers(self) -> list[int]:
        """Return every pointer that was committed, in order."""
        lines = [line for each in self.adopted for line in each.lines]
        return [line["last_consolidated"] for line in lines]

    @property
    def history(self) -> HistoryLog:
        """Return the scope's history."""
        return HistoryLog(scope_folder(self.home, SCOPE) / "memory")


async def begin(home: Path) -> World:
    """Return a world with a fact in memory and a consolidation of the first eight messages due."""
    world = World(home)
    await FileDocuments(home).write(SCOPE, "MEMORY.md", "- old fact\n", was="", why="t")
    await world.jobs.put(consolidation(ANN, SCOPE, TRANSCRIPT, Slice(0, 8), START))
    return world


async def test_killed_at_every_write_there_is_one_of_everything(tmp_path: Path) -> None:
    """The model is asked once unless the kill came before its answer was stored; nothing is there twice."""
    for at in range(200):
        world = await begin(tmp_path / str(at))
        disk = FaultyDisk(at=at, error=Crash())
        try:
            await world.run(world.consolidator(disk))
        except Crash:
            await world.run(world.consolidator())
        else:
            assert at > 5
            break
        assert [(each.start, each.end) for each in world.history.after(0)] == [(0, 8)], at
        assert set(world.pointers()) == {8}
        assert len({each.turn for each in world.adopted}) == 1
        assert (await FileDocuments(world.home).read(SCOPE, "MEMORY.md")).text == "- old fact\n- new fact\n"
        assert world.model.calls == 1, at


async def test_after_three_failures_the_messages_themselves_are_kept(tmp_path: Path) -> None:
    """The window moves on, memory is as it was, and the raw archive holds what was said."""
    world = await begin(tmp_path)
    world.model.fails = 99
    await world.run(world.consolidator())
    assert world.model.calls == 3
    [entry] = world.history.after(0)
    assert entry.content.startswith("[raw] 8 messages")
    assert world.pointers() == [8]
    raw = (scope_folder(tmp_path, SCOPE) / "memory" / "raw.jsonl").read_text()
    assert all(f"question {n}" in raw for n in range(4))
    assert "question 4" not in raw
    assert (await FileDocuments(tmp_path).read(SCOPE, "MEMORY.md")).text == "- old fact\n"


async def test_a_job_that_was_noticed_twice_is_done_once(tmp_path: Path) -> None:
    """While an answer waits to be applied, and after the pointer has moved, the same span is nobody's any more."""
    world = await begin(tmp_path)
    consolidator = world.consolidator()
    [job] = world.jobs.jobs.values()
    assert await consolidator.consolidate(job) is None
    await world.jobs.finish(job)
    later = replace(job, payload={**job.payload, "end": 10})
    assert await consolidator.consolidate(later) is None
    await world.run(consolidator)
    assert await consolidator.consolidate(later) is None
    assert world.model.calls == 1
    assert [(each.start, each.end) for each in world.history.after(0)] == [(0, 8)]


async def test_the_summary_of_an_archive_waits_for_what_is_under_way(tmp_path: Path) -> None:
    """/new comes between answer and pointer: what the archive's summary takes begins where the last one ended."""
    world = await begin(tmp_path)
    consolidator = world.consolidator()
    [job] = world.jobs.jobs.values()
    await consolidator.consolidate(job)
    await world.jobs.finish(job)
    payload = {"key": str(ANN), "transcript": TRANSCRIPT, "turn": "t", "length": 2 * TURNS}
    ending = Job(id=f"{SUMMARISE}:{TRANSCRIPT}", kind=SUMMARISE, scope=SCOPE, payload=payload, due_at=START)
    await world.jobs.put(ending)
    waits = await consolidator.summarise(ending)
    assert waits == Later(waits.delay, waits.reason, counts=False) if waits else pytest.fail("it did not wait")
    assert [each.kind for each in world.jobs.jobs.values() if each.kind == APPLY] == [APPLY]
    await world.run(consolidator)
    assert [(each.start, each.end) for each in world.history.after(0)] == [(0, 8), (8, 12)]
    assert world.model.calls == 2


async def test_of_a_transcript_that_is_in_a_summary_there_is_nothing_to_summarise(tmp_path: Path) -> None:
    """/new of a conversation that was just consolidated whole asks no model."""
    world = await begin(tmp_path)
    await world.jobs.finish(next(iter(world.jobs.jobs.values())))
    await world.jobs.put(consolidation(ANN, SCOPE, TRANSCRIPT, Slice(0, 12), START))
    consolidator = world.consolidator()
    await world.run(consolidator)
    payload = {"key": str(ANN), "transcript": TRANSCRIPT, "turn": "t", "length": 12}
    await world.jobs.put(Job(id="s", kind=SUMMARISE, scope=SCOPE, payload=payload, due_at=START))
    await world.run(consolidator)
    assert world.model.calls == 1
