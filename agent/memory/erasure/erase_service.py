"""Service behind `/forget`: erase words at once, purge words from every byte, or erase a whole scope."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from agent.base.scopes import scope_folder
from agent.base.transcript_lines import format_time, parse_time
from agent.memory.editing.staged_changes import StagedChange, StagedChangeStore, StagedErasure
from agent.memory.erasure.retention import RetentionJob
from agent.memory.erasure.scope_eraser import PEOPLE, ScopeEraser
from agent.memory.erasure.scope_files import (
    SCRUB,
    ErasureStorage,
    ReferencedAttachments,
    build_id_filter,
    clear_history,
    clear_other_files,
    clear_raw,
    owe_mirror,
    pay_mirror,
    remove_matching,
    remove_set_aside,
    scrub_job,
)
from agent.memory.erasure.word_eraser import (
    ASK_ERASURE,
    ErasureRequest,
    ErasureRequester,
    WordEraser,
    WordErasureResult,
    may_clear,
)
from agent.memory.erasure.word_match import ErasurePattern, clear_value, without_entries, without_sentences
from agent.memory.jobs.job_runner import JobErasure, JobKind, JobPace, RetryJobLater
from agent.memory.storage.scope_documents import rewrite_history
from gateway.events import PlatformAccount, SessionKey
from gateway.ports.journal import Job, JobAdvance
from gateway.ports.memory import FORGET, FORGOTTEN, PURGE, ErasureFilter, FileKind

if TYPE_CHECKING:
    from agent.memory.search.scope_recall import ScopeRecall
log = structlog.get_logger(__name__)

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
        """Delete the staged change of an erasure that is done; later messages stay.

        If an editor has saved a document since, the words are erased again.
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
        await self.storage.session_files.flush()
        attachments = ReferencedAttachments(pattern, may_clear(requester))
        await self.storage.transcripts.rewrite(scope, attachments.look)
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


ASK_ERASURE_JOBS = JobKind(name=ASK_ERASURE, pace=JobPace.QUICK, erasure=JobErasure.ADMIN)
DOWNLOADS = "downloads"  # a folder of the home with files that the console chat saved


@dataclass(frozen=True, slots=True)
class EraseService:
    """Erases what a requester asks for, within their rights."""

    word_eraser: WordEraser
    purge_jobs: PurgeJobs
    scope_eraser: ScopeEraser
    retention: RetentionJob
    index: ScopeRecall
    staging: StagedChangeStore
    settle: Callable[[str], Awaitable[None]]  # stores the facts that earlier turns of a scope remember
    saving_platforms: AbstractSet[str] = frozenset()  # those that save files in the home's downloads folder

    async def forget(
        self, scope: str, pattern: ErasurePattern, requester: ErasureRequester, *, turn: str
    ) -> WordErasureResult:
        """Erase words from the documents, summaries, notes and transcripts of *scope*."""
        storage = self.purge_jobs.storage
        await owe_mirror(storage.home, scope, storage.disk, erasure="command")
        result = await self.word_eraser.forget(scope, pattern, requester, turn=turn)
        if result.total:
            await self.index.purge_stale(scope)  # a search must not find the words either
        await storage.settle_documents(scope)
        await pay_mirror(storage.home, scope, storage.disk, erasure="command")
        return result

    async def purge(
        self, scope: str, pattern: ErasurePattern, requester: ErasureRequester, *, key: SessionKey, upto: int, turn: str
    ) -> tuple[WordErasureResult, JobAdvance]:
        """Erase words at once; return the result, and the job for the command's commit that purges every byte."""
        result = await self.purge_jobs.begin(scope, pattern, requester, key=key, upto=upto, turn=turn)
        await self.index.purge_stale(scope)
        return result

    async def stage(
        self,
        scope: str,
        pattern: ErasurePattern,
        requester: ErasureRequester,
        *,
        turn: str,
        cause: str = "",
        is_purge: bool = False,
        session: str = "",
    ) -> StagedChange | WordErasureResult:
        """Stage an erasure for approval by the requester; return the result of the search if it found nothing.

        The messages of *turn* are kept; it is also the cause, unless *cause* is given. A purge is always staged:
        earlier versions and other copies may contain words that are found nowhere else. With *session* a question is
        sent there after the turn. Safe to retry.
        """
        searched = pattern.deep if is_purge else pattern
        preview = await self.word_eraser.preview(scope, searched, requester, turn=turn, whole=is_purge)
        if not preview.result.total and not is_purge:
            return preview.result
        erasure = StagedErasure(
            words=pattern.request,
            language=pattern.language,
            sender=requester.sender,
            may_all=requester.may_all,
            is_purge=is_purge,
            turn=turn,
            remembered=preview.result.remembered,
            summaries=preview.result.summaries,
            messages=preview.result.messages,
            files=preview.result.files,
            examples=preview.examples,
        )
        cause = f"{cause or turn}.{pattern.request}"
        return await self.staging.stage_erasure(scope, cause, erasure, account=requester.account, session=session)

    async def ask(self, job: Job) -> None:
        """Stage the erasure that a turn's tool asked for; its question is sent to the session afterwards."""
        payload = job.payload
        pattern = ErasurePattern(str(payload["words"]), str(payload["language"]))
        requester = ErasureRequester(
            account=PlatformAccount.from_name(str(payload["by"])),
            sender=str(payload["sender"]),
            may_all=bool(payload["may_all"]),
        )
        # The turn's own message is no command: it is in prompts, so it is erased too.
        await self.stage(job.scope, pattern, requester, turn="", cause=job.id, session=str(payload["session"]))

    async def approve(
        self,
        scope: str,
        name: str,
        *,
        may_all: bool,
        key: SessionKey,
        upto: int,
        turn: str,
        is_deferred: bool = False,
    ) -> tuple[StagedErasure, WordErasureResult, JobAdvance] | None:
        """Erase what the staged erasure *name* asks for, as it matches now; return None if it was decided or expired.

        The job belongs into the commit of *turn*; *may_all* is whether that turn may erase other people's messages.
        With *is_deferred* the job does all of it: *turn* is one of another scope. A repeated turn gets an equal job,
        and continues an erasure that a crash interrupted.
        """
        if not is_deferred:
            await self.settle(scope)  # a yes does not wait in the session queue, where a turn would have done it
        change = await self.staging.claim_erasure(scope, name, turn)
        if change is None or change.erasure is None or change.account is None:
            return None
        erasure = change.erasure
        requester = ErasureRequester(account=change.account, sender=erasure.sender, may_all=erasure.may_all and may_all)
        pattern = ErasurePattern(erasure.words, erasure.language)
        try:
            result, job = await self.purge_jobs.begin(
                scope,
                pattern,
                requester,
                key=key,
                upto=upto,
                turn=turn,
                is_purge=erasure.is_purge,
                request_turn=erasure.turn,
                change_name=change.name,
                is_deferred=is_deferred,
            )
        except OSError:
            await self.staging.release_erasure(scope, change)
            raise
        if not is_deferred:
            await self.index.purge_stale(scope)
        if erasure.decided:  # an earlier attempt of this turn erased the rest
            result = replace(
                result,
                remembered=max(result.remembered, erasure.remembered),
                summaries=max(result.summaries, erasure.summaries),
                messages=max(result.messages, erasure.messages),
                files=max(result.files, erasure.files),
            )
        return erasure, result, job

    async def erase_scope(self, scope: str, *, turn: str) -> Job:
        """Clear the documents of *scope*; return the job for the command's commit that erases the rest."""
        return await self.scope_eraser.begin(scope, turn=turn)

    async def has_downloads(self, scope: str, key: SessionKey) -> bool:
        """Return True if the downloads folder, which no erasure changes, may have files of *scope*.

        *key* is the chat that the request came from.
        """
        accounts = self.scope_eraser.links.accounts(scope.removeprefix(PEOPLE)) if scope.startswith(PEOPLE) else ()
        kinds = {self.scope_eraser.kind(key.channel), *(each.account.kind for each in accounts)}
        if self.saving_platforms.isdisjoint(kinds):
            return False
        return await asyncio.to_thread(has_downloads, self.scope_eraser.storage.home)


def has_downloads(home: Path) -> bool:
    """Return True if there are files in the downloads folder. Blocks."""
    return any(path.is_file() for path in (home / DOWNLOADS).rglob("*"))
