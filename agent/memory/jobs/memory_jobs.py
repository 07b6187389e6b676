"""Jobs that apply what a turn remembers, after its commit. Idempotent."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog
from cachetools import LRUCache

from agent.base.scopes import SHARED
from agent.memory.documents.scope_documents import change_document, line_fingerprint
from agent.memory.editing.staged_change_store import StagedChangeStore
from agent.memory.editing.staged_changes import MEMORY
from agent.memory.history.history_files import add_keys
from agent.memory.jobs.job_kinds import JobErasure, JobKind, JobPace
from agent.memory.jobs.job_runner import RetryJobLater
from gateway.backoff import exponential_delay
from gateway.errors import StoreUnavailable
from gateway.ports.journal import REMEMBER, Job, SessionRow
from gateway.ports.memory import DocumentStore, HistoryStore
from gateway.ports.metrics import MetricsRecorder

if TYPE_CHECKING:
    from gateway.store.jobs import SqlJobs


log = structlog.get_logger(__name__)

REMEMBER_JOBS = JobKind(name=REMEMBER, pace=JobPace.QUICK, erasure=JobErasure.ADMIN)
LONGEST_FACT = 1_000  # characters
_PAUSE = timedelta(seconds=1)
_LONGEST_PAUSE = timedelta(hours=1)
_REVIEW = timedelta(days=1)
_SCOPES_KNOWN = 10_000


def remember_job(
    fact: str,
    *,
    turn: str,
    scope: str,
    origin: str,
    by: str,
    at: datetime,
    place: str = "0.0",
    session: str = "",
    keys: str = "",
) -> Job:
    """Return the job that stores *fact* in *scope*, requested in *turn* by *by* as the fact number *place*.

    The fact is also found by *keys*.
    """
    payload = {"fact": fact, "origin": origin, "turn": turn, "by": by} | ({"keys": keys} if keys else {})
    return Job(
        id=f"{REMEMBER}:{turn}.{place}",
        kind=REMEMBER,
        scope=scope,
        payload=payload | ({"session": session} if session else {}),
        due_at=at,
    )


class MemoryJobs:
    """Applies memory operations of committed turns, before the scope's next turn."""

    def __init__(
        self,
        jobs: SqlJobs,
        documents: DocumentStore,
        *,
        history: HistoryStore,
        staging: StagedChangeStore | None = None,
        writing: asyncio.Lock | None = None,
        meter: MetricsRecorder | None = None,
    ) -> None:
        """Change memory below *home* under *writing*.

        Changes that need approval are staged in *staging*, or postponed without it.
        """
        self._jobs = jobs
        self._staging = staging
        self._meter = meter
        self._history = history
        self._documents = documents
        self.writing = writing or asyncio.Lock()  # held by every job that changes memory, and by a backup
        self._noted: LRUCache[str, None] = LRUCache(_SCOPES_KNOWN)  # scopes with a job that no claim may know of
        self._settling: dict[str, asyncio.Event] = {}  # set when the jobs of the scope are applied

    def note(self, job: Job) -> None:
        """Record that *job* was committed, behind the claims of turns that run now."""
        if job.kind == REMEMBER:
            self._noted[job.scope] = None

    async def settle_turn(self, session: SessionRow, scope: str) -> None:
        """Apply the jobs of *scope* and of what all share that the next prompt must know.

        *session* is that of the turn's claim, which has read whether there are any; without, this does no I/O.
        """
        may_have = session.has_facts or session.scope != scope
        for each in dict.fromkeys((scope, SHARED)):
            if not may_have and (other := self._settling.get(each)) is not None:
                await other.wait()  # it has the jobs that were noted before it began
            if may_have or each in self._noted:
                await self.settle(each)

    async def settle(self, scope: str) -> None:
        """Apply the pending jobs of *scope*, or wait until another caller has."""
        is_behind = False
        while (other := self._settling.get(scope)) is not None:
            await other.wait()
            # One that began before this call may not have found the caller's jobs. The next one has: all who waited
            # share it, or turns of all chats would ask one after the other.
            if is_behind and scope not in self._noted:
                return
            is_behind = True
        self._noted.pop(scope, None)  # before the first await: a job that is noted from here on may not be found
        settling = self._settling[scope] = asyncio.Event()
        try:
            pending = [job for job in await self._jobs.pending_in(scope) if job.kind == REMEMBER]
            for job in pending:
                if not _needs_review(job):
                    await self._settle_one(job)
        except StoreUnavailable:
            self._noted[scope] = None
            log.warning("memory.not_settled", scope=scope)
        except BaseException:
            self._noted[scope] = None
            raise
        finally:
            del self._settling[scope]
            settling.set()

    async def apply(self, job: Job) -> RetryJobLater | None:
        """Apply one job that is due; the handler of kind `REMEMBER`."""
        if _needs_review(job) and self._staging is None:
            return RetryJobLater(_REVIEW, "waits for a yes")
        async with self.writing:
            if all(each.id != job.id for each in await self._jobs.pending_in(job.scope)):
                return None  # it was forgotten before it was remembered
            if _needs_review(job) and self._staging is not None:
                return await self._hold(self._staging, job)
            return await self._apply(job)

    async def _hold(self, staging: StagedChangeStore, job: Job) -> RetryJobLater | None:
        """Stage the fact for approval by the person or the group."""
        bullet = as_bullet(str(job.payload.get("fact", "")))
        if bullet is not None:
            session, person = (str(job.payload.get(name, "")) for name in ("session", "by"))
            await staging.hold(job.scope, job.id, bullet, session=session, person=person)
        return None

    async def _settle_one(self, job: Job) -> None:
        later = await self.apply(job)
        if later is None:
            await self._jobs.finish(job)
        else:
            await self._jobs.put_off(job, later.delay, later.reason)
        if self._meter is not None:
            self._meter.count("jobs", kind=job.kind, outcome="done" if later is None else "put_off")

    async def _apply(self, job: Job) -> RetryJobLater | None:
        try:
            await self._remember(job)
        except OSError as error:
            log.warning("memory.cannot_write", scope=job.scope, job=job.id, error=error.strerror or str(error))
        else:
            return None
        return RetryJobLater(exponential_delay(job.attempts + 1, _PAUSE, _LONGEST_PAUSE), "MEMORY.md was not written")

    async def _remember(self, job: Job) -> None:
        bullet = as_bullet(str(job.payload.get("fact", "")))
        if bullet is None:
            return
        by, keys = (str(job.payload.get(name, "")) for name in ("by", "keys"))
        _, text = await change_document(
            self._documents, job.scope, MEMORY, lambda text: append_bullet(text, bullet), why=job.id, by=by
        )
        if keys:
            text = (await self._documents.read(job.scope, MEMORY)).text
            await add_keys(self._history, job.scope, {line_fingerprint(bullet): keys}, text)


def _needs_review(job: Job) -> bool:
    """Return True if the fact comes from untrusted content, which is never remembered without approval."""
    return job.payload.get("origin") == "untrusted"


def as_bullet(fact: str) -> str | None:
    """Return *fact* as one list item, or None if it is empty."""
    flat = " ".join(fact.split())
    while flat[:2] in ("- ", "* "):
        flat = flat[2:].lstrip()
    return f"- {flat}" if flat else None


def append_bullet(text: str, bullet: str) -> str:
    """Return *text* with *bullet* appended, or unchanged if it contains it."""
    if any(as_bullet(line) == bullet for line in text.splitlines() if line.lstrip()[:2] in ("- ", "* ")):
        return text
    if not text.strip():
        return f"{bullet}\n"
    lines = text.rstrip("\n")
    follows_list = lines.splitlines()[-1].lstrip()[:2] in ("- ", "* ")
    return f"{lines}\n{bullet}\n" if follows_list else f"{lines}\n\n{bullet}\n"
