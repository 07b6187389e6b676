"""Everything of a scope, and everybody's own: `/forget everything`, `parlour people forget`. Twice is once.

A scope is erased while nobody is at work in it. What a person said in groups is taken out line by line, with the
answers to it: a turn is one person's (docs/adr/0012-purge.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import structlog

from agent.memory.account_links.scope_lock import ScopeLock
from agent.memory.documents.version_store import VersionStore
from agent.memory.erasure.derived_index import DerivedIndex
from agent.memory.erasure.member_data import GroupMember
from agent.memory.erasure.purge_jobs import mentions, scrubbing
from agent.memory.erasure.scope_files import scope_paths
from agent.memory.erasure.word_eraser import DOCUMENTS, WordEraser
from agent.memory.jobs.job_runner import Handler, RetryJobLater
from agent.memory.storage.disk import Disk
from gateway.events import PlatformAccount, SessionKey
from gateway.ports import AccountLinkStore, DocumentStore, Job, JobQueue, PreferenceStore, ScopeMove, TurnRecordStore
from gateway.ports.erasure import ErasureFilter, ErasureStore, UnscopedData

log = structlog.get_logger(__name__)

ERASE = "erase"
VOICE = "SOUL.md"
PEOPLE, CHATS, SHARED = "people/", "chats/", "shared"
_NOT_YET = timedelta(seconds=2)
_LOOK, _LOOKS = 0.1, 600  # seconds between looks at turns that somebody has under way, and how many
_TRIES = 5


class ErasableTranscripts(Protocol):
    """Who owns the transcript files."""

    async def flush(self) -> bool:
        """Write what is committed by now; False when something had to stay in the journal."""
        ...

    async def redact(self, folder: Path, change: Callable[[bytes], bytes]) -> int:
        """Put every line of the folder's transcripts through *change*."""
        ...

    async def remove(self, paths: Sequence[Path]) -> None:
        """Take files and folders away."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureResult:
    """What was done for somebody who is to be forgotten."""

    person: str
    scopes: tuple[str, ...]  # their own, gone
    chats: tuple[str, ...]  # where they spoke; their words are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeEraser:
    """Erases. *kind* tells a channel block's platform; *reopen* lets go of what is known of a scope."""

    home: Path
    files: ErasableTranscripts
    forgetter: WordEraser
    versions: VersionStore
    documents: DocumentStore
    records: TurnRecordStore
    jobs: JobQueue
    people: PreferenceStore
    links: AccountLinkStore
    erasing: ErasureStore
    leftovers: UnscopedData
    scope_lock: ScopeLock
    index: DerivedIndex
    writing: asyncio.Lock
    reopen: Callable[[str], None]
    kind: Callable[[str], str]
    now: Callable[[], datetime]
    disk: Disk = field(default_factory=Disk)

    @property
    def long(self) -> Mapping[str, Handler]:
        """What removes many files. It waits until nobody is at work in the scope, so it may not count as such."""
        return {ERASE: self.erase}

    async def begin(self, scope: str, *, turn: str) -> Job:
        """Let nothing be remembered from now on; return the job that erases the rest, for the command's commit."""
        async with self.writing:
            for name in DOCUMENTS:
                if scope or name != VOICE:  # the home's own voice is the installation's
                    await self._empty(scope, name)
            await self.forgetter.request_new_snapshots(scope, turn)
        self.reopen(scope)
        return Job(id=f"{ERASE}:{turn}", kind=ERASE, scope=scope, payload={}, due_at=self.now())

    async def erase(self, job: Job) -> RetryJobLater | None:
        """Erase the job's scope once nobody is at work in it."""
        async with self.scope_lock.hold_exclusive(job.scope):
            if not await self.files.flush():
                return RetryJobLater(_NOT_YET, "what was said is not in its files yet", counts=False)
            await self.everything(job.scope, spare=frozenset({job.id}))
        await self.jobs.put(scrubbing(job.scope, self.now()))
        return None

    async def person(self, account: PlatformAccount) -> ErasureResult:
        """Erase the scope of the person with *account* and their messages in groups. Raises OSError."""
        person = self.links.person(account.name)
        accounts = [each.identity for each in self.links.accounts(person)] or [person]
        scopes = [f"{PEOPLE}{each}" for each in dict.fromkeys([person, *accounts])]
        for scope in scopes:
            async with self.scope_lock.hold_exclusive(scope):
                await _until(self.files.flush, "what was said cannot be written to its files")
                await self.everything(scope)
        shared = await asyncio.to_thread(self._shared_scopes)
        chats = [scope for scope in shared if await self._member(scope, frozenset([person, *accounts]))]
        await _until(self.erasing.scrub, "somebody reads the journal; do it again when that is done")
        log.info("memory.person_forgotten", scopes=len(scopes), chats=len(chats))
        return ErasureResult(person=person, scopes=tuple(scopes), chats=tuple(chats))

    async def everything(self, scope: str, *, spare: frozenset[str] = frozenset()) -> None:
        """Erase all that is kept of *scope*, jobs of the ids *spare* excepted; nobody may be at work in it.

        Files, journal rows, choices, links, the person in sums, events in quarantine. `Erasing.scrub` then takes it out
        of the journal's pages. Raises OSError.
        """
        keys = frozenset(each.key for each in await self.records.sessions() if each.scope == scope)
        person = scope.removeprefix(PEOPLE) if scope.startswith(PEOPLE) else ""
        accounts = {person, *(each.identity for each in self.links.accounts(person))} if person else set()
        ids = {PlatformAccount.from_name(each).id for each in accounts}
        await self._clear_records(keys, ids)
        await self._clear_leftovers(keys, ids | {key.chat for key in keys})
        for each in sorted(accounts):
            await self.erasing.unlink(person=each, keys=keys)
        if person:
            await self._clear_choices({scope, *(str(key.parent) for key in keys)})
        await self.index.close_index(scope)
        await self.files.remove(await asyncio.to_thread(scope_paths, self.home, scope))
        # Last, since they tell what is the scope's: who is killed before finds it all again.
        await self.erasing.drop_jobs(scope, spare=spare)
        await self.erasing.drop_sessions(keys)
        await self._unlink(scope, accounts - {person})
        self.reopen(scope)
        log.info("memory.erased", scope=scope, chats=len(keys))

    # -- a scope -----------------------------------------------------------------------------------

    async def _clear_records(self, keys: frozenset[SessionKey], ids: Collection[str]) -> None:
        await self.erasing.redact(ErasureFilter(keys=keys, is_over=True), blank_value)
        for each in ids:
            await self.erasing.anonymise(sender=each, keys=keys)

    async def _clear_choices(self, subjects: Collection[str]) -> None:
        """Take back what was chosen, for a person or in a direct chat of theirs."""
        for subject in sorted(subjects):
            for name in list(self.people.preferences(subject)):
                await self.people.prefer(subject, name, "")

    async def _clear_leftovers(self, keys: frozenset[SessionKey], ids: set[str]) -> None:
        about, channels = mentions(ids), {key.channel for key in keys}
        await self.leftovers.forget(lambda channel, data: channel in channels and about(data))

    async def _unlink(self, scope: str, accounts: Collection[str]) -> None:
        """Let accounts that were one person's be nobody's."""
        for each in sorted(accounts):
            target = f"{PEOPLE}{each}"
            move = ScopeMove(
                id=f"{ERASE}:{each}", kind="unlink", source=scope, target=target, at=self.now(), identity=each
            )
            await self.links.unlink(move)
            await self.links.mark_moved(move)

    async def _empty(self, scope: str, name: str) -> None:
        for _ in range(_TRIES):
            document = await self.documents.read(scope, name)
            if not document.text or await self.documents.write(scope, name, "", was=document.rev, why="forget"):
                return
        raise OSError(f"{name} is being written to all the time")

    # -- a person in others' scopes ----------------------------------------------------------------

    def _shared_scopes(self) -> list[str]:
        chats = [f"{CHATS}{path.name}" for path in sorted((self.home / CHATS).glob("*")) if path.is_dir()]
        return [*chats, SHARED] if (self.home / SHARED).is_dir() else chats

    async def _member(self, scope: str, accounts: frozenset[str]) -> bool:
        """Take somebody's words out of a shared scope; say whether they had any there."""
        keys = frozenset(each.key for each in await self.records.sessions() if each.scope == scope)
        kinds = {self.kind(key.channel) for key in keys}
        every = map(PlatformAccount.from_name, accounts)
        ids = frozenset(each.id for each in every if each.kind in kinds)
        member = GroupMember(self.home, scope, ids=ids, accounts=accounts, disk=self.disk, versions=self.versions)
        awaited = await self.erasing.at_work(ErasureFilter(keys=keys))
        found = await self._clear_member(member, keys)
        # What they had under way knew their words, and may have written them.
        for _ in range(_LOOKS):
            if not awaited & await self.erasing.at_work(ErasureFilter(keys=keys)):
                break
            await asyncio.sleep(_LOOK)
        if awaited:
            found = await self._clear_member(member, keys) or found
        return found

    async def _clear_member(self, member: GroupMember, keys: frozenset[SessionKey]) -> bool:
        scope = member.scope
        found = await member.clear_said(self.files.redact)
        async with self.writing:
            for name in DOCUMENTS:
                found = await self._clear_document(member, name) or found
            for job in await self.jobs.pending_in(scope):
                if job.payload.get("by") in member.accounts:
                    await self.jobs.finish(job)
            found = await asyncio.to_thread(member.clear_files) or found
            if found:
                await self.forgetter.request_new_snapshots(scope, f"erased {self.now():%Y%m%dT%H%M%S%f}")
        for each in member.ids:
            found = (
                bool(await self.erasing.redact(ErasureFilter(keys=keys, sender=each, is_over=True), blank_value))
                or found
            )
            await self.erasing.anonymise(sender=each, keys=keys)
        if found:
            await self._clear_leftovers(keys, set(member.ids))
            await self.index.purge_stale(scope)
            self.reopen(scope)
        return found

    async def _clear_document(self, member: GroupMember, name: str) -> bool:
        for _ in range(_TRIES):
            document = await self.documents.read(member.scope, name)
            text = await asyncio.to_thread(member.without_lines, name, document.text)
            if text == document.text:
                return False
            if await self.documents.write(member.scope, name, text, was=document.rev, why="forget"):
                return True
        raise OSError(f"{name} is being written to all the time")


async def _until(done: Callable[[], Awaitable[bool]], wrong: str) -> None:
    for _ in range(_LOOKS):
        if await done():
            return
        await asyncio.sleep(_LOOK)
    raise OSError(wrong)


def blank_value(value: Any) -> Any:
    """Return a JSON value that says nothing: texts are empty, files are gone."""
    if isinstance(value, str):
        return ""
    if isinstance(value, list | tuple):
        return [blank_value(each) for each in value]
    if isinstance(value, Mapping):
        return {name: [] if name == "attachments" else blank_value(each) for name, each in value.items()}
    return value
