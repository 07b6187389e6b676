"""What was to be remembered is remembered once, and before the scope's next turn reads its memory."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest

from agent.memory.history.folder_store import FileDocumentStore
from agent.memory.jobs.chat_edits import REMEMBER_JOBS, MemoryJobs, append_bullet, as_bullet
from agent.memory.jobs.job_runner import JobRunner
from gateway.ports.journal import SessionRow
from gateway.ports.memory import HistoryUpdate, ScopeDocument
from tests.fakes.clock import VirtualClock
from tests.fakes.histories import open_history
from tests.fakes.memory import ANN, SCOPE, START, FakeJobs, FaultyDisk, remember_job


class ContestedDocuments(FileDocumentStore):
    """Documents of which somebody else writes first, *times* times."""

    times = 0

    async def write(
        self, scope: str, name: str, text: str, *, was: str, why: str, by: str = "", beside: HistoryUpdate | None = None
    ) -> ScopeDocument | None:
        """Lose the race, then behave."""
        if self.times:
            self.times -= 1
            document = await self.read(scope, name)
            await super().write(scope, name, f"{document.text}- other {self.times}\n", was=document.rev, why="other")
        return await super().write(scope, name, text, was=was, why=why, by=by, beside=beside)


async def memory(home: Path) -> str:
    """Return MEMORY.md of the scope."""
    return (await FileDocumentStore(home).read(SCOPE, "MEMORY.md")).text


async def test_a_turn_finds_applied_what_earlier_ones_wanted_remembered(tmp_path: Path) -> None:
    """Also what was queued before a restart, which nobody noted in this process."""
    jobs = FakeJobs()
    await jobs.put(remember_job("Ann likes tea", n=1))
    work = MemoryJobs(jobs, FileDocumentStore(tmp_path), history=open_history())
    await work.settle(SCOPE)
    assert await memory(tmp_path) == "- Ann likes tea\n"
    assert jobs.jobs == {}
    later = remember_job("Ann has a dog", n=2)
    await jobs.put(later)
    work.note(later)
    await work.settle(SCOPE)
    assert await memory(tmp_path) == "- Ann likes tea\n- Ann has a dog\n"


async def test_settling_costs_nothing_when_nothing_is_pending(tmp_path: Path) -> None:
    """The journal is asked only where the claim has found a fact, knew another scope, or one was committed since."""
    jobs = FakeJobs()
    work = MemoryJobs(jobs, FileDocumentStore(tmp_path), history=open_history())
    row = SessionRow(key=ANN, transcript="t" * 16, next_index=0, created_at=START, scope=SCOPE, has_facts=False)
    await work.settle_turn(row, SCOPE)
    work.note(replace(remember_job("x"), kind="summarise"))
    await work.settle_turn(row, SCOPE)
    assert jobs.asked[SCOPE] == 0
    work.note(remember_job("x"))
    for _ in range(2):
        await work.settle_turn(row, SCOPE)
    assert jobs.asked == {SCOPE: 1}
    await work.settle_turn(replace(row, scope="people/before"), SCOPE)
    await work.settle_turn(replace(row, has_facts=True), SCOPE)
    assert jobs.asked == {SCOPE: 3, "shared": 2}


class SlowDocuments(FileDocumentStore):
    """Documents whose writes wait until they may go on; the first one fails if it is told so."""

    def __init__(self, home: Path, *, is_broken: bool = False) -> None:
        super().__init__(home)
        self.begun, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.is_broken = is_broken

    async def write(
        self, scope: str, name: str, text: str, *, was: str, why: str, by: str = "", beside: HistoryUpdate | None = None
    ) -> ScopeDocument | None:
        """Wait, then write."""
        self.begun.set()
        await self.may_go_on.wait()
        if self.is_broken:
            self.is_broken = False
            raise ZeroDivisionError
        return await super().write(scope, name, text, was=was, why=why, by=by, beside=beside)


async def test_nobody_reads_memory_while_another_applies_what_is_pending(tmp_path: Path) -> None:
    """Two conversations of a person at once: the second waits for the first, and does its work if that fails."""
    for is_broken in (False, True):
        jobs = FakeJobs()
        fact = f"Ann likes {is_broken}"
        await jobs.put(remember_job(fact))
        documents = SlowDocuments(tmp_path, is_broken=is_broken)
        work = MemoryJobs(jobs, documents, history=open_history())
        first = asyncio.create_task(work.settle(SCOPE))
        await documents.begun.wait()
        second = asyncio.create_task(work.settle(SCOPE))
        await asyncio.sleep(0)
        assert not second.done()
        documents.may_go_on.set()
        outcome, _ = await asyncio.gather(first, second, return_exceptions=True)
        assert isinstance(outcome, ZeroDivisionError) is is_broken
        assert fact in await memory(tmp_path)
        assert jobs.jobs == {}


async def test_who_waits_for_a_settlement_shares_the_next_one(tmp_path: Path) -> None:
    """Turns of many chats at once, all after what everybody shares: two queries, not one for each, one by one."""
    jobs = FakeJobs()
    documents = SlowDocuments(tmp_path)
    work = MemoryJobs(jobs, documents, history=open_history())
    await jobs.put(remember_job("Ann likes tea", n=1))
    first = asyncio.create_task(work.settle(SCOPE))
    await documents.begun.wait()
    asked = jobs.asked[SCOPE]
    waiting = [asyncio.create_task(work.settle(SCOPE)) for _ in range(20)]
    await asyncio.sleep(0)
    await jobs.put(remember_job("Ann has a dog", n=2))  # which the first has not found
    documents.may_go_on.set()
    await asyncio.gather(first, *waiting)
    assert await memory(tmp_path) == "- Ann likes tea\n- Ann has a dog\n"
    assert jobs.asked[SCOPE] - asked == 2  # the list, and the fact once more before it is applied


async def test_twice_is_once(tmp_path: Path) -> None:
    """A crash between the file and the journal, or two sessions settling at once: one bullet."""
    jobs = FakeJobs()
    job = remember_job("Ann likes tea")
    work = MemoryJobs(jobs, FileDocumentStore(tmp_path), history=open_history())
    for _ in range(2):
        await jobs.put(job)
        work.note(job)
        await asyncio.gather(
            work.settle(SCOPE), MemoryJobs(jobs, FileDocumentStore(tmp_path), history=open_history()).settle(SCOPE)
        )
    assert await memory(tmp_path) == "- Ann likes tea\n"


async def test_a_lost_race_is_run_again(tmp_path: Path) -> None:
    """Both texts stand afterwards; somebody's hand edit is never written over."""
    documents = ContestedDocuments(tmp_path)
    documents.times = 2
    jobs = FakeJobs()
    await jobs.put(remember_job("Ann likes tea"))
    await MemoryJobs(jobs, documents, history=open_history()).settle(SCOPE)
    assert await memory(tmp_path) == "- other 1\n- other 0\n- Ann likes tea\n"
    assert jobs.jobs == {}


async def test_after_three_lost_races_the_job_waits(tmp_path: Path) -> None:
    """It stays in the journal, and the next turn tries again."""
    documents = ContestedDocuments(tmp_path)
    documents.times = 3
    jobs = FakeJobs()
    await jobs.put(remember_job("Ann likes tea"))
    work = MemoryJobs(jobs, documents, history=open_history())
    await work.settle(SCOPE)
    [job] = jobs.jobs.values()
    assert job.attempts == 1
    await work.settle(SCOPE)
    assert (await memory(tmp_path)).endswith("- Ann likes tea\n")


async def test_a_full_disk_keeps_the_job(tmp_path: Path) -> None:
    """A turn goes on without; the job is there when the disk is back."""
    disk = FaultyDisk(at=1, error=OSError(errno.ENOSPC, "full"))
    jobs = FakeJobs()
    await jobs.put(remember_job("Ann likes tea"))
    work = MemoryJobs(jobs, FileDocumentStore(tmp_path, disk=disk), history=open_history())
    await work.settle(SCOPE)
    assert len(jobs.jobs) == 1
    await work.settle(SCOPE)
    assert await memory(tmp_path) == "- Ann likes tea\n"


async def test_words_of_strangers_wait_for_a_yes(tmp_path: Path, clock: VirtualClock) -> None:
    """Untrusted text is never remembered by itself, neither before a turn nor in the background."""
    jobs = FakeJobs()
    await jobs.put(remember_job("Ann's password is 1234", origin="untrusted"))
    work = MemoryJobs(jobs, FileDocumentStore(tmp_path), history=open_history())
    await work.settle(SCOPE)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(JobRunner(jobs, {REMEMBER_JOBS: work.apply}, now=lambda: START).run())
        await asyncio.sleep(1)
        running.cancel()
    assert jobs.reasons == ["waits for a yes"]
    assert await memory(tmp_path) == ""
    assert len(jobs.jobs) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "- tea\n"),
        ("# Likes\n", "# Likes\n\n- tea\n"),
        ("- milk", "- milk\n- tea\n"),
        ("* tea\n", "* tea\n"),
        ("tea\n", "tea\n\n- tea\n"),
        ("-  tea \r\n- x", "-  tea \r\n- x"),
    ],
)
def test_a_bullet_joins_the_list(text: str, expected: str) -> None:
    """At the end, as one line; what is there already is not said twice."""
    assert append_bullet(text, "- tea") == expected


@pytest.mark.parametrize(("fact", "bullet"), [(" a\n b ", "- a b"), ("- a", "- a"), (" \n", None), ("* - a", "- a")])
def test_a_fact_is_one_line(fact: str, bullet: str | None) -> None:
    """A fact with line breaks cannot smuggle in headings or a second fact."""
    assert as_bullet(fact) == bullet
