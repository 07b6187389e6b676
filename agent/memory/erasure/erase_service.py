"""Service behind `/forget`: erase words at once, purge words from every byte, or erase a whole scope."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.memory.editing.staged_change_store import StagedChangeStore
from agent.memory.editing.staged_changes import StagedChange, StagedErasure
from agent.memory.erasure.purge_jobs import PurgeJobs
from agent.memory.erasure.retention import RetentionJob
from agent.memory.erasure.scope_eraser import PEOPLE, ScopeEraser
from agent.memory.erasure.word_eraser import ASK_ERASURE, ErasureRequester, WordEraser, WordErasureResult
from agent.memory.erasure.word_match import ErasurePattern
from agent.memory.jobs.job_kinds import JobErasure, JobKind, JobPace
from agent.memory.storage.erasure_notes import owe_mirror, pay_mirror
from gateway.events import PlatformAccount, SessionKey
from gateway.ports.journal import Job, JobAdvance

if TYPE_CHECKING:
    from agent.memory.search.scope_recall import ScopeRecall

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
