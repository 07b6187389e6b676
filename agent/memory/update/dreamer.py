"""Dream in the gateway: one durable job per scope, from new history entries to one version of the documents.

Model answers are stored before they are applied, and every step is idempotent. After a crash no call is repeated, and
there is one version and one moved cursor.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import structlog
from cronsim import CronSim

from agent.base.disk import Disk
from agent.base.scopes import SHARED, scope_folder
from agent.llm.chat_model import ChatModel
from agent.llm.model_calls import ModelProvider, UnusableAnswer, reduced_limit, unlimited
from agent.memory.editing.edit_simulation import DocumentOutcome, EditSimulation, outcome
from agent.memory.editing.staged_changes import MEMORY, ReviewReason, StagedChange, StagedChangeStore, save_conflicts
from agent.memory.editing.text_operations import Operation, keys_of_lines
from agent.memory.editing.three_way_merge import MergeConflict, three_way
from agent.memory.history.history_files import add_keys
from agent.memory.jobs.job_runner import RetryJobLater, send_job_report
from agent.memory.storage.scope_documents import (
    CONSOLIDATION,
    DREAM_CAUSE,
    SOUL,
    TRACKED,
    ScopeDocuments,
    effective_persona,
)
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
from gateway.errors import StoreUnavailable, exponential_delay
from gateway.events import ChatKind, SessionKey
from gateway.i18n import SLASH, ChatLanguage, translate
from gateway.ports.journal import Job, SessionRow
from gateway.ports.memory import DocumentChange, HistoryEntry, TextChange

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory
    from gateway.store.jobs import SqlJobs
    from gateway.store.records import SqlTurnRecords
log = structlog.get_logger(__name__)

RESTORE = f"{DREAM} restore "  # then the version that everything goes back behind, and the turn that asked, if any
FORGET = "forget"
_LATER = 1_000  # versions behind the one that is gone back behind
DOCUMENTS = ("USER.md", "MEMORY.md", SOUL)
_PEOPLE = "people/"  # the scopes of people
_ASKED = "asked"  # field of a job
_LOOK_BACK = 50  # changes in which our own is looked for after a crash
_TRIES = 3  # of a compare-and-set


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamReport:
    """Result of a Dream, for its requester; all zero if it failed or found no new entries."""

    entries: int = 0
    changes: int = 0
    waits: int = 0  # operations that wait for a yes
    sha: str = ""  # of its version
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamApplier:
    """Changes the documents of any scope. Doing it twice is doing it once."""

    home: Path | None  # where conflict copies are written
    documents: ScopeDocuments
    history: SqlHistory
    staging: StagedChangeStore
    now: Callable[[], datetime]
    disk: Disk = field(default_factory=Disk)

    async def texts(self, scope: str) -> dict[str, str]:
        """Return the documents that a Dream starts from."""
        return {name: await self._text(scope, name) for name in DOCUMENTS}

    async def apply(
        self, scope: str, run: DreamRun, entries: Sequence[HistoryEntry], *, stages: bool = True
    ) -> DreamReport:
        """Write the outcome of *run* as one version that names its entries; if *stages*, stage what needs approval.

        Raises OSError.
        """
        cause = run.cause(entries)
        outcomes: list[tuple[str, DocumentOutcome]] = []
        for dream_pass in run.passes:
            simulation = await asyncio.to_thread(_simulate_pass, run, dream_pass)
            for name in DOCUMENTS:
                only = _only_propose(scope, name, dream_pass.is_untrusted)
                result = await asyncio.to_thread(outcome, simulation, name, only_propose=only)
                outcomes.append((name, result))
        changed = {name: result.text for name, result in outcomes if result.text != run.base[name]}
        change = await self._write(scope, run.base, changed, cause)
        changes = waits = 0
        waiting: list[Operation] = []
        for name, result in outcomes:
            is_busy = change is None and name in changed
            left = replace(result, waiting={**result.waiting, ReviewReason.BUSY: result.done}) if is_busy else result
            changes += 0 if is_busy else len(left.done)
            waits += sum(map(len, left.waiting.values()))
            waiting += left.waiting_operations
            if stages:
                build = functools.partial(self._build_change, scope, run, entries, name)
                await self.staging.stage_outcome(scope, left, build)
        edits = (edit for each in run.passes for answer in each.answers for edit in answer)
        keys = keys_of_lines(edits, pending_operations=waiting)
        await add_keys(self.history, scope, keys, (await self.documents.read(scope, MEMORY)).text)
        return DreamReport(entries=len(entries), changes=changes, waits=waits, sha=change.short if change else "")

    async def _write(
        self, scope: str, base: Mapping[str, str], texts: Mapping[str, str], cause: str
    ) -> DocumentChange | None:
        """Merge the changes from *base* to *texts* into the documents, as one change; return it.

        It has no id if nothing differs. None if other writers won every try.
        """
        await self.documents.notice(scope)
        for _ in range(_TRIES):
            earlier = await self.documents.changes.log(scope, limit=_LOOK_BACK)
            if written := next((each for each in earlier if each.why == cause), None):
                return written  # before a crash; later changes were a person's decision
            merged: dict[str, TextChange] = {}
            conflicts: dict[str, Sequence[MergeConflict]] = {}
            for name, text in texts.items():
                now = await self._text(scope, name)
                result = await asyncio.to_thread(three_way, base[name], text, now)
                if result.text != now:
                    merged[name] = TextChange((await self.documents.read(scope, name)).rev, result.text)
                conflicts[name] = result.conflicts
            change = await self.documents.change(scope, merged, why=cause, after=earlier[0].number if earlier else None)
            if change is not None:
                for name, each in conflicts.items():
                    folder = scope_folder(self.home, scope) / "memory" if self.home is not None else None
                    await asyncio.to_thread(save_conflicts, folder, self.disk, each, name)
                return change
        log.warning("memory.write_contended", scope=scope, name=", ".join(texts))
        return None

    def _build_change(
        self, scope: str, run: DreamRun, entries: Sequence[HistoryEntry], document: str, why: str
    ) -> StagedChange:
        return StagedChange(
            name=run.name(document, why),
            why=why,
            at=self.now(),
            document=document,
            session=entries[-1].session if entries else "",
            cause=run.cause(entries),
            person=scope.removeprefix(_PEOPLE) if scope.startswith(_PEOPLE) else "",
        )

    async def _text(self, scope: str, name: str) -> str:
        """Return the text that a change of the document starts from; of SOUL.md, the effective persona."""
        if name == SOUL:
            return await effective_persona(self.documents, scope)
        return (await self.documents.read(scope, name)).text


def _only_propose(scope: str, name: str, is_untrusted: bool) -> str:
    """Return why the changes of a document wait for a yes; "" when they may be made."""
    if is_untrusted:
        return ReviewReason.UNTRUSTED
    return ReviewReason.PERSONA if name == SOUL and scope.startswith("chats/") else ""


def _simulate_pass(run: DreamRun, dream_pass: DreamPass) -> EditSimulation:
    simulation = EditSimulation(run.base)
    for answer in dream_pass.answers:
        simulation.do(answer)
    return simulation


# -- the report --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamRequester:
    """The chat and message to answer when a requested Dream finishes."""

    key: str
    reply_to: str = ""
    visible_to: str = ""  # in a shared chat its asker alone
    chat_kind: str = ChatKind.DIRECT.value
    language: str = "en"

    def payload(self) -> dict[str, Any]:
        """Return it as a job carries it."""
        return {_ASKED: asdict(self)}

    @classmethod
    def of(cls, job: Job) -> DreamRequester | None:
        """Return the requester stored in a job, or None if the job was scheduled."""
        requester = job.payload.get(_ASKED)
        return cls(**requester) if isinstance(requester, dict) else None


def sentence(report: DreamReport, language: str) -> str:
    """Return the text of the report."""
    if report.failed:
        return translate("dream.failed", language)
    if not report.entries:
        return translate("dream.nothing_new", language)
    word = "dream.done" if report.sha else "dream.no_change"
    lines = [translate(word, language, entries=report.entries, changes=report.changes, sha=report.sha)]
    lines += [translate("dream.waits", language, waits=report.waits)] if report.waits else []
    return " ".join(lines)


# -- Dream's changes, and a way back behind them ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestoreDone:
    """Memory is as it was before the change, what others changed since kept."""

    kept: int = 0  # versions of others that were kept
    changed: bool = True  # else it was so already


@dataclass(frozen=True, slots=True)
class RestoreConflict:
    """A person changed the same lines since, or had something forgotten: going back would undo that."""

    version: DocumentChange


class DreamService:
    """Implements /dream-log and /dream-restore for one scope, which comes from the event."""

    def __init__(self, documents: ScopeDocuments, *, can_run: bool) -> None:
        self._documents = documents
        self._changes = documents.changes
        self.can_run = can_run  # there is a model that can do it

    async def log(self, scope: str, *, limit: int = 10) -> list[DocumentChange]:
        """Return Dream's newest changes, the newest first."""
        await self._documents.notice(scope)
        found = await self._changes.log(scope, limit=_LATER)
        return [each for each in found if each.why.startswith(DREAM_CAUSE)][:limit]

    async def restore(self, scope: str, id_: str, *, by: str, turn: str = "") -> RestoreDone | RestoreConflict | None:
        """Restore the state before a change by a new one; return None if no change has this id.

        Later changes by Dream are dropped; those by people and consolidations are applied again. A repeated *turn*
        finds what it has restored. Raises OSError.
        """
        await self._documents.notice(scope)
        for _ in range(_TRIES):
            # Another change, or an erasure of the texts that are read here, gives the scope another number.
            number = (await self._changes.heads([scope]))[scope].number
            change = await self._documents.find(scope, id_)
            if change is None:
                return None
            before_change = await self._texts_before(scope, change)
            if isinstance(before_change, RestoreConflict):
                return before_change
            texts, kept = before_change
            why = f"{RESTORE}{change.short} {turn}".rstrip()
            later = await self._changes.log(scope, limit=_LATER, since=change.number) if turn else ()
            if any(each.why == why for each in later):
                return RestoreDone(kept)
            now = {name: await self._documents.read(scope, name) for name in TRACKED}
            restored = {name: TextChange(now[name].rev, texts.get(name, "")) for name in TRACKED}
            done = await self._documents.change(scope, restored, why=why, by=by, undoes=change.id, after=number)
            if done is not None:
                return RestoreDone(kept, changed=bool(done.names))
        raise OSError("memory is being written to all the time")

    async def _texts_before(
        self, scope: str, change: DocumentChange
    ) -> tuple[Mapping[str, str], int] | RestoreConflict:
        """Return the texts before *change* with later changes by others, and the number of these changes."""
        texts = dict(await self._changes.texts(scope, change.number - 1))
        kept = 0
        for each in reversed(await self._changes.log(scope, limit=_LATER, since=change.number)):
            if each.why.startswith((DREAM_CAUSE, RESTORE)):
                continue
            if each.why.startswith(FORGET):  # another wording of what was forgotten may stand in the old text
                return RestoreConflict(each)
            for name, (before, after) in (await self._changes.changed_texts(scope, each)).items():
                done = await asyncio.to_thread(three_way, before, after, texts.get(name, ""))
                if done.conflicts and not each.why.startswith(CONSOLIDATION):
                    return RestoreConflict(each)
                texts[name] = done.text
            kept += 1
        return texts, kept


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
    records: SqlTurnRecords
    session: Callable[[SessionKey], Awaitable[SessionRow]]
    writing: asyncio.Lock
    zone: Callable[[str], str]
    now: Callable[[], datetime]
    schedule: DreamSchedule = field(default_factory=DreamSchedule)
    is_scheduled: bool = True  # otherwise it runs only on request
    is_one: bool = False  # the home itself is the only scope; other folders are not read
    max_batch_size: int = 20
    max_iterations: int = 10
    token_limit: Callable[[], Awaitable[int]] = unlimited  # tokens that a prompt may weigh
    sign: Callable[[SessionKey], str] = lambda _: SLASH  # before a command's name in a chat
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
            await self._send_report(job, requester, DreamReport())
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
        await self._send_report(job, requester, report)
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
            await self._send_report(job, requester, DreamReport(failed=True))
            return None
        failures = job.attempts + 1
        if failures <= _BACKS_OFF:  # then it was said; metrics go on counting
            log.warning("dream.failed", scope=job.scope, reason=why.reason, failures=failures)
        if failures == _BACKS_OFF:
            log.warning("dream.backs_off", scope=job.scope, at_most=f"{_LONGEST_WAIT}")
        return RetryJobLater(self._wait(job.scope, failures), why.reason)

    async def _send_report(self, job: Job, requester: DreamRequester | None, report: DreamReport) -> None:
        """Send the result of the job to its requester, if it has one; the job's id makes that once."""
        if requester is None:
            return
        key = SessionKey.parse(requester.key)
        await send_job_report(
            self.records,
            job,
            await self.session(key),
            sentence(report, ChatLanguage(requester.language, self.sign(key))),
            at=self.now(),
            reply_to=requester.reply_to,
            visible_to=requester.visible_to,
            chat_kind=ChatKind(requester.chat_kind),
        )

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
