"""What commands ask of forgetting: words at once, words for good, and everything of a scope."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from agent.memory.erasure.derived_index import DerivedIndex
from agent.memory.erasure.purge_jobs import PurgeJobs
from agent.memory.erasure.retention import RetentionJob
from agent.memory.erasure.scope_eraser import PEOPLE, ScopeEraser
from agent.memory.erasure.untouched_folders import untouched_folders
from agent.memory.erasure.word_eraser import ErasureRequester, WordEraser, WordErasureResult
from agent.memory.erasure.word_match import ErasurePattern
from agent.memory.jobs.job_runner import Handler
from gateway.events import SessionKey
from gateway.ports import Job


@dataclass(frozen=True, slots=True)
class EraseService:
    """Forgets what somebody asks for, as far as they may."""

    words: WordEraser
    purging: PurgeJobs
    eraser: ScopeEraser
    retention: RetentionJob
    index: DerivedIndex
    saving_platforms: AbstractSet[str] = frozenset()  # those that save files in the home's downloads folder

    @property
    def long(self) -> Mapping[str, Handler]:
        """The work behind the commands."""
        return self.purging.long

    @property
    def alone(self) -> Mapping[str, Handler]:
        """Work that waits by itself where it has to be alone."""
        return {**self.eraser.long, **self.retention.long}

    async def forget(
        self, scope: str, wanted: ErasurePattern, asker: ErasureRequester, *, turn: str
    ) -> WordErasureResult:
        """Clear words from what is remembered, summarised and said in *scope*."""
        gone = await self.words.forget(scope, wanted, asker, turn=turn)
        if gone.total:
            await self.index.purge_stale(scope)  # a search, too, finds it no more from now on
        return gone

    async def purge(
        self, scope: str, wanted: ErasurePattern, asker: ErasureRequester, *, key: SessionKey, upto: int, turn: str
    ) -> tuple[WordErasureResult, Job]:
        """Forget at once, and return the job that takes the words out of every byte; for the command's commit."""
        begun = await self.purging.begin(scope, wanted, asker, key=key, upto=upto, turn=turn)
        await self.index.purge_stale(scope)
        return begun

    async def everything(self, scope: str, *, turn: str) -> Job:
        """Let nothing of *scope* be remembered, and return the job that erases all of it; for the command's commit."""
        return await self.eraser.begin(scope, turn=turn)

    async def beyond(self, scope: str, key: SessionKey, *, is_all: bool = False) -> list[str]:
        """Return the folders that forgetting words of *scope*, or *is_all* of it, leaves as they are.

        *key* is the chat that it is asked in.
        """
        accounts = self.eraser.links.accounts(scope.removeprefix(PEOPLE)) if scope.startswith(PEOPLE) else ()
        kinds = {self.eraser.kind(key.channel), *(each.account.kind for each in accounts)}
        saves_files = not self.saving_platforms.isdisjoint(kinds)
        return await asyncio.to_thread(
            untouched_folders, self.eraser.home, scope, saves_files=saves_files, is_all=is_all
        )
