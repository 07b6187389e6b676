"""Durable jobs that link two accounts to one person, and unlink an account again.

One transaction of the journal changes the account's person and stores the move; then the files are moved and the move
is deleted. Moves that a crash interrupted are completed at start, before any turn runs.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from agent.base.disk import Disk
from agent.base.scopes import scope_folder
from agent.files.file_workspace import merge_workspaces
from agent.memory.account_links.document_merge import divide_documents, find_owners, move_documents
from agent.memory.account_links.scope_lock import ScopeLock
from agent.memory.account_links.scope_transfer import (
    HistorySplit,
    blank_answer,
    find_digests,
    merge_histories,
    merge_scope_files,
    sessions_of,
    split_scope_files,
    split_stored_files,
)
from agent.memory.editing.document_file_writer import DocumentFileWriter
from agent.memory.editing.staged_changes import MEMORY
from agent.memory.history.history_file_writer import HistoryFileWriter
from agent.memory.history.history_files import drop_absent_lines
from agent.memory.jobs.job_kinds import JobKind, JobPace
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.storage.session_file_writer import SessionFileWriter
from gateway.events import PlatformAccount, SessionKey
from gateway.ports.access import ScopeMove
from gateway.ports.journal import Job
from gateway.ports.memory import ScopeHistory

if TYPE_CHECKING:
    from gateway.store.account_links import SqlAccountLinks
    from gateway.store.documents import SqlDocuments
    from gateway.store.files import SqlFiles
    from gateway.store.history import SqlHistory
    from gateway.store.jobs import SqlJobs
    from gateway.store.records import SqlTurnRecords
    from gateway.store.transcripts import SqlTranscripts


log = structlog.get_logger(__name__)

LINK, UNLINK = "link", "unlink"
LINK_JOBS = JobKind(name=LINK, pace=JobPace.LONG, aliases=(UNLINK,), locks_scopes=True)
PEOPLE = "people/"
_RETRY_DELAY = timedelta(seconds=5)
_SHORT_DELAY, _BUSY_ELSEWHERE = timedelta(seconds=1), "another gateway runs a job of theirs"
_CLOCKS_APART = timedelta(minutes=10)  # of gateways, at most: an answer may look older than the link before it
_PAUSES = (0.5, 2.0, 10.0, 30.0)  # seconds before moving files is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLinker:
    """Handlers of the jobs.

    *jobs* is the queue that several gateways share; None = there is one gateway. *reopen* discards what is cached of a
    scope, *close_files* closes its open files.
    """

    home: Path
    links: SqlAccountLinks
    jobs: SqlJobs | None
    records: SqlTurnRecords
    transcripts: SqlTranscripts
    session_files: SessionFileWriter
    scope_lock: ScopeLock
    writing: asyncio.Lock
    files: SqlFiles
    documents: SqlDocuments
    history: SqlHistory
    history_files: HistoryFileWriter
    document_files: DocumentFileWriter
    reopen: Callable[[str], None]
    close_files: Callable[[str], Awaitable[None]]
    now: Callable[[], datetime]
    disk: Disk

    async def run(self, job: Job) -> RetryJobLater | None:
        """Link or unlink accounts."""
        return await (self.unlink(job) if job.kind == UNLINK else self.link(job))

    async def link(self, job: Job) -> RetryJobLater | None:
        """Link the job's two accounts to the person with the older conversations."""
        await self._complete(job)
        accounts = [PlatformAccount.from_name(str(each)) for each in job.payload["accounts"]]
        while True:
            persons = [self.links.person(each) for each in accounts]
            if persons[0] == persons[1]:
                return None
            scopes = [f"{PEOPLE}{each}" for each in persons]
            async with self.scope_lock.hold_exclusive(*scopes):
                if persons != [self.links.person(each) for each in accounts]:
                    continue
                if not await self.session_files.flush():
                    return RetryJobLater(_RETRY_DELAY, "messages are not written yet", counts=False)
                target, source = await self._by_age(scopes)
                move = ScopeMove(id=job.id, kind=LINK, source=source, target=target, at=self.now())
                await self._save_edits(scopes)
                if not await self.links.link(move):
                    return RetryJobLater(_SHORT_DELAY, _BUSY_ELSEWHERE, counts=False)
                await self._finish(await self._load_move(move.id))
                return None

    async def unlink(self, job: Job) -> RetryJobLater | None:
        """Unlink the job's account from its person; its companions leave too and are linked to it again."""
        await self._complete(job)
        account, *companions = [
            PlatformAccount.from_name(str(each))
            for each in (job.payload["account"], *job.payload.get("companions", ()))  # jobs of older versions have none
        ]
        leaving = (account, *companions)
        persons = {self.links.person(each) for each in leaving}
        if len(persons) == 1 and persons <= {each.name for each in leaving}:
            return None
        for n, each in enumerate(leaving):
            if later := await self._separate(each, f"{job.id}.{n}" if n else job.id):
                return later
        for each in companions:
            payload = {"accounts": [account.name, each.name]}
            if later := await self.link(dataclasses.replace(job, id=f"{job.id}.{each.name}", payload=payload)):
                return later
        return None

    async def _complete(self, job: Job) -> None:
        """Complete the moves that an earlier run of *job* has begun.

        The accounts are linked or separated already, so that the rest of the job has nothing to do. Otherwise only a
        start resumes moves, and no gateway starts where another one takes the job over.
        """
        for move in await self.links.moves():
            if _is_part(move, job):
                async with self.scope_lock.hold_exclusive(move.source, move.target):
                    await self._finish(move)

    async def _separate(self, account: PlatformAccount, move_id: str) -> RetryJobLater | None:
        """Make *account* a person of its own, unless it is the one that names its person."""
        person = self.links.person(account)
        if person == account.name:
            return None
        scopes = (f"{PEOPLE}{person}", f"{PEOPLE}{account.name}")
        async with self.scope_lock.hold_exclusive(*scopes):
            if not await self.session_files.flush():
                return RetryJobLater(_RETRY_DELAY, "messages are not written yet", counts=False)
            await self._save_edits(scopes[:1])
            move = ScopeMove(
                id=move_id, kind=UNLINK, source=scopes[0], target=scopes[1], at=self.now(), account=account
            )
            if not await self.links.unlink(move):
                return RetryJobLater(_SHORT_DELAY, _BUSY_ELSEWHERE, counts=False)
            await self._finish(await self._load_move(move.id))
            return None

    async def adopt(self, target: str, move: str) -> None:
        """Move the home's own memory (shared isolation) into the scope *target*, before turns run. Raises OSError."""
        await self._save_edits(("", target))
        await self.links.adopt(ScopeMove(id=move, kind="adopt", source="", target=target, at=self.now()))
        await self.resume()

    async def resume(self) -> None:
        """Complete the moves that a crash interrupted, before turns run. Raises OSError and StoreUnavailable.

        Where several gateways share the store, another one may be at a move: it is left to its job, or to a new one.
        """
        for move in await self.links.moves():
            if self.jobs is None or move.kind not in (LINK, UNLINK):
                await self._move(move)
            elif not any(_is_part(move, job) for job in await self.jobs.pending_of(move.kind)):
                await self.jobs.put(_job_of(move))

    async def _load_move(self, id_: str) -> ScopeMove:
        """Return a move with the fields that the store has added."""
        return next(each for each in await self.links.moves() if each.id == id_)

    async def _save_edits(self, scopes: tuple[str, ...] | list[str]) -> None:
        for scope in scopes:
            await self.document_files.notice(scope)
            # A file that a person has edited is set aside, and goes with the rest.
            await self.history_files.settle(scope)

    async def _by_age(self, scopes: list[str]) -> tuple[str, str]:
        """Return the scope with the older conversations, and the other; if neither is older, the asker's first."""
        first, second = [(await self.transcripts.count(scope))[1] for scope in scopes]
        if second is not None and (first is None or second < first):
            return scopes[1], scopes[0]
        return scopes[0], scopes[1]

    async def _finish(self, move: ScopeMove) -> None:
        """Move the files, retrying until it succeeds; the scopes stay locked, and a restart resumes the move."""
        attempts = 0
        while True:
            try:
                await self._move(move)
            except OSError as error:
                log.warning("links.not_moved", move=move.id, error=error.strerror or str(error))
                await asyncio.sleep(_PAUSES[min(attempts, len(_PAUSES) - 1)])
                attempts += 1
            else:
                return

    async def _move(self, move: ScopeMove) -> None:
        keys = [SessionKey.parse(key) for key in move.keys] if move.kind == UNLINK else None
        await self.transcripts.move(move.source, move.target, keys=keys)
        if move.kind == UNLINK:
            since = move.since
            if since is not None and self.jobs is not None:
                since -= _CLOCKS_APART
            for scope in (move.source, move.target):
                await self.session_files.redact(scope, partial(blank_answer, since=since))
        folders = [scope_folder(self.home, scope) for scope in (move.source, move.target)]
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.writing)
            for scope in (move.source, move.target):
                await self.close_files(scope)
            await stack.enter_async_context(self.document_files.hold(move.source, move.target))
            # A file of a history in a folder that is being renamed would be lost, or taken for the new folder.
            await stack.enter_async_context(self.history_files.pause_writes())
            await (self._split(move, folders) if move.kind == UNLINK else self._merge(move, folders))
            for scope in (move.source, move.target):
                await drop_absent_lines(self.history, scope, (await self.documents.read(scope, MEMORY)).text)
        for scope in (move.source, move.target):
            await self.document_files.settle(scope)
            await self.history_files.settle(scope)
            await self.session_files.write_scope(scope)
            self.reopen(scope)
        await self.links.mark_moved(move)
        log.info("links.moved", move=move.id, kind=move.kind)

    async def _split(self, move: ScopeMove, folders: Sequence[Path]) -> None:
        """Move what belongs to the leaving account. Idempotent.

        The documents go last, because they tell the owners of the lines of archives and of copies.
        """
        keys = set(move.keys)
        person = move.source.removeprefix(PEOPLE)
        leaving = move.account.name if move.account else ""
        sessions: Mapping[str, str] = {}

        def account_of(key: str) -> str:
            return leaving if key in keys else self._account(key, person)

        def account_of_entry(entry: str) -> str:
            session = sessions.get(entry, "")
            return account_of(session) if session else ""

        while True:  # until no other gateway has changed the histories meanwhile
            was = {scope: await self.history.load(scope) for scope in (move.source, move.target)}
            sessions = await asyncio.to_thread(sessions_of, was.values())
            owners = await find_owners(self.documents, move.source, account_of_entry, person)
            split = HistorySplit(leaving, account_of, owners)
            kept, moving = await asyncio.to_thread(split.split, was[move.source])
            if not (moving.entries or moving.raws or moving.notes):
                break
            merge = partial(merge_histories, was[move.target], moving, first_account="", second_account="")
            theirs = await asyncio.to_thread(merge)
            if await self.history.replace({move.source: kept, move.target: theirs}, was=was):
                break
        needed, staying = [await find_digests(scope, self.transcripts) for scope in (move.target, move.source)]
        split_files = partial(split_scope_files, self.home, self.disk, move, owners)
        await self.session_files.rearrange(folders, split_files)
        await divide_documents(self.documents, move.id, move.source, move.target, leaving, account_of_entry, person)
        await split_stored_files(self.files, move, needed, staying)

    async def _merge(self, move: ScopeMove, folders: Sequence[Path]) -> None:
        """Move the memory and files of the scope that ends. Idempotent."""
        # Changes without an author belong to the account of their scope, if the scope had one account only.
        owner = move.target.removeprefix(PEOPLE)
        persons = (move.source.removeprefix(PEOPLE) or owner, owner)
        source, target = (each if each in move.single or not move.source else "" for each in persons)
        while True:  # until no other gateway has changed the histories meanwhile
            was = {scope: await self.history.load(scope) for scope in (move.target, move.source)}
            if was[move.source] == ScopeHistory():
                break
            merge = partial(merge_histories, *was.values(), first_account=target, second_account=source)
            merged = await asyncio.to_thread(merge)
            if await self.history.replace({move.target: merged, move.source: ScopeHistory()}, was=was):
                break
        await merge_workspaces(self.files, move.source, move.target)
        await self.files.move(move.source, move.target)
        await move_documents(
            self.documents, move.id, move.source, move.target, source_account=source, target_account=target
        )
        move_files = partial(merge_scope_files, self.home, self.disk, move, accounts=(source, target))
        await self.session_files.rearrange(folders, move_files)

    def _account(self, key: str, person: str) -> str:
        try:
            account = self.links.account_of(SessionKey.parse(key))
        except ValueError:
            return person
        return account.name if account else person


def _job_of(move: ScopeMove) -> Job:
    """Return a job that completes *move*; it has no effect if the move is complete."""
    payload: dict[str, Any] = {"accounts": [each.removeprefix(PEOPLE) for each in (move.target, move.source)]}
    if move.account is not None:
        payload = {"account": move.account.name}
    return Job(id=move.id, kind=move.kind, scope="", payload=payload, due_at=move.at)


def _is_part(move: ScopeMove, job: Job) -> bool:
    """Return True if *job* has begun *move*."""
    return move.id == job.id or move.id.startswith(f"{job.id}.")
