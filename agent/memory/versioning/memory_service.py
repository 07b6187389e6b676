"""Service behind `/memory`: show the documents, the origin of a line, the changes, and undo a change."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from agent.memory.displayed_messages import order_messages
from agent.memory.documents.file_documents import FileDocumentStore
from agent.memory.documents.version_store import DocumentVersion, VersionStore
from agent.memory.editing.three_way_merge import revert_change
from agent.memory.history.history_log import HistoryEntry, HistoryLog, keys_of_all_lines, line_fingerprint
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode_lines
from agent.memory.versioning.version_sources import VersionSources, remembering_turn
from gateway.ports import DisplayedMessage, Journal, ScopeDocument, TranscriptStore

_MIN_PATTERN = 3  # characters
_MAX_ATTEMPTS = 3
_NOTE = re.compile(r"\d{4}-\d{2}-\d{2}(-[\w-]+)?", re.ASCII)
UNDO = "undo "  # then the version's name


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOrigin:
    """A remembered line and its origin."""

    line: str
    name: str  # of the document
    version: DocumentVersion
    message: DisplayedMessage | None = None  # the message that the line was derived from, if it can be found
    entry: HistoryEntry | None = None  # the summary that the line was derived from


class UndoResult(Enum):
    """How an undo ended."""

    DONE = auto()  # by a new version
    CONFLICT = auto()  # later changes depend on this one; nothing was undone
    UNKNOWN = auto()  # no version has that name, or several versions have it


class MemoryService:
    """Services of the memory commands; the scope comes from the event."""

    def __init__(
        self,
        home: Path,
        documents: FileDocumentStore,
        versions: VersionStore,
        journal: Journal,
        transcripts: TranscriptStore,
    ) -> None:
        self._home = home
        self._sources = VersionSources(home, transcripts)
        self._documents = documents
        self._versions = versions
        self._journal = journal
        self._transcripts = transcripts

    async def displayed_documents(self, scope: str) -> dict[str, str]:
        """Return the texts of USER.md and MEMORY.md, without empty ones."""
        texts = {name: (await self._documents.read(scope, name)).text.strip() for name in ("USER.md", "MEMORY.md")}
        return {name: text for name, text in texts.items() if text}

    async def log(
        self, scope: str, *, limit: int = 10, select: Callable[[DocumentVersion], bool] | None = None
    ) -> list[DocumentVersion]:
        """Return the newest changes, newest first; only those for which *select* returns True, if it is given."""
        await self._documents.notice(scope)
        versions = await asyncio.to_thread(self._versions.log, scope, limit=limit if select is None else 1_000)
        return [each for each in versions if select is None or select(each)][:limit]

    async def diffs(self, scope: str, versions: Sequence[DocumentVersion]) -> list[str]:
        """Return the diff of each of *versions*."""
        return await asyncio.to_thread(lambda: [self._versions.diff(scope, each.sha) for each in versions])

    async def history(self, scope: str) -> tuple[HistoryEntry, ...]:
        """Return the entries of the history, the oldest first."""
        folder = scope_folder(self._home, scope) / "memory"
        return await asyncio.to_thread(lambda: HistoryLog(folder).after(0) if folder.is_dir() else ())

    async def list_notes(self, scope: str) -> list[str]:
        """Return the names of the dated notes, the newest first."""
        folder = scope_folder(self._home, scope) / "memory"
        paths = await asyncio.to_thread(lambda: sorted(folder.glob("*.md"), reverse=True))
        return [path.stem for path in paths if _NOTE.fullmatch(path.stem)]

    async def read_note(self, scope: str, name: str) -> str | None:
        """Return the text of the dated note called *name*; None if it does not exist."""
        stem = name.removesuffix(".md")
        if not _NOTE.fullmatch(stem):
            return None
        path = scope_folder(self._home, scope) / "memory" / f"{stem}.md"
        data = await asyncio.to_thread(Disk().load, path)
        return None if data is None else data.decode("utf-8", "replace").strip()

    async def keys_of(self, scope: str, line: str) -> str:
        """Return the keys by which a remembered *line* is found too, "" if it has none."""
        folder = scope_folder(self._home, scope) / "memory"
        return (await asyncio.to_thread(keys_of_all_lines, folder, Disk())).get(line_fingerprint(line), "")

    async def diff(self, scope: str, sha: str = "") -> tuple[DocumentVersion, str] | None:
        """Return a version (default: the newest) and its diff; None if it does not exist."""
        await self._documents.notice(scope)
        if not sha:
            newest = await self.log(scope, limit=1)
            sha = newest[0].sha if newest else ""
        version = await asyncio.to_thread(self._versions.find, scope, sha) if sha else None
        if version is None:
            return None
        return version, await asyncio.to_thread(self._versions.diff, scope, version.sha)

    async def why(self, scope: str, text: str, *, limit: int = 3) -> list[LineOrigin]:
        """Return the origins of the first *limit* remembered lines that contain *text*."""
        pattern = " ".join(text.casefold().split())
        if len(pattern) < _MIN_PATTERN:
            return []
        await self._documents.notice(scope)
        origins: list[LineOrigin] = []
        for name in ("MEMORY.md", "USER.md", "SOUL.md"):
            for line in (await self._documents.read(scope, name)).text.splitlines():
                if len(origins) == limit:
                    return origins
                if pattern in " ".join(line.casefold().split()) and not line.startswith("#"):
                    version = await asyncio.to_thread(self._versions.source, scope, name, line)
                    if version is not None:
                        origins.append(await self._origin(scope, name, line.strip(), version))
        return origins

    async def _origin(self, scope: str, name: str, line: str, version: DocumentVersion) -> LineOrigin:
        entry = await asyncio.to_thread(self._sources.entry, scope, version, line)
        if entry is not None:
            message = await self._sources.message(scope, entry, line)
        else:
            message = await self._remembering_message(scope, version)
        return LineOrigin(line=line, name=name, version=version, message=message, entry=entry)

    async def undo(self, scope: str, sha: str, *, by: str) -> UndoResult:
        """Revert the changes of the version *sha*; later changes stay."""
        await self._documents.notice(scope)
        version = await asyncio.to_thread(self._versions.find, scope, sha)
        if version is None:
            return UndoResult.UNKNOWN
        texts = await asyncio.to_thread(self._versions.changed_texts, scope, version)
        names = await asyncio.to_thread(self._documents_to_revert, scope, version, by)
        for name in names:  # revert all of them, or none
            if revert_change(*texts[name], (await self._documents.read(scope, name)).text) is None:
                return UndoResult.CONFLICT
        reverted = [await self._revert(scope, name, *texts[name], version, by) for name in names]
        return UndoResult.DONE if all(reverted) else UndoResult.CONFLICT

    def _documents_to_revert(self, scope: str, version: DocumentVersion, by: str) -> tuple[str, ...]:
        """Return the documents that an undo interrupted by a crash has not reverted yet."""
        reverted = {
            name
            for each in self._versions.log(scope, limit=1)
            if (each.why, each.by) == (f"{UNDO}{version.short}", by)
            for name in each.names
        }
        return tuple(each for each in version.names if each not in reverted) or version.names

    async def _revert(
        self, scope: str, name: str, before: str, after: str, version: DocumentVersion, by: str
    ) -> ScopeDocument | None:
        """Revert one document; None if later changes depend on this one, or the document keeps changing."""
        for _ in range(_MAX_ATTEMPTS):
            document = await self._documents.read(scope, name)
            text = revert_change(before, after, document.text)
            if text is None:
                return None
            why = f"{UNDO}{version.short}"
            if written := await self._documents.write(scope, name, text, was=document.rev, why=why, by=by):
                return written
        return None

    async def _remembering_message(self, scope: str, version: DocumentVersion) -> DisplayedMessage | None:
        """Return the user's message in the turn that asked to remember something."""
        turn = remembering_turn(version)
        trace = await self._journal.trace(turn) if turn else None
        if trace is None:
            return None
        stored = await self._transcripts.find(scope, trace.key, trace.turn)
        messages = order_messages([(stored.turn, decode_lines(stored.body))], ()) if stored is not None else []
        return next((each for each in messages if each.role == "user"), None)
