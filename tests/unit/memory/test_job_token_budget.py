"""The token budget of background jobs: what a day may cost, over restarts and midnight, with nothing failing for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from agent.memory.jobs.job_runner import JobKind, JobPace, JobRunner
from agent.memory.jobs.token_budget import TokenBudget
from gateway.ports.journal import Job
from gateway.store.usage import SqlUsage
from tests.fakes.clock import VirtualClock
from tests.fakes.memory import SCOPE, START, FakeJobs
from tests.fakes.meter import FakeMeter

EVENING = datetime(2026, 11, 21, 21, 30, tzinfo=UTC)  # 22:30 in Berlin


@dataclass
class ListedUsage(SqlUsage):
    """Usage rows in a list, summed as the journal sums them."""

    rows: list[tuple[datetime, str, int]] = field(default_factory=list)
    asked: int = 0

    async def totals(self, *, since: datetime, person: str = "", chat: str = "") -> tuple[Mapping[str, Any], ...]:
        """Return a row per call."""
        self.asked += 1
        return tuple(
            {"purpose": purpose, "tokens_in": tokens - 1, "tokens_out": 1}
            for at, purpose, tokens in self.rows
            if at >= since
        )


@dataclass
class MovedClock:
    """A clock that a test moves."""

    now: datetime = EVENING

    def __call__(self) -> datetime:
        return self.now


def budget_of(rows: ListedUsage, time: MovedClock, limit: int = 100_000) -> TokenBudget:
    """Return a budget in Berlin."""
    return TokenBudget(rows, limit=limit, zone="Europe/Berlin", now=time)


def take(
    token_budget: TokenBudget,
    rows: ListedUsage,
    time: MovedClock,
    job: str,
    tokens: int,
    purpose: str = "consolidation",
) -> None:
    """Make a model call for a job, as the client accounts for it."""
    rows.rows.append((time.now, purpose, tokens))
    token_budget.note(purpose, job, tokens)


async def test_a_restart_spends_nothing_twice() -> None:
    """What the rows of the day say is spent, whatever process wrote them; answers are on no budget of this kind."""
    rows, time = ListedUsage(), MovedClock()
    token_budget = budget_of(rows, time)
    assert await token_budget.startable_jobs(2) == 2
    for job, tokens, purpose in (("a", 60_000, "dream"), ("t", 900_000, "answer"), ("b", 30_000, "note")):
        token_budget.reserve(job)
        take(token_budget, rows, time, job, tokens, purpose)
        token_budget.settle(job)
    assert (await token_budget.budget()).spent == 90_000
    again = budget_of(rows, time)
    assert (await again.budget()).spent == 90_000
    assert await again.startable_jobs(2) == 1
    assert rows.asked == 2  # once a process and day, not once a job


async def test_what_is_under_way_is_reserved() -> None:
    """Two that would fit one by one do not begin at once; settled for less, there is room again."""
    rows, time = ListedUsage(), MovedClock()
    token_budget = budget_of(rows, time, limit=15_000)
    assert await token_budget.startable_jobs(2) == 1
    token_budget.reserve("a")
    assert await token_budget.startable_jobs(1) == 0
    assert not (await token_budget.budget()).is_spent
    take(token_budget, rows, time, "a", 3_000)
    assert await token_budget.startable_jobs(1) == 0
    token_budget.settle("a")
    assert await token_budget.startable_jobs(1) == 1


async def test_midnight_is_that_of_the_zone() -> None:
    """Spent at 22:30 in Berlin: nothing begins at 23:59, and at 00:00, 23:00 in UTC, the new day's budget is whole."""
    rows, time = ListedUsage(), MovedClock()
    token_budget = budget_of(rows, time)
    assert await token_budget.startable_jobs(1)
    take(token_budget, rows, time, "a", 120_000)
    time.now = EVENING + timedelta(minutes=89)
    assert await token_budget.startable_jobs(1) == 0
    assert (await token_budget.budget()).is_spent
    time.now = EVENING + timedelta(minutes=90)
    assert await token_budget.startable_jobs(1) == 1
    assert (await token_budget.budget()).spent == 0


async def test_a_small_budget_is_one_job_a_day_and_none_is_no_limit() -> None:
    """A limit below what a job takes does not mean that nothing is ever summarised."""
    rows, time = ListedUsage(), MovedClock()
    small = budget_of(rows, time, limit=500)
    assert await small.startable_jobs(2) == 1
    take(small, rows, time, "a", 9_000)
    assert await small.startable_jobs(2) == 0
    endless = budget_of(rows, time, limit=0)
    assert await endless.startable_jobs(2) == 2
    assert not (await endless.budget()).is_spent


async def test_jobs_wait_for_tomorrow_and_that_is_no_failure(clock: VirtualClock) -> None:
    """Spent: slow jobs stay as they are, quick and long ones run, and the next day everything goes on by itself."""
    rows, time, jobs, meter = ListedUsage(), MovedClock(), FakeJobs(), FakeMeter()
    token_budget = budget_of(rows, time, limit=20_000)
    done: list[str] = []

    async def handle(job: Job) -> None:
        done.append(job.id)
        if job.kind == "think":
            take(token_budget, rows, time, job.id, 15_000)

    for name, kind in (("a", "think"), ("b", "think"), ("c", "write"), ("d", "pack")):
        await jobs.put(Job(id=name, kind=kind, scope=SCOPE, payload={}, due_at=START))
    background = JobRunner(
        jobs,
        {
            JobKind(name="write", pace=JobPace.QUICK): handle,
            JobKind(name="think", pace=JobPace.SLOW): handle,
            JobKind(name="pack", pace=JobPace.LONG): handle,
        },
        at_once=1,
        token_budget=token_budget,
        now=time,
        meter=meter,
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(background.run())
        await asyncio.sleep(60)
        assert sorted(done) == ["a", "c", "d"]
        assert jobs.jobs["b"].attempts == 0
        assert jobs.reasons == []
        think = next(each for each in await background.work() if each.kind == "think")
        assert (think.waiting, think.done, think.failures, think.running) == (1, 1, 0, 0)
        budget = await background.budget()
        assert budget is not None
        assert budget.is_spent
        await background.record_metrics()
        assert (meter.gauges["background_tokens"], meter.gauges["background_tokens_limit"]) == (15_000, 20_000)
        time.now += timedelta(hours=2)
        await asyncio.sleep(60)
        assert sorted(done) == ["a", "b", "c", "d"]
        running.cancel()
