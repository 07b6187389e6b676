"""Erase a whole scope (`/forget everything`), or a person with their messages in groups (`parlour people forget`).

A scope is erased under its exclusive lock. A person's turns in groups are cleared line by line, including the answers
(docs/adr/0012-purge.md). Everything is idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import structlog

from agent.base.file_facts import facts_in
from agent.base.transcript_lines import decode, encode, kind_of
from agent.memory.erasure.scope_files import (
    ErasureStorage,
    ReferencedAttachments,
    build_id_filter,
    clear_raw,
    owe_mirror,
    pay_mirror,
    scope_paths,
    scrub_job,
)
from agent.memory.erasure.word_eraser import DOCUMENTS, WordEraser
from agent.memory.erasure.word_match import ALL, blank_value, without_entries, without_words
from agent.memory.jobs.job_runner import JobKind, JobPace, RetryJobLater, ScopeLock
from agent.memory.storage.scope_documents import SOUL, change_document, rewrite_history, select_documents
from gateway.events import PlatformAccount, SessionKey
from gateway.ports.access import ScopeMove
from gateway.ports.journal import Job, Line
from gateway.ports.memory import ErasureFilter, FileKind

if TYPE_CHECKING:
    from gateway.store.account_links import SqlAccountLinks
    from gateway.store.records import SqlPreferences
log = structlog.get_logger(__name__)

ERASE = "erase"
SCOPE_ERASURE_JOBS = JobKind(name=ERASE, pace=JobPace.LONG, locks_scopes=True)
PEOPLE, CHATS, SHARED = "people/", "chats/", "shared"
_RETRY_DELAY = timedelta(seconds=2)
_MOST_WAITS = 4  # for turns and jobs of other gateways, before an erasure and behind it
_BUSY_ELSEWHERE = "another gateway runs a turn or a job of this memory"
_POLL_INTERVAL, _MAX_POLLS = 0.1, 600  # seconds; how long running turns are waited for
_JOURNAL_IS_READ = "the journal is being read by another process; try again later"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureResult:
    """Result of erasing a person."""

    person: str
    scopes: tuple[str, ...]  # erased
    chats: tuple[str, ...]  # scopes of groups that the person's messages were cleared from


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeEraser:
    """Erases scopes and persons. *kind* returns a channel's platform."""

    storage: ErasureStorage
    word_eraser: WordEraser
    people: SqlPreferences
    links: SqlAccountLinks
    scope_lock: ScopeLock
    forget_logins: Callable[[Collection[str] | None], Awaitable[object]]  # at services, of accounts; None = of all
    kind: Callable[[str], str]

    async def begin(self, scope: str, *, turn: str) -> Job:
        """Clear the documents; return the job for the command's commit that erases the rest."""
        async with self.storage.writing:
            for name in DOCUMENTS:
                if scope or name != SOUL:  # the home's own persona belongs to the installation
                    await change_document(self.storage.documents, scope, name, lambda _: "", why="forget")
            await self.word_eraser.request_new_snapshots(scope, turn)
        self.storage.reopen(scope)
        return Job(id=f"{ERASE}:{turn}", kind=ERASE, scope=scope, payload={}, due_at=self.storage.now())

    async def erase(self, job: Job) -> RetryJobLater | None:
        """Erase the job's scope under its exclusive lock, and again if another gateway has begun something of it.

        In a chat that is never quiet, that is not waited for without end.
        """
        async with self.scope_lock.hold_exclusive(job.scope):
            if job.attempts < _MOST_WAITS and await self.storage.store.is_in_use_elsewhere(job.scope):
                return RetryJobLater(_RETRY_DELAY, _BUSY_ELSEWHERE)
            if not await self.storage.session_files.flush():
                return RetryJobLater(_RETRY_DELAY, "messages are not written yet", counts=False)
            await self.erase_scope(job.scope, spare=frozenset({job.id}))
            if job.attempts < 2 * _MOST_WAITS and await self.storage.store.is_in_use_elsewhere(job.scope):
                return RetryJobLater(_RETRY_DELAY, _BUSY_ELSEWHERE)
        await self.storage.jobs.put(scrub_job(job, job.scope, self.storage.now()))
        return None

    async def erase_person(self, account: PlatformAccount) -> ErasureResult:
        """Erase the scope of the person with *account* and their messages in groups. Raises OSError."""
        person = self.links.person(account)
        accounts = [each.account.name for each in self.links.accounts(person)] or [person]
        scopes = [f"{PEOPLE}{each}" for each in dict.fromkeys([person, *accounts])]
        for scope in scopes:
            async with self.scope_lock.hold_exclusive(scope):
                await _retry_until_true(self.storage.session_files.flush, "the files of messages cannot be written")
                await _retry_until_true(partial(self._is_idle_elsewhere, scope), _BUSY_ELSEWHERE)
                await self.erase_scope(scope)
        shared = [each for each in await self.storage.scopes() if each == SHARED or each.startswith(CHATS)]
        chats = [scope for scope in shared if await self._erase_member(scope, frozenset([person, *accounts]))]
        await _retry_until_true(self.storage.store.scrub, _JOURNAL_IS_READ)
        log.info("memory.person_forgotten", scopes=len(scopes), chats=len(chats))
        return ErasureResult(person=person, scopes=tuple(scopes), chats=tuple(chats))

    async def erase_scope(self, scope: str, *, spare: frozenset[str] = frozenset()) -> None:
        """Erase all data of *scope* except the jobs *spare*. The caller holds the scope's exclusive lock.

        Erases files, journal rows, preferences, links, usage attribution and quarantined events. `SqlErasure.scrub`
        must follow to erase the journal's free pages. Raises OSError.
        """
        keys = frozenset(each.key for each in await self.storage.records.sessions() if each.scope == scope)
        person = scope.removeprefix(PEOPLE) if scope.startswith(PEOPLE) else ""
        accounts = {person, *(each.account.name for each in self.links.accounts(person))} if person else set()
        ids = {PlatformAccount.from_name(each).id for each in accounts}
        await owe_mirror(self.storage.home, scope, self.storage.disk, erasure="all")
        await self._clear_records(keys, ids)
        await self._clear_unscoped_data(keys, ids | {key.chat for key in keys})
        for each in sorted(accounts):
            await self.storage.store.unlink(person=each, keys=keys)
        if person or not scope:
            await self.forget_logins(accounts if scope else None)
        if person:
            await self._clear_choices({scope, *(str(key.parent) for key in keys)})
        await self.storage.index.close_index(scope)
        await self.storage.transcripts.remove(scope)
        await self.storage.session_files.write_scope(scope)
        await self.storage.history.remove(scope)
        await self.storage.files.remove(scope)
        await self.storage.settle_history(scope)
        await self.storage.staging.discard_all(scope)
        await self._remove_documents(scope)
        await self.storage.session_files.remove(await asyncio.to_thread(scope_paths, self.storage.home, scope))
        await pay_mirror(self.storage.home, scope, self.storage.disk, erasure="all")
        # Last, because they show what belongs to the scope: an interrupted erasure can be repeated.
        await self.storage.store.drop_jobs(scope, spare=spare)
        await self.storage.store.drop_sessions(keys)
        await self._unlink(scope, accounts - {person})
        self.storage.reopen(scope)
        log.info("memory.erased", scope=scope, chats=len(keys))

    async def _is_idle_elsewhere(self, scope: str) -> bool:
        return not await self.storage.store.is_in_use_elsewhere(scope)

    # -- a scope -----------------------------------------------------------------------------------

    async def _remove_documents(self, scope: str) -> None:
        """Remove the documents with every version; of the home itself the persona stays."""
        changes = self.storage.documents.changes
        while True:
            number = (await changes.heads([scope]))[scope].number
            kept = () if scope else select_documents(await changes.states(scope), {SOUL})
            if await changes.replace({scope: kept}, was={scope: number}):
                return

    async def _clear_records(self, keys: frozenset[SessionKey], ids: Collection[str]) -> None:
        await self.storage.store.redact(ErasureFilter(keys=keys, is_over=True), blank_value)
        for each in ids:
            await self.storage.store.anonymise(sender=each, keys=keys)

    async def _clear_choices(self, subjects: Collection[str]) -> None:
        """Delete the preferences of a person and of their direct chats."""
        for subject in sorted(subjects):
            for name in list(self.people.preferences(subject)):
                await self.people.prefer(subject, name, "")

    async def _clear_unscoped_data(self, keys: frozenset[SessionKey], ids: set[str]) -> None:
        mentions, channels = build_id_filter(ids), {key.channel for key in keys}
        await self.storage.unscoped_data.forget(lambda channel, data: channel in channels and mentions(data))

    async def _unlink(self, scope: str, accounts: Collection[str]) -> None:
        """Unlink the accounts of the erased person."""
        for each in sorted(accounts):
            target = f"{PEOPLE}{each}"
            move = ScopeMove(
                id=f"{ERASE}:{each}",
                kind="unlink",
                source=scope,
                target=target,
                at=self.storage.now(),
                account=PlatformAccount.from_name(each),
            )
            await _retry_until_true(partial(self.links.unlink, move), _BUSY_ELSEWHERE)
            await self.links.mark_moved(move)

    # -- a person in groups ------------------------------------------------------------------------

    async def _erase_member(self, scope: str, accounts: frozenset[str]) -> bool:
        """Erase a person's data from a group's scope; return False if none exists."""
        keys = frozenset(each.key for each in await self.storage.records.sessions() if each.scope == scope)
        kinds = {self.kind(key.channel) for key in keys}
        every = map(PlatformAccount.from_name, accounts)
        ids = frozenset(each.id for each in every if each.kind in kinds)
        member = GroupMember(self.storage, scope, ids=ids, accounts=accounts)
        awaited = await self.storage.store.at_work(ErasureFilter(keys=keys))
        is_changed = await self._clear_member(member, keys)
        # Turns that were running may have written the person's words again.
        for _ in range(_MAX_POLLS):
            if not awaited & await self.storage.store.at_work(ErasureFilter(keys=keys)):
                break
            await asyncio.sleep(_POLL_INTERVAL)
        if awaited:
            is_changed = await self._clear_member(member, keys) or is_changed
        return is_changed

    async def _clear_member(self, member: GroupMember, keys: frozenset[SessionKey]) -> bool:
        scope, debt = member.scope, f"member:{' '.join(sorted(member.accounts))}"
        await owe_mirror(self.storage.home, scope, self.storage.disk, erasure=debt)
        await self.storage.session_files.flush()
        await self.storage.documents.notice(scope)
        is_changed = await member.clear_transcripts()
        await self.storage.session_files.write_scope(scope)  # also what a killed run has left stale
        async with self.storage.writing:
            is_changed = await member.clear_documents() or is_changed
            for job in await self.storage.jobs.pending_in(scope):
                is_theirs = {job.payload.get("by"), job.payload.get("person")} & member.accounts
                if is_theirs or job.payload.get("sender") in member.ids:
                    await self.storage.jobs.finish(job)
            await self.storage.files.remove(scope, FileKind.RESULT)  # whose call it was is not recorded there
            is_changed = bool(await clear_raw(self.storage.history, scope, ALL, member.is_sender)) or is_changed
            await self.storage.settle_history(scope)
            is_changed = bool(await self.storage.staging.erase_members(scope, member.accounts)) or is_changed
            if is_changed:
                await self.word_eraser.request_new_snapshots(scope, f"erased {self.storage.now():%Y%m%dT%H%M%S%f}")
        for each in member.ids:
            rows = await self.storage.store.redact(ErasureFilter(keys=keys, sender=each, is_over=True), blank_value)
            is_changed = bool(rows) or is_changed
            await self.storage.store.anonymise(sender=each, keys=keys)
        await self.storage.settle_documents(scope)
        await pay_mirror(self.storage.home, scope, self.storage.disk, erasure=debt)
        if is_changed:
            await self._clear_unscoped_data(keys, set(member.ids))
            await self.storage.index.purge_stale(scope)
            self.storage.reopen(scope)
        return is_changed


async def _retry_until_true(action: Callable[[], Awaitable[bool]], error: str) -> None:
    for _ in range(_MAX_POLLS):
        if await action():
            return
        await asyncio.sleep(_POLL_INTERVAL)
    raise OSError(error)


# -- a member of a group -----------------------------------------------------------------------------


_ALL = 2**62  # changes
_TEXT_KINDS = frozenset({"message", "command", "notice"})


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a shared scope, by their user ids on its platform and by their accounts."""

    storage: ErasureStorage
    scope: str
    ids: frozenset[str]
    accounts: frozenset[str]

    async def clear_transcripts(self) -> bool:
        """Blank the member's turns and remove their files; return False if none exist."""
        attachments = ReferencedAttachments(ALL, self._turn_filter(), drops_quoted=True)
        rewrite = self.storage.transcripts.rewrite
        await rewrite(self.scope, attachments.look)
        if not attachments.has_matches:
            return False
        await self.storage.files.remove(self.scope, FileKind.ATTACHMENT, names=attachments.unreferenced)
        is_own_turn = self._turn_filter()
        return bool(await rewrite(self.scope, lambda raw: self._blank_line(raw, is_own_turn)))

    async def clear_documents(self) -> bool:
        """Erase what the member added from the documents and every version; return False if they never changed any."""
        documents = self.storage.documents

        def redact(text: str, authors: Mapping[str, str]) -> str:
            return without_entries(text, ALL, lambda line: authors.get(line, "") in self.accounts)[0]

        is_author = any(each.by in self.accounts for each in await documents.changes.log(self.scope, limit=_ALL))
        if is_author:
            await rewrite_history(documents.changes, self.scope, redact, anonymous=self.accounts)
            await self.storage.files.remove(self.scope, FileKind.TEXT)
        return is_author

    def is_sender(self, line: Line) -> bool:
        """Return True if *line* is a message of the member."""
        by = line.get("by")
        return isinstance(by, Mapping) and by.get("id") in self.ids

    def _turn_filter(self) -> Callable[[Line], bool]:
        """Return a predicate for the lines of the member's turns; it must see a file's lines in order."""
        turns: set[str] = set()

        def is_own_turn(line: Line) -> bool:
            if self.is_sender(line):
                turns.add(str(line.get("turn")))
            return kind_of(line) in _TEXT_KINDS and line.get("turn") in turns

        return is_own_turn

    def _blank_line(self, raw: bytes, is_own_turn: Callable[[Line], bool]) -> bytes:
        line = decode(raw)
        if line is None:
            return raw
        if not is_own_turn(line):
            # Quoted messages have only display names, so all of them are removed; they are not replayed.
            others = {name: value for name, value in line.items() if name != "quoted"}
            if any(fact.get("quoted") for fact in facts_in(line)):
                others["files"] = [fact for fact in facts_in(line) if not fact.get("quoted")]
            return encode(others) if others != line else raw
        cleared = decode(without_words(raw, ALL, lambda _: True, whole=True)) or {}
        return encode({name: value for name, value in cleared.items() if name != "by"})
