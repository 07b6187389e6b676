"""Bringing a finished Dream into the documents: one version, a person's edits kept, and what needs a yes put aside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import structlog

from agent.memory.documents.file_documents import EPOCH, VersionedDocuments
from agent.memory.documents.persona import SOUL, effective_persona
from agent.memory.documents.version_store import VersionStore
from agent.memory.dream.dream_state import DreamPass, DreamRun
from agent.memory.dream.edit_simulation import BUSY, UNTRUSTED, VOICE, DocumentOutcome, EditSimulation, outcome
from agent.memory.editing.memory_file import MemoryFile
from agent.memory.editing.staged_changes import stage_for_approval
from agent.memory.editing.text_operations import Operation
from agent.memory.editing.three_way_merge import three_way
from agent.memory.history.history_log import HistoryEntry
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk

log = structlog.get_logger(__name__)

DOCUMENTS = ("USER.md", "MEMORY.md", SOUL)
_TRIES = 3  # of a compare-and-set before the rest waits for a person
_LOOK_BACK = 50  # versions in which our own is looked for after a crash


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamReport:
    """What a Dream did, for whoever asked for it. Of a run that failed, or found nothing new, all is zero."""

    entries: int = 0
    changes: int = 0
    waits: int = 0  # operations that wait for a yes
    sha: str = ""  # of its version
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamApplier:
    """Changes the documents of any scope. Doing it twice is doing it once."""

    home: Path
    documents: VersionedDocuments
    versions: VersionStore
    now: Callable[[], datetime]
    disk: Disk = field(default_factory=Disk)

    async def texts(self, scope: str) -> dict[str, str]:
        """Return the documents as a Dream begins with them."""
        return {name: await self._text(scope, name) for name in DOCUMENTS}

    async def epoch(self, scope: str) -> str:
        """Return what changes whenever something of *scope* is forgotten."""
        return (await self.documents.read(scope, EPOCH)).rev

    async def apply(
        self, scope: str, run: DreamRun, entries: Sequence[HistoryEntry], *, stages: bool = True
    ) -> DreamReport:
        """Write what *run* came to, as one version that names its entries; put aside what needs a yes if it *stages*.

        Raises OSError.
        """
        cause = run.cause(entries)
        session = entries[-1].session if entries else ""
        changes = waits = 0
        for sitting in run.sittings:
            play = await asyncio.to_thread(_played, run, sitting)
            for name in DOCUMENTS:
                only = _only_propose(scope, name, sitting.is_untrusted)
                result = await asyncio.to_thread(outcome, play, name, only_propose=only)
                waiting = dict(result.waiting)
                if not await self._write(scope, name, run.base[name], result, cause):
                    waiting[BUSY] = result.done
                else:
                    changes += len(result.done)
                for why, operations in waiting.items():
                    if stages:
                        await asyncio.to_thread(
                            self._stage, scope, run.name(name, why), name, why, operations, cause, session
                        )
                    waits += len(operations)
        await self.documents.notice(scope)  # a crash may have come between a file and its version
        sha = await asyncio.to_thread(self._sha, scope, cause)
        return DreamReport(entries=len(entries), changes=changes, waits=waits, sha=sha)

    async def _write(self, scope: str, name: str, base: str, result: DocumentOutcome, cause: str) -> bool:
        """Change one document, keeping what was saved meanwhile; False when somebody writes all the time."""
        if result.text == base:
            return True
        await self.documents.notice(scope)
        if await asyncio.to_thread(self._is_written, scope, name, cause):
            return True  # before a crash; what became of it since is somebody's decision
        for _ in range(_TRIES):
            document = await self.documents.read(scope, name)
            now = await effective_persona(self.documents, scope) if name == SOUL else document.text
            reconciled = three_way(base, result.text, now)
            if reconciled.conflicts:
                beside = MemoryFile(self._folder(scope), self.disk)
                await asyncio.to_thread(beside.keep_conflicts, reconciled.conflicts, name)
            if reconciled.text == now or await self.documents.write(
                scope, name, reconciled.text, was=document.rev, why=cause
            ):
                return True
        log.warning("dream.busy", scope=scope, name=name)
        return False

    async def _text(self, scope: str, name: str) -> str:
        return (
            await effective_persona(self.documents, scope)
            if name == SOUL
            else (await self.documents.read(scope, name)).text
        )

    # -- these block -------------------------------------------------------------------------------

    def _is_written(self, scope: str, name: str, cause: str) -> bool:
        return any(each.why == cause for each in self.versions.log(scope, limit=_LOOK_BACK, name=name))

    def _sha(self, scope: str, cause: str) -> str:
        return next((each.short for each in self.versions.log(scope, limit=_LOOK_BACK) if each.why == cause), "")

    def _stage(
        self, scope: str, name: str, document: str, why: str, operations: Sequence[Operation], cause: str, session: str
    ) -> None:
        log.info("dream.staged", scope=scope, name=document, why=why, operations=len(operations))
        place, _, person = scope.partition("/")
        stage_for_approval(
            self._folder(scope),
            self.disk,
            name,
            why,
            self.now(),
            document=document,
            operations=operations,
            session=session,
            cause=cause,
            person=person if place == "people" else "",
        )

    def _folder(self, scope: str) -> Path:
        return scope_folder(self.home, scope) / "memory"


def _only_propose(scope: str, name: str, is_untrusted: bool) -> str:
    """Return why the changes of a document wait for a yes; "" when they may be made."""
    if is_untrusted:
        return UNTRUSTED
    return VOICE if name == SOUL and scope.startswith("chats/") else ""


def _played(run: DreamRun, sitting: DreamPass) -> EditSimulation:
    play = EditSimulation(run.base)
    for answer in sitting.answers:
        play.do(answer)
    return play
