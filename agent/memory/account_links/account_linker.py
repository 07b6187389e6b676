"""Making two accounts one person, and one of them a person again: durable jobs, right after a kill at any step.

One transaction of the journal says whose everything is from now on, and names the move; then the files follow, and
the move is taken off. A start finishes what a crash left before anybody is let in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from agent.memory.account_links.memory_merge import MemoryMerger
from agent.memory.account_links.scope_lock import ScopeLock
from agent.memory.account_links.scope_transfer import merge_scope_files, oldest, split_scope_files
from agent.memory.jobs.job_runner import Handler, RetryJobLater
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_projector import TranscriptProjector
from gateway.events import SessionKey
from gateway.ports import AccountLinkStore, Job, ScopeMove, TurnRecordStore

log = structlog.get_logger(__name__)

LINK, UNLINK = "link", "unlink"
PEOPLE = "people/"
_NOT_YET = timedelta(seconds=5)
_PAUSES = (0.5, 2.0, 10.0, 30.0)  # seconds before files that could not be moved are tried again
_LOOKED_AT = 100_000  # records that wait for their files


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLinker:
    """Does the jobs. *reopen* lets go of what is known of a scope, *leave* of its open files.

    *notice* keeps what people changed by hand.
    """

    links: AccountLinkStore
    records: TurnRecordStore
    projector: TranscriptProjector
    gate: ScopeLock
    writing: asyncio.Lock
    memories: MemoryMerger
    notice: Callable[[str], Awaitable[None]]
    reopen: Callable[[str], None]
    leave: Callable[[str], Awaitable[None]]
    now: Callable[[], datetime]
    disk: Disk

    @property
    def long(self) -> Mapping[str, Handler]:
        """What moves files."""
        return {LINK: self.link, UNLINK: self.unlink}

    async def link(self, job: Job) -> RetryJobLater | None:
        """Make the accounts that the job names one person: the one who has been here longer."""
        accounts = [str(each) for each in job.payload["accounts"]]
        while True:
            persons = [self.links.person(each) for each in accounts]
            if persons[0] == persons[1]:
                return None
            scopes = [f"{PEOPLE}{each}" for each in persons]
            async with self.gate.exclusive(*scopes):
                if persons != [self.links.person(each) for each in accounts]:
                    continue
                if not await self._is_written(scopes):
                    return RetryJobLater(_NOT_YET, "what was said is not in its files yet", counts=False)
                target, source = await asyncio.to_thread(self._by_age, scopes)
                move = ScopeMove(id=job.id, kind=LINK, source=source, target=target, at=self.now())
                await self._keep_edits(scopes)
                await self.links.link(move)
                await self._finish(await self._begun(move))
                return None

    async def unlink(self, job: Job) -> RetryJobLater | None:
        """Make the account that the job names a person of its own again."""
        identity = str(job.payload["account"])
        person = self.links.person(identity)
        if person == identity:
            return None
        scopes = (f"{PEOPLE}{person}", f"{PEOPLE}{identity}")
        async with self.gate.exclusive(*scopes):
            if not await self._is_written(scopes):
                return RetryJobLater(_NOT_YET, "what was said is not in its files yet", counts=False)
            await self._keep_edits(scopes[:1])
            move = ScopeMove(
                id=job.id, kind=UNLINK, source=scopes[0], target=scopes[1], at=self.now(), identity=identity
            )
            await self.links.unlink(move)
            await self._finish(await self._begun(move))
            return None

    async def adopt(self, target: str, move: str) -> None:
        """Give what stands in the home itself to *target*; nobody may be at work yet. Raises OSError."""
        await self._keep_edits(("", target))
        await self.links.adopt(ScopeMove(id=move, kind="adopt", source="", target=target, at=self.now()))
        await self.resume()

    async def resume(self) -> None:
        """Finish what a crash left, before anybody is let in. Raises OSError."""
        for move in await self.links.moves():
            await self._move(move)

    # -- inside ------------------------------------------------------------------------------------

    async def _begun(self, move: ScopeMove) -> ScopeMove:
        """Return the move as the store began it."""
        return next(each for each in await self.links.moves() if each.id == move.id)

    async def _is_written(self, scopes: tuple[str, ...] | list[str]) -> bool:
        """Say whether everything that was said in *scopes* is in its file."""
        await self.projector.flush()
        waiting = await self.records.unprojected(0, _LOOKED_AT)
        return all(each.record.scope not in scopes for each in waiting)

    async def _keep_edits(self, scopes: tuple[str, ...] | list[str]) -> None:
        for scope in scopes:
            await self.notice(scope)

    def _by_age(self, scopes: list[str]) -> tuple[str, str]:
        """Return the scope of who has been here longer, and the other one; of equals the first, who asked."""
        first, second = (oldest(scope_folder(self.memories.home, scope), self.disk) for scope in scopes)
        if second is not None and (first is None or second < first):
            return scopes[1], scopes[0]
        return scopes[0], scopes[1]

    async def _finish(self, move: ScopeMove) -> None:
        """Move the files, however often it takes: meanwhile nobody is let in, and a start would go on with it."""
        tries = 0
        while True:
            try:
                await self._move(move)
            except OSError as error:
                log.warning("links.not_moved", move=move.id, error=error.strerror)
                await asyncio.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
                tries += 1
            else:
                return

    async def _move(self, move: ScopeMove) -> None:
        folders = [scope_folder(self.memories.home, scope) for scope in (move.source, move.target)]
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.writing)
            for scope in (move.source, move.target):
                await self.leave(scope)
            await self.projector.rearrange(folders, lambda: self._files(move))
        for scope in (move.source, move.target):
            self.reopen(scope)
        await self.links.mark_moved(move)
        log.info("links.moved", move=move.id, kind=move.kind)

    def _files(self, move: ScopeMove) -> None:
        """Move what the move is about. Blocks; twice is once."""
        if move.kind == UNLINK:
            going = set(move.keys)
            person = move.source.removeprefix(PEOPLE)

            def account_of(key: str) -> str:
                return move.identity if key in going else self._account(key, person)

            self.memories.separate(move.id, move.source, move.target, move.identity, account_of, person)
            split_scope_files(self.memories.home, self.disk, move, account_of)
            return
        # Changes that name nobody are of the account whose scope it was, if it was one account's.
        owner = move.target.removeprefix(PEOPLE)
        persons = (move.source.removeprefix(PEOPLE) or owner, owner)
        names = [each if each in move.single or not move.source else "" for each in persons]
        self.memories.join(move.id, move.source, move.target, source_is=names[0], target_is=names[1])
        merge_scope_files(self.memories.home, self.disk, move)

    def _account(self, key: str, person: str) -> str:
        try:
            return self.links.account_of(SessionKey.parse(key)) or person
        except ValueError:
            return person
