"""Dream in the gateway: one durable job per scope, from new history entries to one version of the documents.

Model answers are stored before they are applied, and every step is idempotent. After a crash no call is repeated, and
there is one version and one moved cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import structlog
from cronsim import CronSim

from agent.base.scopes import SHARED
from agent.llm.chat_model import ChatModel
from agent.llm.model_calls import ModelProvider, UnusableAnswer, reduced_limit, unlimited
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.update.dream_applier import DreamApplier, DreamNotifier, DreamReport, DreamRequester
from agent.memory.update.dream_phases import (
    DREAM,
    DreamMaterial,
    DreamPass,
    DreamPhaseRunner,
    DreamRun,
    drop_run,
    is_untrusted,
    load_run,
    names_of,
    save_run,
    shown_in,
    start_run,
)
from gateway.backoff import exponential_delay
from gateway.errors import StoreUnavailable
from gateway.ports.journal import Job
from gateway.ports.memory import HistoryEntry

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory
    from gateway.store.jobs import SqlJobs


log = structlog.get_logger(__name__)

_NOT_YET = timedelta(seconds=2)
_WAITS = (timedelta(minutes=5), timedelta(minutes=30))  # after the first failure, after the second; then the interval
_BACKS_OFF = 3  # failures in a row; from the next on the wait doubles
_LONGEST_WAIT = timedelta(days=1)  # unless the interval is longer


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamSchedule:
    """When a scope dreams next: *interval* after new entries, or by a *cron* line in the scope's time zone."""

    interval: timedelta = timedelta(hours=2)
    cron: str = ""

    def next(self, now: datetime, zone: str) -> datetime:
        """Return the next time after *now*, in UTC."""
        if not self.cron:
            return now + self.interval
        return next(CronSim(self.cron, now.astimezone(ZoneInfo(zone)))).astimezone(UTC)


class _ConcurrentErasure(Exception):
    """Something of the scope was forgotten while a model thought about it: nothing of that may count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dreamer:
    """Does the jobs of the kind `dream`. *writing* is held while files change, and never while a model thinks."""

    history: SqlHistory
    jobs: SqlJobs
    model: ChatModel
    applier: DreamApplier
    notifier: DreamNotifier
    writing: asyncio.Lock
    zone: Callable[[str], str]
    now: Callable[[], datetime]
    schedule: DreamSchedule = field(default_factory=DreamSchedule)
    is_scheduled: bool = True  # otherwise it runs only on request
    is_one: bool = False  # the home itself is the only scope; other folders are not read
    max_batch_size: int = 20
    max_iterations: int = 10
    token_limit: Callable[[], Awaitable[int]] = unlimited  # tokens that a prompt may weigh
    _at_work: set[str] = field(default_factory=set)

    async def expect(self, scope: str) -> None:
        """See to it that what is new in *scope* is dreamt of in time; one job, however often and by whom it is said."""
        if not self.is_scheduled:
            return
        cursor = await self.history.dream_cursor(scope)
        await self.jobs.put(
            Job(
                # The cursor moves with every run, so that entries of a running Dream's time get another job.
                id=f"{DREAM}:{scope}.{cursor}",
                kind=DREAM,
                scope=scope,
                payload={},
                due_at=self.schedule.next(self.now(), self.zone(scope)),
            )
        )

    async def catch_up(self) -> None:
        """Queue a Dream for every scope with new entries: imported ones, or from a version without Dream."""
        if not self.is_scheduled:
            return
        try:
            for scope in await self.history.scopes(with_news=True):
                if (not scope) is self.is_one and scope != SHARED:
                    await self.expect(scope)
        except StoreUnavailable as error:  # the next entry, or the next start, makes it good
            log.warning("dream.not_caught_up", error=type(error).__name__)

    async def run(self, job: Job) -> RetryJobLater | None:
        """Dream once over the scope's new entries; report to the chat that requested it, if any."""
        if job.scope in self._at_work:
            return RetryJobLater(_NOT_YET, "the scope is dreaming already", counts=False)
        self._at_work.add(job.scope)
        try:
            return await self._run(job)
        except _ConcurrentErasure:
            return RetryJobLater(_NOT_YET, "something was forgotten meanwhile", counts=False)
        finally:
            self._at_work.discard(job.scope)

    # -- one run -----------------------------------------------------------------------------------

    async def _run(self, job: Job) -> RetryJobLater | None:
        requester = DreamRequester.of(job)
        run = await self._resume(job.scope) or await self._begin(job.scope)
        if run is None:
            await self.notifier.send_report(job, requester, DreamReport())
            return None
        entries = await self._entries(job.scope, run)
        for n, dream_pass in enumerate(run.passes):
            mine = [each for each in entries if is_untrusted(each) is dream_pass.is_untrusted]
            outcome = await self._think(job, run, n, mine)
            if isinstance(outcome, UnusableAnswer):
                return await self._failed(job, requester, outcome)
            run = outcome
        async with self.writing:
            await self._check(job.scope, run)
            # If the cursor has moved, a crash came before the report; staged changes may have been decided since.
            is_applied = await self.history.dream_cursor(job.scope) >= run.to
            report = await self.applier.apply(job.scope, run, entries, stages=not is_applied)
            await self.history.advance_dream(job.scope, run.to)
        await self.notifier.send_report(job, requester, report)
        await drop_run(self.history, job.scope)
        if await self.history.after(job.scope, run.to, 1):
            await self.expect(job.scope)
        log.info("dream.done", scope=job.scope, entries=report.entries, changes=report.changes, waits=report.waits)
        return None

    async def _resume(self, scope: str) -> DreamRun | None:
        """Return the run that a crash or a failure interrupted, if it still counts."""
        run = await load_run(self.history, scope)
        if run is None:
            return None
        entries = await self._entries(scope, run)
        if run.epoch == await self.applier.documents.epoch(scope) and run.entries == names_of(entries):
            return run
        await drop_run(self.history, scope)
        return None

    async def _begin(self, scope: str) -> DreamRun | None:
        """Return the run over the next batch; None when there is nothing new."""
        after = await self.history.dream_cursor(scope)
        epoch = await self.applier.documents.epoch(scope)
        found = await self.history.after(scope, after, self.max_batch_size)
        entries = _batch(found, shown_in(await self.token_limit()))
        return start_run(after, epoch, await self.applier.texts(scope), entries) if entries else None

    async def _think(self, job: Job, run: DreamRun, n: int, entries: list[HistoryEntry]) -> DreamRun | UnusableAnswer:
        """Return the run with its *n*th sitting done."""

        async def save(dream_pass: DreamPass) -> None:
            async with self.writing:
                await self._check(job.scope, run)
                await save_run(self.history, job.scope, run.with_pass(n, dream_pass))

        provider = ModelProvider(model=self.model, purpose=DREAM, turn=job.id, key=entries[-1].session)
        phase_runner = DreamPhaseRunner(provider=provider, model=self.model.name, max_iterations=self.max_iterations)
        today = f"{self.now().astimezone(ZoneInfo(self.zone(job.scope))):%A %Y-%m-%d}"
        token_limit = reduced_limit(await self.token_limit(), job.attempts)
        new = DreamMaterial(entries=entries, today=today, shown=shown_in(token_limit))
        outcome = await phase_runner.run_phases(run.passes[n], run.base, new, save)
        return outcome if isinstance(outcome, UnusableAnswer) else run.with_pass(n, outcome)

    async def _failed(self, job: Job, requester: DreamRequester | None, why: UnusableAnswer) -> RetryJobLater | None:
        """Schedule a retry that reuses the stored answers; a requester is notified at once."""
        if requester is not None:
            log.warning("dream.failed", scope=job.scope, reason=why.reason)
            await self.expect(job.scope)
            await self.notifier.send_report(job, requester, DreamReport(failed=True))
            return None
        failures = job.attempts + 1
        if failures <= _BACKS_OFF:  # then it was said; metrics go on counting
            log.warning("dream.failed", scope=job.scope, reason=why.reason, failures=failures)
        if failures == _BACKS_OFF:
            log.warning("dream.backs_off", scope=job.scope, at_most=f"{_LONGEST_WAIT}")
        return RetryJobLater(self._wait(job.scope, failures), why.reason)

    def _wait(self, scope: str, failures: int) -> timedelta:
        """Return the delay after this many consecutive failures."""
        if failures <= len(_WAITS):
            return _WAITS[failures - 1]
        interval = self.schedule.next(self.now(), self.zone(scope)) - self.now()
        return max(interval, exponential_delay(failures - _BACKS_OFF + 1, interval, _LONGEST_WAIT))

    async def _check(self, scope: str, run: DreamRun) -> None:
        """Under the lock: raise when something was forgotten since *run* began."""
        if run.epoch != await self.applier.documents.epoch(scope):
            await drop_run(self.history, scope)
            raise _ConcurrentErasure

    async def _entries(self, scope: str, run: DreamRun) -> list[HistoryEntry]:
        return [each for each in await self.history.after(scope, run.after) if each.cursor <= run.to]


def _batch(entries: Sequence[HistoryEntry], token_limit: int) -> list[HistoryEntry]:
    """Return as many of the entries as one prompt holds; the first one in any case, as much of it as fits."""
    batch: list[HistoryEntry] = []
    for entry in entries:
        token_limit -= len(entry.content) + len(entry.timestamp)
        if batch and token_limit < 0:
            break
        batch.append(entry)
    return batch
