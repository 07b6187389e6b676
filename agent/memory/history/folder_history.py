"""The history of one plain folder, as the library keeps it without a gateway: in the files that a gateway prints."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.memory.history.history_files import MARK_FILES, NOTE_NAME
from agent.memory.history.history_log import LOCK, HistoryLog
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode, encode
from agent.memory.storage.unowned_folder import require_unowned
from gateway.ports import HISTORY_JSONL, HistoryEntry, HistoryRevs, MarkKind, NoteChange
from gateway.ports.history import Marks


class FolderHistory:
    """Implements `HistoryStore` over a workspace's `memory/`, which is its only scope.

    Raises OSError, and HomeInUse for a write in a folder that a gateway has the memory of.
    """

    def __init__(self, log: HistoryLog, folder: Path, disk: Disk) -> None:
        self._log = log
        self._folder = folder
        self._disk = disk

    async def append(self, scope: str, *entries: HistoryEntry) -> Sequence[HistoryEntry]:  # noqa: ARG002
        """Store the entries."""
        require_unowned(self._folder.parent)
        return await asyncio.to_thread(self._log.append, *entries)

    async def keep_raw(self, scope: str, entry: HistoryEntry, messages: Sequence[Any]) -> HistoryEntry:  # noqa: ARG002
        """Store messages without a summary."""
        require_unowned(self._folder.parent)
        return await asyncio.to_thread(self._log.keep_raw, entry, messages)

    async def find(self, scope: str, entry: str) -> HistoryEntry | None:  # noqa: ARG002
        """Return an entry by its id."""
        return await asyncio.to_thread(self._log.find, entry)

    async def after(self, scope: str, cursor: int = 0, limit: int | None = None) -> Sequence[HistoryEntry]:  # noqa: ARG002
        """Return the entries after a cursor."""
        return await asyncio.to_thread(self._log.after, cursor, limit)

    async def revs(self, scope: str) -> HistoryRevs:
        """Return sizes, times and inodes of the files."""
        names = await self.note_names(scope)
        return await asyncio.to_thread(
            lambda: HistoryRevs(
                entries=_rev(self._folder / HISTORY_JSONL),
                keys=_rev(self._folder / MARK_FILES[MarkKind.KEYS]),
                notes={name: _rev(self._folder / name) for name in names},
            )
        )

    async def note_names(self, scope: str) -> Sequence[str]:  # noqa: ARG002
        """Return the names of the notes."""
        names = await asyncio.to_thread(lambda: sorted(path.name for path in self._folder.glob("[0-9]*.md")))
        return [name for name in names if NOTE_NAME.match(name)]

    async def note(self, scope: str, name: str) -> bytes | None:  # noqa: ARG002
        """Return a note."""
        return await asyncio.to_thread(self._disk.load, self._folder / name)

    async def marks(self, scope: str, kind: MarkKind) -> Mapping[str, str]:  # noqa: ARG002
        """Return the marks of a kind."""
        return await asyncio.to_thread(self._marks, kind)

    async def write(
        self,
        scope: str,  # noqa: ARG002
        *,
        notes: Mapping[str, NoteChange] | None = None,
        marks: Mapping[MarkKind, Marks] | None = None,
    ) -> bool:
        """Change notes, then marks: a kill in between leaves the notes without the marks."""
        require_unowned(self._folder.parent)
        return await asyncio.to_thread(self._write, notes or {}, marks or {})

    def _write(self, notes: Mapping[str, NoteChange], marks: Mapping[MarkKind, Marks]) -> bool:
        self._disk.make_folder(self._folder)
        with self._disk.lock(self._folder / LOCK):
            if any(self._disk.load(self._folder / name) != change.was for name, change in notes.items()):
                return False
            for name, change in notes.items():
                if change.body is None:
                    self._disk.remove(self._folder / name)
                else:
                    self._disk.replace(self._folder / name, change.body)
            for kind, changes in marks.items():
                before = self._marks(kind)
                kept = {name: text for name, text in (before | dict(changes)).items() if text is not None}
                if kept and kept != before:
                    self._disk.replace(self._folder / MARK_FILES[kind], encode(kept))
                elif before and not kept:
                    self._disk.remove(self._folder / MARK_FILES[kind])
        return True

    def _marks(self, kind: MarkKind) -> dict[str, str]:
        record = decode(self._disk.load(self._folder / MARK_FILES[kind]) or b"{}") or {}
        return {name: text for name, text in record.items() if isinstance(text, str)}


def _rev(path: Path) -> str:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return ""
    return f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}"


def open_folder(workspace: Path, disk: Disk | None = None) -> FolderHistory:
    """Return the history in the `memory/` of a workspace."""
    folder = Path(workspace) / "memory"
    return FolderHistory(HistoryLog(folder, disk), folder, disk or Disk())
