"""`/forget … --purge`: durable jobs that erase words from every byte of the home (docs/adr/0012-purge.md).

The command erases the words at once (word_eraser.py) and enqueues `purge`, which erases them from versions, files,
journal and quarantine, and `scrub`, which erases them and the job of the purge from the journal's free pages. A plain
`/forget` has a job `forget`, which repeats the synchronous part. Both repeat until no turn or job is left that may
write the words again. All steps are idempotent.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import structlog

from agent.base.scopes import scope_folder
from agent.base.transcript_lines import format_time, parse_time
from agent.memory.documents.scope_documents import rewrite_history
from agent.memory.erasure.scope_files import (
    ErasureStorage,
    ReferencedAttachments,
    clear_history,
    clear_other_files,
    clear_raw,
    remove_matching,
    remove_set_aside,
)
from agent.memory.erasure.word_eraser import ErasureRequest, ErasureRequester, WordEraser, WordErasureResult, may_clear
from agent.memory.erasure.word_match import ErasurePattern, clear_value, without_entries, without_sentences
from agent.memory.jobs.job_kinds import JobKind, JobPace
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.storage.erasure_notes import owe_mirror, pay_mirror
from gateway.events import SessionKey
from gateway.ports.journal import Job, JobAdvance
from gateway.ports.memory import FORGET, FORGOTTEN, PURGE, ErasureFilter, FileKind

log = structlog.get_logger(__name__)

SCRUB = "scrub"
FORGET_JOBS = JobKind(name=FORGET, pace=JobPace.LONG, aliases=(FORGOTTEN, PURGE, SCRUB))
_UPLOAD = "upload:"
_ERASURES = tuple(f"{kind}:" for kind in (FORGET, PURGE, SCRUB))  # their jobs write no words
_POLL_INTERVAL, _MAX_POLLS = 0.1, 100  # seconds; most running turns end in this time
_RETRY_DELAY = timedelta(seconds=1)  # for the turns that do not
_REST_FACTOR = 20  # pause between scrubs, as a multiple of the duration of the last one
_SHORT_WAIT = timedelta(seconds=2)
_LONGEST_COMMAND = timedelta(minutes=10)  # after which the job of an erasure begins without its command
_BUSY_DELAY = timedelta(seconds=10)  # while a reader blocks the scrub of the journal


@dataclass(slots=True)
class ScrubThrottle:
    """Limits scrubs, which hold up writes to the journal, to a twentieth of the time."""

    _next: float = 0.0

    def remaining(self) -> timedelta:
        """Return the time until the next scrub may start."""
        return timedelta(seconds=max(self._next - time.monotonic(), 0.0))

    def record(self, seconds: float) -> None:
        """Record the duration of a scrub that has just ended."""
        self._next = time.monotonic() + _REST_FACTOR * seconds


@dataclass(slots=True)
class _ErasureProgress:
    """A job between two passes."""

    awaited: frozenset[str]  # turns and jobs that may know the words
    passes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeJobs:
    """Handlers of the jobs. They hold *writing* while they change files."""

    storage: ErasureStorage
    word_eraser: WordEraser
    throttle: ScrubThrottle = field(default_factory=ScrubThrottle)
    progress: dict[str, _ErasureProgress] = field(default_factory=dict)  # of the jobs that have begun, by id

    async def begin(
        self,
        scope: str,
        pattern: ErasurePattern,
        requester: ErasureRequester,
        *,
        key: SessionKey,
        upto: int,
        turn: str,
        is_purge: bool = True,
        request_turn: str = "",
        change_name: str = "",
        is_deferred: bool = False,
    ) -> tuple[WordErasureResult, JobAdvance]:
        """Erase words at once; return the result, and what makes the job that does the rest due.

        From the beginning, nothing with the words is stored in *scope* until the job is done, or until the commit of
        the command if no turn or job has read them.

        *upto* is the command's own inbox row. *change_name* is the staged change that asked for this
        erasure, in *request_turn*. If *is_deferred*, the job does all of it: a turn of another scope does not hold the
        lock of *scope*. Safe to retry.
        """
        payload = {
            "words": pattern.request,
            "language": pattern.language,
            "person": requester.account.name,
            "sender": requester.sender,
            "may_all": requester.may_all,
            "key": str(key),
            "upto": upto,
            "turn": turn,
            "requested": request_turn,
            "staged": change_name,
            "awaited": [turn],
            "at": format_time(self.storage.now()),
        }
        kind = PURGE if is_purge else FORGET
        due = self.storage.now() + _LONGEST_COMMAND
        job = Job(id=f"{kind}:{turn}", kind=kind, scope=scope, payload=payload, due_at=due)
        await owe_mirror(self.storage.home, scope, self.storage.disk, erasure=job.id)
        await self.storage.store.begin(job)
        try:
            if is_deferred:
                result = WordErasureResult()
            elif is_purge:
                result = await self._clear_messages(scope, pattern.deep, requester, page=turn, spare=change_name)
            else:
                result = await self.word_eraser.forget(
                    scope, pattern, requester, turn=request_turn, page=turn, spare=change_name
                )
        except OSError:
            await self.storage.jobs.finish(job)
            await pay_mirror(self.storage.home, scope, self.storage.disk, erasure=job.id)  # it was not promised
            raise
        if not is_deferred:
            payload["awaited"] = sorted(await self._running(scope, key) - {turn})
            if not is_purge and not payload["awaited"]:
                kind = FORGOTTEN
        return result, JobAdvance(job, replace(job, kind=kind, payload=payload, due_at=self.storage.now()))

    async def run(self, job: Job) -> RetryJobLater | None:
        """Do a job, which has the name of what is left to do."""
        steps = {FORGET: self.forget, FORGOTTEN: self.end, PURGE: self.purge, SCRUB: self.scrub}
        return await steps[job.kind](job)

    async def end(self, job: Job) -> RetryJobLater | None:
        """Delete the staged change of an erasure that is done; what was said since then stays.

        If an editor has saved a document meanwhile, the words are erased again.
        """
        if await self._settle_documents(job.scope):
            return await self.forget(job)
        await self.storage.staging.discard(job.scope, str(job.payload["staged"]))
        await pay_mirror(self.storage.home, job.scope, self.storage.disk, erasure=job.id)
        return None

    async def forget(self, job: Job) -> RetryJobLater | None:
        """Erase the words again until no turn knows them; then delete the staged change."""
        payload: Mapping[str, Any] = job.payload
        request = ErasureRequest.of(job)
        pattern, requester = request.pattern, request.requester

        async def erase(page: str) -> int:
            result = await self.word_eraser.forget(
                job.scope,
                pattern,
                requester,
                turn=payload["requested"],
                page=page,
                spare=payload["staged"],
                since=parse_time(payload.get("at")),
            )
            await self.storage.index.purge_stale(job.scope)
            return result.total + result.planned

        return await self._repeat(job, erase)

    async def purge(self, job: Job) -> RetryJobLater | None:
        """Erase the words everywhere until no turn knows them; then enqueue the scrub of the journal."""
        payload: Mapping[str, Any] = job.payload
        request, since = ErasureRequest.of(job), parse_time(payload.get("at"))
        pattern, requester = request.pattern, request.requester

        async def erase(page: str) -> int:
            result = await self._clear_messages(job.scope, pattern, requester, page=page, since=since)
            await self._clear_files(job.scope, pattern, requester)
            keys = await self._keys(job.scope, SessionKey.parse(str(payload["key"])))
            # Other erasures keep their words, of which these may be a part.
            reach = ErasureFilter(keys=keys, scope=job.scope, spared_kinds=frozenset({FORGET, FORGOTTEN, PURGE}))
            records = await self._clear_records(reach, pattern, requester, upto=int(payload["upto"]))
            return result.total + result.planned + records

        if (later := await self._repeat(job, erase)) is not None:
            return later
        await self.storage.jobs.put(scrub_job(job, job.scope, self.storage.now()))
        log.info("memory.purged", scope=job.scope)
        return None

    async def _repeat(self, job: Job, erase: Callable[[str], Awaitable[int]]) -> RetryJobLater | None:
        """Call *erase*, which returns the number of matches, until no turn can bring the words back; end the question.

        A turn that began before a pass was over has read the words, and until the job is done its commits leave them
        out. So a pass that found something is followed by another one, once the turns and jobs have ended that ran
        until then. The first pass does not wait: by then the words are out of every query.
        """
        key = SessionKey.parse(str(job.payload["key"]))
        progress = self.progress.get(job.id)
        if progress is None:  # nothing is known after a restart, nor of turns since a yes in another chat
            awaited = frozenset(job.payload["awaited"]) | await self._running(job.scope, key)
            progress = self.progress[job.id] = _ErasureProgress(awaited)
        while True:
            is_known = await self._is_running(job.scope, key, progress.awaited, should_wait=progress.passes > 0)
            if is_known and progress.passes:
                return RetryJobLater(_RETRY_DELAY, "turns that may know the words are still running", counts=False)
            found = await erase(f"{job.payload['turn']} {format_time(self.storage.now())}")
            progress.passes += 1
            if not is_known and not found and not await self._settle_documents(job.scope):
                break
            if found:
                progress.awaited |= await self._running(job.scope, key)
        del self.progress[job.id]
        await pay_mirror(self.storage.home, job.scope, self.storage.disk, erasure=job.id)
        if job.payload.get("staged"):
            await self.storage.staging.discard(job.scope, str(job.payload["staged"]))
        return None

    async def _settle_documents(self, scope: str) -> bool:
        """Write the documents' files; return True if an edit or another change came before that was done."""
        heads = self.storage.documents.changes.heads
        before = (await heads([scope]))[scope].number
        await self.storage.settle_documents(scope)
        return (await heads([scope]))[scope].number != before

    async def scrub(self, job: Job) -> RetryJobLater | None:
        """Erase deleted data from the journal's pages, within the limits of the throttle.

        This does it for every scope: the jobs that wait by now are finished with this one.
        """
        if (wait := self.throttle.remaining()) > _SHORT_WAIT:
            return RetryJobLater(wait, "the last one was a moment ago", counts=False)
        await asyncio.sleep(wait.total_seconds())
        started, waiting = time.monotonic(), await self.storage.jobs.pending_of(SCRUB)
        is_done = await self.storage.store.scrub()
        self.throttle.record(time.monotonic() - started)
        if not is_done:
            return RetryJobLater(_BUSY_DELAY, "the journal is being read", counts=False)
        for each in waiting:
            if each.id != job.id:
                await self.storage.jobs.finish(each)
        return None

    # -- places ------------------------------------------------------------------------------------

    async def _clear_messages(
        self,
        scope: str,
        pattern: ErasurePattern,
        requester: ErasureRequester,
        *,
        page: str,
        spare: str = "",
        since: datetime | None = None,
    ) -> WordErasureResult:
        await self.storage.transcripts.flush()
        attachments = ReferencedAttachments(pattern, may_clear(requester))
        await self.storage.transcripts.redact(scope, attachments.look)
        # Files before the lines that refer to them: after a crash the lines are still there to find them.
        await self.storage.files.remove(scope, FileKind.ATTACHMENT, names=attachments.unreferenced)
        result = await self.word_eraser.forget(
            scope, pattern, requester, turn="", whole=True, page=page, spare=spare, since=since
        )
        # Not in the job alone: a turn that begins after the request quotes the words from no version into its answer.
        async with self.storage.writing:
            await self._clear_versions(scope, pattern, requester)
        return result

    async def _clear_files(self, scope: str, pattern: ErasurePattern, requester: ErasureRequester) -> None:
        async with self.storage.writing:
            await clear_raw(self.storage.history, scope, pattern, may_clear(requester))
            if requester.may_all:
                await clear_history(self.storage.history, scope, pattern)
            await self.storage.settle_history(scope)
            kinds = (FileKind.TEXT, FileKind.RESULT, *((FileKind.ATTACHMENT,) if requester.may_all else ()))
            await remove_matching(self.storage.files, scope, pattern, *kinds)  # the next turn takes a new snapshot
            if requester.may_all:
                await asyncio.to_thread(self._clear_folder, scope, pattern)
        await self.storage.index.purge_stale(scope)

    def _clear_folder(self, scope: str, pattern: ErasurePattern) -> None:
        folder = scope_folder(self.storage.home, scope)
        if folder.is_dir():
            remove_set_aside(self.storage.disk, folder)
            clear_other_files(self.storage.disk, self.storage.home, scope, pattern)

    async def _clear_versions(self, scope: str, pattern: ErasurePattern, requester: ErasureRequester) -> None:
        """Erase the words from every version of the documents that the requester may clear."""

        def redact(text: str, authors: Mapping[str, str]) -> str:
            author = requester.account.name
            return without_entries(text, pattern, lambda line: requester.may_all or authors.get(line, "") == author)[0]

        cause = (lambda why: without_sentences(why, pattern)) if requester.may_all else str
        await rewrite_history(self.storage.documents.changes, scope, redact, cause=cause)

    async def _clear_records(
        self, reach: ErasureFilter, pattern: ErasurePattern, requester: ErasureRequester, *, upto: int
    ) -> int:
        tokens: set[str] = set()

        def change(value: Any) -> Any:
            cleared = clear_value(value, pattern)
            if isinstance(value, Mapping) and "attachments" in value and cleared != value:
                # The attachments of a matching message are removed too.
                tokens.update(str(each.get("url", "")).removeprefix(_UPLOAD) for each in value["attachments"])
                cleared = {**cleared, "attachments": []}
            return cleared

        sender = "" if requester.may_all else requester.sender
        allowed = replace(reach, scope=None if sender else reach.scope, sender=sender, upto=upto)
        count = await self.storage.store.redact(allowed, change)
        ids = {requester.sender} | ({key.chat for key in reach.keys} if requester.may_all else set())
        mentions = build_id_filter(ids)
        channels = {key.channel for key in reach.keys}

        def is_match(channel: str, data: bytes) -> bool:
            return channel in channels and mentions(data) and pattern.in_bytes(data)

        await self.storage.unscoped_data.forget(is_match, tokens=tokens - {""})
        return count

    async def _is_running(self, scope: str, key: SessionKey, awaited: frozenset[str], *, should_wait: bool) -> bool:
        """Return True if one of *awaited* is running; with *should_wait*, wait a moment for them to end."""
        if not awaited:
            return False
        reach = await self._work_reach(scope, key)  # of turns that have begun: it does not change
        for _ in range(_MAX_POLLS if should_wait else 1):
            if not awaited & await self.storage.store.at_work(reach):
                return False
            await asyncio.sleep(_POLL_INTERVAL if should_wait else 0)
        return True

    async def _running(self, scope: str, key: SessionKey) -> frozenset[str]:
        """Return the running turns and jobs of *scope*, without erasures."""
        found = await self.storage.store.at_work(await self._work_reach(scope, key))
        return frozenset(each for each in found if not each.startswith(_ERASURES))

    async def _work_reach(self, scope: str, key: SessionKey) -> ErasureFilter:
        """Return the reach of `at_work`: the sessions of *scope*, and new ones, whose scope is not known yet."""
        sessions = await self.storage.records.sessions()
        return ErasureFilter(
            keys=frozenset({key, *(each.key for each in sessions if each.scope in ("", scope))}), scope=scope
        )

    async def _keys(self, scope: str, key: SessionKey) -> frozenset[SessionKey]:
        return frozenset({key, *(each.key for each in await self.storage.records.sessions() if each.scope == scope)})


def scrub_job(cause: Job, scope: str, now: datetime) -> Job:
    """Return the job that follows *cause*, which has erased something of *scope*."""
    return Job(id=f"{SCRUB}:{cause.id}", kind=SCRUB, scope=scope, payload={}, due_at=now)


def build_id_filter(ids: set[str]) -> Callable[[bytes], bool]:
    """Return a predicate for bytes that contain one of *ids* as a separate word."""
    words = "|".join(re.escape(each) for each in sorted(ids - {""}))
    pattern = re.compile(rf"(?<![0-9A-Za-z])(?:{words})(?![0-9A-Za-z])".encode()) if words else None
    return lambda data: pattern is not None and pattern.search(data) is not None
