"""Arguing with memory: what is remembered, where each line came from, what changed, and taking a change back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.memory.documents.file_documents import VersionedDocuments
from agent.memory.documents.version_store import DocumentVersion, VersionStore
from agent.memory.editing.three_way_merge import revert_change
from agent.memory.history.history_log import HistoryEntry
from agent.memory.versioning.version_sources import VersionSources, cause_of
from gateway.ports import DisplayedMessage, Journal, ScopeDocument, SessionReader

_LOOK_BACK = 2_000  # lines of a session that are searched for the message a fact came from
_SHORTEST = 3  # characters that a question about memory must have
_TRIES = 3
UNDO = "undo "  # then the version's name
_REMEMBER = "remember:"  # then the turn, the line's index and a number: the cause of what the tool kept


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOrigin:
    """Where a remembered line came from."""

    line: str
    name: str  # of the document
    version: DocumentVersion
    said: DisplayedMessage | None = None  # the message behind it, where it can still be found
    entry: HistoryEntry | None = None  # or the summary it came with


@dataclass(frozen=True, slots=True)
class UndoDone:
    """The change is undone, by a new version."""


@dataclass(frozen=True, slots=True)
class UndoConflict:
    """Later changes stand on this one; nothing was done."""


@dataclass(frozen=True, slots=True)
class NoSuchVersion:
    """No version has that name, or several have."""


class MemoryService:
    """What the memory commands ask. Everything is of one scope, which comes from the event."""

    def __init__(
        self,
        home: Path,
        documents: VersionedDocuments,
        versions: VersionStore,
        journal: Journal,
        sessions: SessionReader,
    ) -> None:
        self._sources = VersionSources(home)
        self._documents = documents
        self._versions = versions
        self._journal = journal
        self._sessions = sessions

    async def displayed_documents(self, scope: str) -> dict[str, str]:
        """Return what is remembered about the person or chat, by document; only those that say something."""
        texts = {name: (await self._documents.read(scope, name)).text.strip() for name in ("USER.md", "MEMORY.md")}
        return {name: text for name, text in texts.items() if text}

    async def log(
        self, scope: str, *, limit: int = 10, ours: Callable[[DocumentVersion], bool] | None = None
    ) -> list[DocumentVersion]:
        """Return the newest changes, the newest first; those that *ours* picks, if it is given."""
        await self._documents.notice(scope)
        found = await asyncio.to_thread(self._versions.log, scope, limit=limit if ours is None else 1_000)
        return [each for each in found if ours is None or ours(each)][:limit]

    async def diff(self, scope: str, sha: str = "") -> tuple[DocumentVersion, str] | None:
        """Return a change and what it changed; the newest one by default."""
        await self._documents.notice(scope)
        if not sha:
            newest = await self.log(scope, limit=1)
            sha = newest[0].sha if newest else ""
        version = await asyncio.to_thread(self._versions.find, scope, sha) if sha else None
        if version is None:
            return None
        return version, await asyncio.to_thread(self._versions.diff, scope, version.sha)

    async def why(self, scope: str, text: str, *, limit: int = 3) -> list[LineOrigin]:
        """Return where the remembered lines that hold *text* came from; [] when there is no such line."""
        wanted = " ".join(text.casefold().split())
        if len(wanted) < _SHORTEST:
            return []
        await self._documents.notice(scope)
        found: list[LineOrigin] = []
        for name in ("MEMORY.md", "USER.md", "SOUL.md"):
            for line in (await self._documents.read(scope, name)).text.splitlines():
                if len(found) == limit:
                    return found
                if wanted in " ".join(line.casefold().split()) and not line.startswith("#"):
                    version = await asyncio.to_thread(self._versions.source, scope, name, line)
                    if version is not None:
                        found.append(await self._origin(scope, name, line.strip(), version))
        return found

    async def _origin(self, scope: str, name: str, line: str, version: DocumentVersion) -> LineOrigin:
        entry = await asyncio.to_thread(self._sources.entry, scope, version, line)
        if entry is not None:
            spoken = await asyncio.to_thread(self._sources.message, scope, entry, line)
        else:
            spoken = await self._said(version)
        return LineOrigin(line=line, name=name, version=version, said=spoken, entry=entry)

    async def undo(self, scope: str, sha: str, *, by: str) -> UndoDone | UndoConflict | NoSuchVersion:
        """Take back what the version *sha* changed, and that alone; later changes stay."""
        await self._documents.notice(scope)
        version = await asyncio.to_thread(self._versions.find, scope, sha)
        if version is None:
            return NoSuchVersion()
        after = await asyncio.to_thread(self._versions.texts, scope, version.sha)
        before = await asyncio.to_thread(self._versions.documents_before, scope, version.sha) or {}
        names = await asyncio.to_thread(self._left, scope, version, by)
        for name in names:  # all of it, or nothing
            now = (await self._documents.read(scope, name)).text
            if revert_change(_text(before, name), _text(after, name), now) is None:
                return UndoConflict()
        done = [
            await self._take_back(scope, name, _text(before, name), _text(after, name), version, by) for name in names
        ]
        return UndoDone() if all(done) else UndoConflict()

    def _left(self, scope: str, version: DocumentVersion, by: str) -> tuple[str, ...]:
        """Return the documents that are still to be taken back: a crash may have come between two of them."""
        begun = {
            name
            for each in self._versions.log(scope, limit=1)
            if (each.why, each.by) == (f"{UNDO}{version.short}", by)
            for name in each.names
        }
        return tuple(each for each in version.names if each not in begun) or version.names

    async def _take_back(
        self, scope: str, name: str, before: str, after: str, version: DocumentVersion, by: str
    ) -> ScopeDocument | None:
        """Change one document back; None when later changes stand on this one, or somebody writes all the time."""
        for _ in range(_TRIES):
            document = await self._documents.read(scope, name)
            text = revert_change(before, after, document.text)
            if text is None:
                return None
            why = f"{UNDO}{version.short}"
            if written := await self._documents.write(scope, name, text, was=document.rev, why=why, by=by):
                return written
        return None

    async def _said(self, version: DocumentVersion) -> DisplayedMessage | None:
        """Return the person's message in the turn that wanted something remembered."""
        cause = cause_of(version)
        if not cause.startswith(_REMEMBER):
            return None
        turn = cause.removeprefix(_REMEMBER).split(".")[0]
        story = await self._journal.trace(turn)
        if story is None:
            return None
        lines = await self._sessions.displayed_messages(story.key, limit=_LOOK_BACK)
        return next((line for line in lines if line.turn == story.turn and line.role == "user"), None)


def _text(texts: dict[str, bytes], name: str) -> str:
    return texts.get(name, b"").decode("utf-8", "replace")
