"""`/forget … --purge`: the words leave every byte that is in our reach, as durable work behind the command.

The command itself forgets at once (forgetter.py). What follows are two jobs. `purge` goes through versions, files,
journal and quarantine, and again once the turns and jobs have ended that were under way when it was asked for: what
they knew they may have written. Each of its steps may be done twice. `scrub` then leaves nothing of it in the
journal's own pages, its own job included (docs/adr/0012-purge.md).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import structlog

from agent.memory.documents.version_store import VersionStore
from agent.memory.erasure.derived_index import DerivedIndex
from agent.memory.erasure.scope_files import (
    SESSIONS,
    ReferencedAttachments,
    clear_blobs,
    clear_other_files,
    clear_raw,
    remove_attachments,
)
from agent.memory.erasure.word_eraser import (
    ErasureRequester,
    RedactableTranscripts,
    WordEraser,
    WordErasureResult,
    may_clear,
)
from agent.memory.erasure.word_match import ErasurePattern, clear_value, without_entries, without_sentences
from agent.memory.history.history_log import LOCK, redact_history
from agent.memory.jobs.job_runner import Handler, RetryJobLater
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from gateway.events import SessionKey
from gateway.ports import Job, JobQueue, TurnRecordStore
from gateway.ports.erasure import ErasureFilter, ErasureStore, UnscopedData

log = structlog.get_logger(__name__)

PURGE, SCRUB = "purge", "scrub"
_UPLOAD = "upload:"
_ROUNDS = 2
_LOOK, _LOOKS = 0.1, 100  # seconds between looks at what was under way, and how many: most turns end meanwhile
_AGAIN = timedelta(seconds=5)  # for those that do not
_REST = 20  # times as long as a scrub took, before the next one
_SHORT = timedelta(seconds=2)
_BUSY = timedelta(seconds=10)  # while somebody reads the journal


@dataclass(slots=True)
class ScrubThrottle:
    """Takes care that everybody's writes wait for a scrub a twentieth of the time at most."""

    _next: float = 0.0

    def wait(self) -> timedelta:
        """Return how long it is too soon."""
        return timedelta(seconds=max(self._next - time.monotonic(), 0.0))

    def took(self, seconds: float) -> None:
        """Say how long a scrub took that has just ended."""
        self._next = time.monotonic() + _REST * seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeJobs:
    """Does the jobs. *writing* is held while files change."""

    home: Path
    forgetter: WordEraser
    versions: VersionStore
    transcripts: RedactableTranscripts
    records: TurnRecordStore
    jobs: JobQueue
    erasing: ErasureStore
    leftovers: UnscopedData
    index: DerivedIndex
    writing: asyncio.Lock
    now: Callable[[], datetime]
    disk: Disk = field(default_factory=Disk)
    pace: ScrubThrottle = field(default_factory=ScrubThrottle)

    @property
    def long(self) -> Mapping[str, Handler]:
        """What goes through many files."""
        return {PURGE: self.purge, SCRUB: self.scrub}

    async def begin(
        self, scope: str, wanted: ErasurePattern, asker: ErasureRequester, *, key: SessionKey, upto: int, turn: str
    ) -> tuple[WordErasureResult, Job]:
        """Forget at once; return how much, and the job that does the rest. *upto* is the command's own inbox row."""
        gone = await self._clear_said(scope, wanted, asker, page=turn)
        under_way = await self._at_work(scope, key)
        payload = {
            "words": wanted.folded,
            "person": asker.person,
            "sender": asker.sender,
            "may_all": asker.may_all,
            "key": str(key),
            "upto": upto,
            "turn": turn,
            "awaited": sorted(under_way - {turn}),
        }
        return gone, Job(id=f"{PURGE}:{turn}", kind=PURGE, scope=scope, payload=payload, due_at=self.now())

    async def purge(self, job: Job) -> RetryJobLater | None:
        """Go through every place once; again after a moment while something is under way that knew the words."""
        asked: Mapping[str, Any] = job.payload
        wanted = ErasurePattern(str(asked["words"]))
        asker = ErasureRequester(
            person=str(asked["person"]), sender=str(asked["sender"]), may_all=bool(asked["may_all"])
        )
        key = SessionKey.parse(str(asked["key"]))
        awaited = frozenset(asked["awaited"])
        for n in range(_ROUNDS):
            # Looked at before the round: what ends while we are at it is met by the next one.
            is_last = not await self._is_under_way(job.scope, key, awaited, patient=n > 0)
            await self._clear_said(job.scope, wanted, asker, page=f"{asked['turn']}.{is_last}")
            await self._clear_files(job.scope, wanted, asker)
            reach = ErasureFilter(keys=await self._keys(job.scope, key), scope=job.scope, spare=frozenset({job.id}))
            await self._clear_records(reach, wanted, asker, upto=int(asked["upto"]))
            if is_last:
                break
        else:
            return RetryJobLater(_AGAIN, "what was under way then has not ended", counts=False)
        await self.jobs.put(scrubbing(job.scope, self.now()))
        log.info("memory.purged", scope=job.scope)
        return None

    async def scrub(self, _: Job) -> RetryJobLater | None:
        """Leave nothing in the journal's pages; seldom enough that nobody can hold up everybody by purging all day."""
        if (wait := self.pace.wait()) > _SHORT:
            return RetryJobLater(wait, "the last one was a moment ago", counts=False)
        await asyncio.sleep(wait.total_seconds())
        began = time.monotonic()
        is_done = await self.erasing.scrub()
        self.pace.took(time.monotonic() - began)
        return None if is_done else RetryJobLater(_BUSY, "somebody reads the journal", counts=False)

    # -- places ------------------------------------------------------------------------------------

    async def _clear_said(
        self, scope: str, wanted: ErasurePattern, asker: ErasureRequester, *, page: str
    ) -> WordErasureResult:
        folder = scope_folder(self.home, scope)
        named = ReferencedAttachments(wanted, may_clear(asker))
        await self.transcripts.redact(folder / SESSIONS, named.look)
        # The bytes before the lines that name them: a crash between the two leaves the names to find them by.
        await asyncio.to_thread(remove_attachments, self.disk, folder, named.cleared_only)
        return await self.forgetter.forget(scope, wanted, asker, turn="", whole=True, page=page)

    async def _clear_files(self, scope: str, wanted: ErasurePattern, asker: ErasureRequester) -> None:
        async with self.writing:
            await asyncio.to_thread(self._clear_folder, scope, wanted, asker)
        await self.index.purge_stale(scope)

    def _clear_folder(self, scope: str, wanted: ErasurePattern, asker: ErasureRequester) -> None:
        folder = scope_folder(self.home, scope)
        memory = folder / "memory"
        if not folder.is_dir():
            return
        if memory.is_dir():
            # The keeper of versions works under this lock.
            with self.disk.lock(memory / LOCK):
                self._clear_versions(scope, wanted, asker)
            clear_raw(self.disk, memory, wanted, may_clear(asker))
        clear_blobs(self.disk, folder, wanted)
        if asker.may_all:
            self.versions.drop_broken(scope)
            redact_history(memory, self.disk, lambda text: without_sentences(text, wanted))
            clear_other_files(self.disk, self.home, scope, wanted)

    def _clear_versions(self, scope: str, wanted: ErasurePattern, asker: ErasureRequester) -> None:
        def redact(text: bytes, brought: Mapping[str, str]) -> bytes:
            plain = text.decode("utf-8", "surrogateescape")
            left, gone = without_entries(
                plain, wanted, lambda line: asker.may_all or brought.get(line, "") == asker.person
            )
            return left.encode("utf-8", "surrogateescape") if gone else text

        change = (lambda why: without_sentences(why, wanted)) if asker.may_all else str
        self.versions.rewrite(scope, redact, change=change)

    async def _clear_records(
        self, reach: ErasureFilter, wanted: ErasurePattern, asker: ErasureRequester, *, upto: int
    ) -> None:
        tokens: set[str] = set()

        def change(value: Any) -> Any:
            left = clear_value(value, wanted)
            if isinstance(value, Mapping) and "attachments" in value and left != value:
                # What came with the words goes with them.
                tokens.update(str(each.get("url", "")).removeprefix(_UPLOAD) for each in value["attachments"])
                left = {**left, "attachments": []}
            return left

        own = "" if asker.may_all else asker.sender
        mine = ErasureFilter(
            keys=reach.keys, scope=None if own else reach.scope, sender=own, upto=upto, spare=reach.spare
        )
        await self.erasing.redact(mine, change)
        ids = {asker.sender} | ({key.chat for key in reach.keys} if asker.may_all else set())
        about = mentions(ids)
        channels = {key.channel for key in reach.keys}

        def is_meant(channel: str, data: bytes) -> bool:
            return channel in channels and about(data) and wanted.in_bytes(data)

        await self.leftovers.forget(is_meant, tokens=tokens - {""})

    async def _is_under_way(self, scope: str, key: SessionKey, awaited: frozenset[str], *, patient: bool) -> bool:
        """Say whether something of *awaited* is under way; when *patient*, after waiting a moment for it to end."""
        for _ in range(_LOOKS if patient else 1):
            if not awaited or not awaited & await self._at_work(scope, key):
                return False
            await asyncio.sleep(_LOOK if patient else 0)
        return True

    async def _at_work(self, scope: str, key: SessionKey) -> frozenset[str]:
        """Return the turns and jobs of *scope* that are under way, and first turns, whose scope is not known yet."""
        new = {each.key for each in await self.records.sessions() if not each.scope}
        return await self.erasing.at_work(ErasureFilter(keys=await self._keys(scope, key) | new, scope=scope))

    async def _keys(self, scope: str, key: SessionKey) -> frozenset[SessionKey]:
        return frozenset({key, *(each.key for each in await self.records.sessions() if each.scope == scope)})


def scrubbing(scope: str, now: datetime) -> Job:
    """Return the job that follows a purge; several of a scope that wait are one."""
    return Job(id=f"{SCRUB}:{scope}", kind=SCRUB, scope=scope, payload={}, due_at=now)


def mentions(ids: set[str]) -> Callable[[bytes], bool]:
    """Return what says whether bytes name one of *ids* as a word of its own."""
    words = "|".join(re.escape(each) for each in sorted(ids - {""}))
    named = re.compile(rf"(?<![0-9A-Za-z])(?:{words})(?![0-9A-Za-z])".encode()) if words else None
    return lambda data: named is not None and named.search(data) is not None
