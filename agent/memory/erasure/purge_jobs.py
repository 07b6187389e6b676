"""`/forget … --purge`: durable jobs that erase words from every byte of the home (docs/adr/0012-purge.md).

The command erases the words at once (word_eraser.py) and enqueues `purge`, which erases them from versions, files,
journal and quarantine. It repeats this when the turns and jobs that were running at the time of the request have ended,
because these may have written the words again. All steps are idempotent. `scrub` then erases the words, and its own
job, from the journal's free pages. A plain `/forget` has a job `forget`, which repeats the synchronous part.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog

from agent.memory.erasure.scope_files import (
    BLOBS,
    RESULTS,
    ErasureStorage,
    ReferencedAttachments,
    clear_other_files,
    clear_raw,
    remove_attachments,
    remove_matching,
)
from agent.memory.erasure.word_eraser import ErasureRequester, WordEraser, WordErasureResult, may_clear
from agent.memory.erasure.word_match import ErasurePattern, clear_value, without_entries, without_sentences
from agent.memory.history.history_log import LOCK, redact_history
from agent.memory.jobs.job_runner import Handler, RetryJobLater
from agent.memory.scopes import scope_folder
from agent.memory.storage.transcript_lines import format_time, parse_time
from gateway.events import PlatformAccount, SessionKey
from gateway.ports import Job
from gateway.ports.erasure import ErasureFilter

log = structlog.get_logger(__name__)

FORGET, PURGE, SCRUB = "forget", "purge", "scrub"
_UPLOAD = "upload:"
_ROUNDS = 2
_POLL_INTERVAL, _MAX_POLLS = 0.1, 100  # seconds; most running turns end in this time
_RETRY_DELAY = timedelta(seconds=5)  # for the turns that do not
_REST_FACTOR = 20  # pause between scrubs, as a multiple of the duration of the last one
_SHORT_WAIT = timedelta(seconds=2)
_BUSY_DELAY = timedelta(seconds=10)  # while a reader blocks the scrub of the journal


@dataclass(slots=True)
class ScrubThrottle:
    """Limits scrubs, which block writes to the journal, to a twentieth of the time."""

    _next: float = 0.0

    def remaining(self) -> timedelta:
        """Return the time until the next scrub may start."""
        return timedelta(seconds=max(self._next - time.monotonic(), 0.0))

    def record(self, seconds: float) -> None:
        """Record the duration of a scrub that has just ended."""
        self._next = time.monotonic() + _REST_FACTOR * seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeJobs:
    """Handlers of the jobs. They hold *writing* while they change files."""

    storage: ErasureStorage
    word_eraser: WordEraser
    throttle: ScrubThrottle = field(default_factory=ScrubThrottle)

    @property
    def long(self) -> Mapping[str, Handler]:
        """Handlers that read many files."""
        return {FORGET: self.forget, PURGE: self.purge, SCRUB: self.scrub}

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
    ) -> tuple[WordErasureResult, Job]:
        """Erase words at once; return the result, and the job that does the rest.

        *upto* is the command's own inbox row. *change_name* is the staged change that asked for this
        erasure, in *request_turn*. If *is_deferred*, the job does all of it: a turn of another scope does not hold the
        lock of *scope*. Safe to retry.
        """
        now = self.storage.now()
        if is_deferred:
            result = WordErasureResult()
        elif is_purge:
            result = await self._clear_messages(scope, pattern, requester, page=turn, spare=change_name)
        else:
            result = await self.word_eraser.forget(
                scope, pattern, requester, turn=request_turn, page=turn, spare=change_name
            )
        running = await self._running(scope, key) - {turn}
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
            "awaited": sorted(running | {turn} if is_deferred else running),
            "at": format_time(now),
        }
        kind = PURGE if is_purge else FORGET
        return result, Job(id=f"{kind}:{turn}", kind=kind, scope=scope, payload=payload, due_at=now)

    async def forget(self, job: Job) -> RetryJobLater | None:
        """Erase the words again when the turns that knew them have ended; then delete the staged change."""
        payload: Mapping[str, Any] = job.payload
        pattern, requester = _request(payload)
        if awaited := frozenset(payload["awaited"]):
            if await self._is_running(job.scope, SessionKey.parse(payload["key"]), awaited, should_wait=True):
                return RetryJobLater(_RETRY_DELAY, "turns from the time of the request are still running", counts=False)
            page = f"{payload['turn']}.again"
            await self.word_eraser.forget(
                job.scope,
                pattern,
                requester,
                turn=payload["requested"],
                page=page,
                spare=payload["staged"],
                since=parse_time(payload.get("at")),
            )
            await self.storage.index.purge_stale(job.scope)
        await self.storage.staging.discard(job.scope, payload["staged"])
        return None

    async def purge(self, job: Job) -> RetryJobLater | None:
        """Erase the words everywhere; repeat while turns or jobs are running that may know the words."""
        payload: Mapping[str, Any] = job.payload
        pattern, requester = _request(payload)
        key = SessionKey.parse(str(payload["key"]))
        awaited, since = frozenset(payload["awaited"]), parse_time(payload.get("at"))
        for n in range(_ROUNDS):
            # Checked before the round: the next round covers what ends during this one.
            is_last = not await self._is_running(job.scope, key, awaited, should_wait=n > 0)
            await self._clear_messages(job.scope, pattern, requester, page=f"{payload['turn']}.{is_last}", since=since)
            await self._clear_files(job.scope, pattern, requester)
            reach = ErasureFilter(keys=await self._keys(job.scope, key), scope=job.scope, spare=frozenset({job.id}))
            await self._clear_records(reach, pattern, requester, upto=int(payload["upto"]))
            if is_last:
                break
        else:
            return RetryJobLater(_RETRY_DELAY, "turns from the time of the request are still running", counts=False)
        if payload.get("staged"):
            await self.storage.staging.discard(job.scope, str(payload["staged"]))
        await self.storage.jobs.put(scrub_job(job.scope, self.storage.now()))
        log.info("memory.purged", scope=job.scope)
        return None

    async def scrub(self, _: Job) -> RetryJobLater | None:
        """Erase deleted data from the journal's pages, within the limits of the throttle."""
        if (wait := self.throttle.remaining()) > _SHORT_WAIT:
            return RetryJobLater(wait, "the last one was a moment ago", counts=False)
        await asyncio.sleep(wait.total_seconds())
        started = time.monotonic()
        is_done = await self.storage.store.scrub()
        self.throttle.record(time.monotonic() - started)
        return None if is_done else RetryJobLater(_BUSY_DELAY, "the journal is being read", counts=False)

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
        await self.storage.transcripts.settle(scope)
        folder = scope_folder(self.storage.home, scope)
        attachments = ReferencedAttachments(pattern, may_clear(requester))
        await self.storage.transcripts.redact(scope, attachments.look)
        # Files before the lines that refer to them: after a crash the lines are still there to find them.
        await asyncio.to_thread(remove_attachments, self.storage.disk, folder, attachments.unreferenced)
        return await self.word_eraser.forget(
            scope, pattern, requester, turn="", whole=True, page=page, spare=spare, since=since
        )

    async def _clear_files(self, scope: str, pattern: ErasurePattern, requester: ErasureRequester) -> None:
        async with self.storage.writing:
            await asyncio.to_thread(self._clear_folder, scope, pattern, requester)
        await self.storage.index.purge_stale(scope)

    def _clear_folder(self, scope: str, pattern: ErasurePattern, requester: ErasureRequester) -> None:
        folder = scope_folder(self.storage.home, scope)
        memory = folder / "memory"
        if not folder.is_dir():
            return
        if memory.is_dir():
            # VersionKeeper works under this lock.
            with self.storage.disk.lock(memory / LOCK):
                self._clear_versions(scope, pattern, requester)
            clear_raw(self.storage.disk, memory, pattern, may_clear(requester))
        for name in (BLOBS, RESULTS):  # the next turn takes a new snapshot
            remove_matching(self.storage.disk, folder / name, pattern)
        if requester.may_all:
            self.storage.versions.drop_broken(scope)
            redact_history(memory, self.storage.disk, lambda text: without_sentences(text, pattern))
            clear_other_files(self.storage.disk, self.storage.home, scope, pattern)

    def _clear_versions(self, scope: str, pattern: ErasurePattern, requester: ErasureRequester) -> None:
        def redact(text: bytes, authors: Mapping[str, str]) -> bytes:
            plain = text.decode("utf-8", "surrogateescape")
            cleared, count = without_entries(
                plain, pattern, lambda line: requester.may_all or authors.get(line, "") == requester.account.name
            )
            return cleared.encode("utf-8", "surrogateescape") if count else text

        change = (lambda why: without_sentences(why, pattern)) if requester.may_all else str
        self.storage.versions.rewrite(scope, redact, change=change)

    async def _clear_records(
        self, reach: ErasureFilter, pattern: ErasurePattern, requester: ErasureRequester, *, upto: int
    ) -> None:
        tokens: set[str] = set()

        def change(value: Any) -> Any:
            cleared = clear_value(value, pattern)
            if isinstance(value, Mapping) and "attachments" in value and cleared != value:
                # The attachments of a matching message are removed too.
                tokens.update(str(each.get("url", "")).removeprefix(_UPLOAD) for each in value["attachments"])
                cleared = {**cleared, "attachments": []}
            return cleared

        sender = "" if requester.may_all else requester.sender
        allowed = ErasureFilter(
            keys=reach.keys, scope=None if sender else reach.scope, sender=sender, upto=upto, spare=reach.spare
        )
        await self.storage.store.redact(allowed, change)
        ids = {requester.sender} | ({key.chat for key in reach.keys} if requester.may_all else set())
        mentions = build_id_filter(ids)
        channels = {key.channel for key in reach.keys}

        def is_match(channel: str, data: bytes) -> bool:
            return channel in channels and mentions(data) and pattern.in_bytes(data)

        await self.storage.unscoped_data.forget(is_match, tokens=tokens - {""})

    async def _is_running(self, scope: str, key: SessionKey, awaited: frozenset[str], *, should_wait: bool) -> bool:
        """Return True if one of *awaited* is running; with *should_wait*, wait a moment for them to end."""
        for _ in range(_MAX_POLLS if should_wait else 1):
            if not awaited or not awaited & await self._running(scope, key):
                return False
            await asyncio.sleep(_POLL_INTERVAL if should_wait else 0)
        return True

    async def _running(self, scope: str, key: SessionKey) -> frozenset[str]:
        """Return the running turns and jobs of *scope*, and first turns, whose scope is not known yet."""
        new = {each.key for each in await self.storage.records.sessions() if not each.scope}
        return await self.storage.store.at_work(ErasureFilter(keys=await self._keys(scope, key) | new, scope=scope))

    async def _keys(self, scope: str, key: SessionKey) -> frozenset[SessionKey]:
        return frozenset({key, *(each.key for each in await self.storage.records.sessions() if each.scope == scope)})


def _request(payload: Mapping[str, Any]) -> tuple[ErasurePattern, ErasureRequester]:
    """Return the words and the requester of a job."""
    requester = ErasureRequester(
        account=PlatformAccount.from_name(str(payload["person"])),
        sender=str(payload["sender"]),
        may_all=bool(payload["may_all"]),
    )
    return ErasurePattern(str(payload["words"]), str(payload.get("language", ""))), requester


def scrub_job(scope: str, now: datetime) -> Job:
    """Return the job that follows a purge; a scope has at most one pending."""
    return Job(id=f"{SCRUB}:{scope}", kind=SCRUB, scope=scope, payload={}, due_at=now)


def build_id_filter(ids: set[str]) -> Callable[[bytes], bool]:
    """Return a predicate for bytes that contain one of *ids* as a separate word."""
    words = "|".join(re.escape(each) for each in sorted(ids - {""}))
    pattern = re.compile(rf"(?<![0-9A-Za-z])(?:{words})(?![0-9A-Za-z])".encode()) if words else None
    return lambda data: pattern is not None and pattern.search(data) is not None
