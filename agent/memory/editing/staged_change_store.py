"""Listing, approving and rejecting the changes that wait for approval."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from agent.memory.documents.file_documents import change_document
from agent.memory.documents.version_store import APPROVED
from agent.memory.editing.staged_changes import EXPIRES_AFTER as EXPIRES_AFTER
from agent.memory.editing.staged_changes import (
    STAGED,
    ReviewReason,
    StagedChange,
    StagedErasure,
    read_staged,
    stage_for_approval,
    with_fields,
)
from agent.memory.editing.text_operations import AddLines
from agent.memory.history.plain_files import is_plain_file, remove_lines
from agent.memory.scopes import quote, scope_folder
from agent.memory.storage.disk import Disk
from gateway.events import PlatformAccount, short_id
from gateway.ports import DocumentStore


class StagedChangeStore:
    """The staged changes of every scope."""

    def __init__(
        self,
        home: Path,
        documents: DocumentStore,
        *,
        now: Callable[[], datetime],
        writing: asyncio.Lock | None = None,
    ) -> None:
        """Approve and reject under *writing*, which every job that changes memory holds."""
        self._home = home
        self._now = now
        self._disk = Disk()
        self._documents = documents
        self._writing = writing or asyncio.Lock()

    async def pending_changes(self, scope: str) -> list[StagedChange]:
        """Return the scope's staged changes, the oldest first; delete expired ones."""
        changes = await asyncio.to_thread(self._read, scope)
        return [each for each in changes if each.erasure is None or not each.erasure.decided]

    async def stage_erasure(
        self, scope: str, cause: str, erasure: StagedErasure, *, account: PlatformAccount, session: str = ""
    ) -> StagedChange:
        """Stage *erasure*, once per *cause*, and return it. With *session* a question is sent there. Raises OSError."""
        change = StagedChange(
            name=f"f{short_id(cause)}",
            why="erasure",
            at=self._now(),
            session=session,
            person=account.name,
            cause=cause,
            erasure=erasure,
        )
        async with self._writing:
            await self._stage(scope, change)
        return change

    async def claim_erasure(self, scope: str, name: str, turn: str) -> StagedChange | None:
        """Record that *turn* approves the one erasure whose name begins with *name*, and return it as it was before.

        Return None if no erasure has this name, or another turn approved it. A repeated turn gets it again. Raises
        OSError.
        """
        async with self._writing:
            changes = [each for each in await asyncio.to_thread(self._read, scope) if each.name.startswith(name)]
            if len(changes) != 1 or changes[0].erasure is None or changes[0].erasure.decided not in ("", turn):
                return None
            record = {"erasure": asdict(replace(changes[0].erasure, decided=turn))}
            await asyncio.to_thread(self._update, self._path(scope, changes[0].name), record)
            return changes[0]

    async def find_group_erasure(
        self, name: str, accounts: Collection[PlatformAccount]
    ) -> tuple[str, StagedErasure] | None:
        """Return the scope of a group and the erasure *name* that one of *accounts* asked for there, or None."""

        def look() -> tuple[str, StagedErasure] | None:
            for path in self._home.glob(f"chats/*/memory/{STAGED}/{quote(name)}.json"):
                change = read_staged(self._disk.load(path) or b"")
                if change is not None and change.erasure is not None and change.account in accounts:
                    return (
                        (f"chats/{path.parents[2].name}", change.erasure) if self._now() <= change.expires_at else None
                    )
            return None

        return await asyncio.to_thread(look)

    async def release_erasure(self, scope: str, change: StagedChange) -> None:
        """Make an erasure that failed available for another approval. Raises OSError."""
        async with self._writing:
            if change.erasure is not None:
                record = {"erasure": asdict(replace(change.erasure, decided=""))}
                await asyncio.to_thread(self._update, self._path(scope, change.name), record)

    async def discard(self, scope: str, name: str) -> None:
        """Delete the change *name*, if it exists."""
        async with self._writing:
            await asyncio.to_thread(self._disk.remove, self._path(scope, name))

    async def hold(self, scope: str, cause: str, line: str, *, session: str, person: str) -> None:
        """Stage the addition of *line* to MEMORY.md, once per *cause*. Raises OSError.

        The caller holds `writing`.
        """
        change = StagedChange(
            name=f"r{short_id(cause)}",
            why=ReviewReason.UNTRUSTED,
            at=self._now(),
            operations=(AddLines(line),),
            session=session,
            person=person,
            cause=cause,
        )
        await self._stage(scope, change)

    async def _stage(self, scope: str, change: StagedChange) -> None:
        await asyncio.to_thread(stage_for_approval, scope_folder(self._home, scope) / "memory", self._disk, change)

    async def note_asked(self, scope: str, names: Collection[str], turn: str) -> None:
        """Record that *turn* asks about the changes *names*; durable on return. Raises OSError."""
        async with self._writing:
            for each in await self.pending_changes(scope):
                if each.name in names and not each.asked:
                    await asyncio.to_thread(self._update, self._path(scope, each.name), {"asked": turn})

    def _update(self, path: Path, fields: Mapping[str, Any]) -> None:
        self._disk.replace(path, with_fields(self._disk.load(path) or b"", fields))

    async def approve(self, scope: str, name: str, *, by: str) -> StagedChange | None:
        """Apply the one change whose name begins with *name*; return None if there is not exactly one. Raises OSError.

        Lines that have changed since are left alone. Erasures are approved by `claim_erasure` instead.
        """
        async with self._writing:
            change = await self._find(scope, name)
            if change is None or change.erasure is not None:
                return None
            if is_plain_file(change.document):
                folder = scope_folder(self._home, scope) / "memory"
                await asyncio.to_thread(remove_lines, folder, self._disk, change.document, change.would_remove)
            else:
                await change_document(
                    self._documents,
                    scope,
                    change.document,
                    change.apply_to,
                    why=f"{APPROVED}{change.name} {change.cause}",
                    by=by,
                    inherits=True,
                )
            await asyncio.to_thread(self._disk.remove, self._path(scope, change.name))
            return change

    async def reject(self, scope: str, name: str) -> StagedChange | None:
        """Delete the one change whose name begins with *name*; return None if there is not exactly one."""
        async with self._writing:
            change = await self._find(scope, name)
            if change is not None:
                await asyncio.to_thread(self._disk.remove, self._path(scope, change.name))
        return change

    async def _find(self, scope: str, name: str) -> StagedChange | None:
        matches = [each for each in await self.pending_changes(scope) if name and each.name.startswith(name)]
        return matches[0] if len(matches) == 1 else None

    def _read(self, scope: str) -> list[StagedChange]:
        changes: list[StagedChange] = []
        for path in sorted(self._folder(scope).glob("*.json")):
            change = read_staged(self._disk.load(path) or b"")
            if change is not None and self._now() > change.expires_at:
                self._disk.remove(path)
            elif change is not None:
                changes.append(change)
        return sorted(changes, key=lambda each: each.at)

    def _path(self, scope: str, name: str) -> Path:
        return self._folder(scope) / f"{quote(name)}.json"

    def _folder(self, scope: str) -> Path:
        return scope_folder(self._home, scope) / "memory" / STAGED
