"""Bringing a model's answer into a scope's MEMORY.md by compare-and-set; what may not go in by itself is staged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import structlog

from agent.memory.consolidation.consolidation_state import StoredAnswer
from agent.memory.documents.file_documents import EPOCH
from agent.memory.documents.version_store import CONSOLIDATION
from agent.memory.editing.memory_file import MEMORY_MD, MemoryFile
from agent.memory.editing.merge import BUDGET, MergeResult, StagedRemoval, merge
from agent.memory.editing.staged_changes import stage_for_approval
from agent.memory.editing.three_way_merge import MergeConflict, three_way
from agent.memory.messages.message_range import UNTRUSTED
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from gateway.ports import DocumentStore

log = structlog.get_logger(__name__)

_TRIES = 3  # of a compare-and-set before the rest waits for a person
_TOO_LARGE = 8  # budgets: such a MEMORY.md is somebody's data; no model is sent it, and none rewrites it


@dataclass(frozen=True, slots=True)
class MemoryRevision:
    """The new text, what the answer did to the one it was asked about, and where somebody else was at work."""

    text: str
    merged: MergeResult
    conflicts: tuple[MergeConflict, ...] = ()


def revise(base: str, proposed: str, now: str, *, budget: int = BUDGET) -> MemoryRevision:
    """Return the memory *now* with what a model that was shown *base* proposes. Doing it again changes nothing."""
    merged = merge(base, proposed, budget=budget)
    reconciled = three_way(base, merged.text, now)
    return MemoryRevision(reconciled.text, merged, reconciled.conflicts)


class MemoryReviser:
    """Changes MEMORY.md of any scope. *budget* is in characters."""

    def __init__(
        self,
        home: Path,
        documents: DocumentStore,
        *,
        now: Callable[[], datetime],
        budget: int = BUDGET,
        disk: Disk | None = None,
    ) -> None:
        self._home = home
        self._documents = documents
        self._now = now
        self._budget = budget
        self._disk = disk or Disk()

    async def text(self, scope: str) -> str:
        """Return MEMORY.md as a model may be shown it."""
        return (await self._documents.read(scope, MEMORY_MD)).text[: _TOO_LARGE * self._budget]

    async def epoch(self, scope: str) -> str:
        """Return what changes whenever something of *scope* is forgotten."""
        return (await self._documents.read(scope, EPOCH)).rev

    async def revise(self, scope: str, answer: StoredAnswer, *, session: str = "") -> None:
        """Merge what a model said about `answer.base` into what stands there now. Doing it twice is doing it once.

        What has to wait is asked about in *session*.
        """
        if answer.origin == UNTRUSTED:
            await self._stage(scope, answer, "untrusted", session)
            return
        if len(answer.base) >= _TOO_LARGE * self._budget:
            await self._stage(scope, answer, "too large", session)
            return
        for _ in range(_TRIES):
            document = await self._documents.read(scope, MEMORY_MD)
            revision = revise(answer.base, answer.memory_update, document.text, budget=self._budget)
            if revision.conflicts:
                await asyncio.to_thread(MemoryFile(self._folder(scope), self._disk).keep_conflicts, revision.conflicts)
            if revision.text == document.text or await self._documents.write(
                scope, MEMORY_MD, revision.text, was=document.rev, why=f"{CONSOLIDATION}{answer.entry}"
            ):
                if revision.merged.staged is not None:
                    await self._stage(scope, answer, revision.merged.staged.why, session, revision.merged.staged)
                return
        await self._stage(scope, answer, "busy", session)

    async def _stage(
        self, scope: str, answer: StoredAnswer, why: str, session: str, staged: StagedRemoval | None = None
    ) -> None:
        log.warning("consolidation.staged", entry=answer.entry, why=why)
        proposed = "" if staged is not None else answer.memory_update
        await asyncio.to_thread(
            lambda: stage_for_approval(
                self._folder(scope), self._disk, answer.entry, why, self._now(), staged, proposed, session=session
            )
        )

    def _folder(self, scope: str) -> Path:
        return scope_folder(self._home, scope) / "memory"
