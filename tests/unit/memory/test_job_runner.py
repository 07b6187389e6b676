"""Durable work beside the turns: what is due is done, a few at a time, and nothing gets lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from agent.base.locks import WorkerSlots
from agent.memory.jobs.job_runner import JobKind, JobPace, JobRunner, RetryJobLater
from gateway.errors import ObjectsUnavailable, StoreUnavailable
from gateway.ports.journal import Job
from tests.fakes.clock import VirtualClock
from tests.fakes.memory import SCOPE, START, FakeJobs

QUICK, SLOW = (JobKind(name="think", pace=pace) for pace in (JobPace.QUICK, JobPace.SLOW))
WRITE, LONG = JobKind(name="write", pace=JobPace.QUICK), JobKind(name="long", pace=JobPace.LONG)


def job(name: str, kind: str = "think") -> Job:
    """Return a job that is due."""
    return Job(id=name, kind=kind, scope=SCOPE, payload={}, due_at=START)


@asynccontextmanager
async def at_work(background: JobRunner) -> AsyncIterator[None]:
    """Run *background* for the block."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(background.run())
        yield
        running.cancel()


async def test_only_kinds_with_a_handler_are_touched(clock: VirtualClock) -> None:
    """A job of a kind that this version does not know stays where it is, unleased."""
    jobs = FakeJobs()
    done: list[str] = []

    async def handle(each: Job) -> None:
        done.append(each.id)

    await jobs.put(job("a"))
    await jobs.put(job("b", kind="of-tomorrow"))
    async with at_work(JobRunner(jobs, {QUICK: handle}, now=lambda: START)):
        await asyncio.sleep(1)
        await jobs.put(job("c"))
        await asyncio.sleep(1)
    assert done == ["a", "c"]
    assert list(jobs.jobs) == ["b"]
    assert jobs.leased & set(jobs.jobs) == set()


async def test_no_job_begins_while_there_are_suspects(clock: VirtualClock) -> None:
    """What ends the process then is the suspect; a job that came meanwhile is not even leased."""
    jobs, slots = FakeJobs(), WorkerSlots(1)
    done: list[str] = []

    async def handle(each: Job) -> None:
        done.append(each.id)

    async with at_work(JobRunner(jobs, {QUICK: handle}, now=lambda: START, slots=slots)):
        await asyncio.sleep(1)
        async with slots.without_jobs(timedelta(seconds=30)):
            await jobs.put(job("a"))
            await asyncio.sleep(60)
            assert (done, jobs.leased) == ([], set())
        await asyncio.sleep(1)
    assert done == ["a"]


@pytest.mark.parametrize("steps", range(12))
async def test_cancelled_at_whichever_step_of_its_waiting_it_ends(clock: VirtualClock, steps: int) -> None:
    """A gateway that stops in the very moment at which a job is queued or done stops, and does not hang."""
    jobs = FakeJobs()

    async def handle(each: Job) -> None:
        pass

    running = asyncio.create_task(JobRunner(jobs, {QUICK: handle}, now=lambda: START).run())
    await asyncio.sleep(1)
    await jobs.put(job("a"))
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running}, timeout=60)
    assert running.cancelled()


async def test_slow_jobs_run_two_at_a_time_and_never_hold_up_quick_ones(clock: VirtualClock) -> None:
    """Models are slow and shared with the people who wait for answers; files are not."""
    jobs = FakeJobs()
    together: list[int] = []
    finished: list[tuple[float, str]] = []
    loop = asyncio.get_running_loop()
    begun = loop.time()
    background: JobRunner

    async def think(each: Job) -> None:
        together.append(background.running)
        await asyncio.sleep(30)
        finished.append((loop.time() - begun, each.id))

    async def write(each: Job) -> None:
        finished.append((loop.time() - begun, each.id))

    background = JobRunner(jobs, {WRITE: write, SLOW: think}, now=lambda: START)
    for name in "abc":
        await jobs.put(job(name))
    async with at_work(background):
        await asyncio.sleep(10)
        await jobs.put(job("w", kind="write"))
        await asyncio.sleep(60)
    assert sorted((round(at), name) for at, name in finished) == [(10, "w"), (30, "a"), (30, "b"), (60, "c")]
    assert max(together) == 2
    assert [(each.kind, each.done, each.failures) for each in await background.work()] == [
        ("think", 3, 0),
        ("write", 1, 0),
    ]


async def test_a_job_that_breaks_waits_and_the_others_go_on(clock: VirtualClock) -> None:
    """A bug in a handler is one job's trouble; it is tried again later, and the reason can be seen."""
    jobs = FakeJobs()
    done: list[str] = []

    async def handle(each: Job) -> RetryJobLater | None:
        if each.id == "bad":
            raise KeyError("bug")
        if each.id == "not yet":
            return RetryJobLater(timedelta(minutes=5), "the model is busy")
        done.append(each.id)
        return None

    for name in ("bad", "not yet", "good"):
        await jobs.put(job(name))
    background = JobRunner(jobs, {SLOW: handle}, now=lambda: START)
    async with at_work(background):
        await asyncio.sleep(1)
    assert done == ["good"]
    assert sorted(jobs.reasons) == ["KeyError", "the model is busy"]
    assert {name: each.attempts for name, each in jobs.jobs.items()} == {"bad": 1, "not yet": 1}
    assert jobs.jobs["bad"].due_at > START


@pytest.mark.parametrize("kind", [QUICK, SLOW], ids=["quick", "slow"])
async def test_a_store_that_is_down_costs_nothing_but_time(clock: VirtualClock, kind: JobKind) -> None:
    """A job whose end could not be stored is handled again: handlers change things once."""
    calls: list[str] = []

    class FlakyJobs(FakeJobs):
        """Cannot store the first end."""

        async def finish(self, job: Job) -> None:
            """Fail once."""
            if len(calls) == 1:
                raise StoreUnavailable("full")
            await super().finish(job)

    jobs = FlakyJobs()

    async def handle(each: Job) -> None:
        calls.append(each.id)

    await jobs.put(job("a"))
    async with at_work(JobRunner(jobs, {kind: handle}, now=lambda: START)):
        await asyncio.sleep(10)
    assert calls == ["a", "a"]
    assert jobs.jobs == {}


async def test_jobs_that_need_the_object_store_do_not_keep_others_from_running(clock: VirtualClock) -> None:
    """While it is down they wait outside the slots, with the reason and without an attempt; then each is done once."""
    jobs, done, is_away = FakeJobs(), list[str](), True

    async def handle(each: Job) -> None:
        if is_away and each.id.startswith("large"):
            raise ObjectsUnavailable("the bucket cannot be reached")
        done.append(each.id)

    for name in ("large-1", "large-2", "small"):
        for kind in ("think", "long"):
            await jobs.put(job(f"{name}-{kind}", kind))
    background = JobRunner(jobs, {SLOW: handle, LONG: handle}, at_once=1, now=lambda: jobs.now)
    async with at_work(background):
        await asyncio.sleep(60)
        assert sorted(done) == ["small-long", "small-think"]
        assert {each.attempts for each in jobs.jobs.values()} == {0}
        is_away, jobs.now = False, START + timedelta(seconds=10)
        await asyncio.sleep(60)
    assert sorted(done) == sorted(
        f"{name}-{kind}" for name in ("large-1", "large-2", "small") for kind in ("long", "think")
    )
    assert jobs.jobs == {}


async def test_it_sleeps_until_the_next_job_is_due_and_begins_that_in_the_same_second(clock: VirtualClock) -> None:
    """No poll in between delays a job, whenever in the sleep it was queued; the last ones are looked at each once."""
    jobs = FakeJobs()
    begun: list[tuple[str, datetime]] = []
    looked: list[datetime] = []
    started = clock.now()

    class CountedJobs(FakeJobs):
        """Notes when it is asked."""

        async def due(self, now: datetime, limit: int, *, kinds: Collection[str]) -> tuple[Job, ...]:
            """Return what is due."""
            looked.append(now)
            return await super().due(now, limit, kinds=kinds)

    jobs = CountedJobs()

    async def handle(each: Job) -> None:
        begun.append((each.id, clock.now()))

    def due_in(name: str, seconds: float) -> Job:
        return replace(job(name), due_at=started + timedelta(seconds=seconds))

    await jobs.put(due_in("c", 20.4))
    async with at_work(JobRunner(jobs, {QUICK: handle}, now=clock.now)):
        await asyncio.sleep(7)
        await jobs.put(due_in("a", 7.25))
        await jobs.put(due_in("b", 3))
        await asyncio.sleep(14)
        assert [(name, (at - started).total_seconds()) for name, at in begun] == [("b", 7), ("a", 7.25), ("c", 20.4)]
        looked.clear()
        await asyncio.sleep(600)
        assert len(looked) <= 21  # nothing is due: every 30 seconds, for a clock that was moved


async def test_a_clock_that_jumps_is_noticed(clock: VirtualClock) -> None:
    """A job of tomorrow begins within half a minute of the moment at which the clock says tomorrow."""
    jobs, ahead = FakeJobs(), timedelta()
    begun: list[str] = []

    async def handle(each: Job) -> None:
        begun.append(each.id)

    await jobs.put(replace(job("a"), due_at=clock.now() + timedelta(days=1)))
    async with at_work(JobRunner(jobs, {QUICK: handle}, now=lambda: clock.now() + ahead)):
        await asyncio.sleep(100)
        assert begun == []
        ahead = timedelta(days=1)
        await asyncio.sleep(31)
        assert begun == ["a"]


async def test_notifications_and_the_steps_of_tasks_do_not_wait_for_each_other(clock: VirtualClock) -> None:
    """Push services that hang take no slot of a task, and a task that takes long none of theirs."""
    jobs = FakeJobs()
    begun: list[str] = []

    async def hang(each: Job) -> None:
        begun.append(each.id)
        await asyncio.sleep(60)

    kinds = {JobKind(name=pace.value, pace=pace): hang for pace in (JobPace.TASK, JobPace.PUSH)}
    for n in range(40):
        await jobs.put(job(f"push{n}", kind="push"))
    for n in range(2):
        await jobs.put(job(f"task{n}", kind="task"))
    async with at_work(JobRunner(jobs, kinds, tasks_at_once=1, now=lambda: START)):
        await asyncio.sleep(1)
        assert [sum(each.startswith(kind) for each in begun) for kind in ("task", "push")] == [1, 32]
