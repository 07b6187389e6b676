"""The history of a plain folder, for tests that block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from agent.base.disk import Disk
from agent.base.transcript_lines import decode, utc_now
from agent.memory.history.folder_store import FolderHistory
from gateway.ports.journal import Line
from gateway.ports.memory import HistoryEntry

T = TypeVar("T")
_SCOPE = ""


class HistoryLog:
    """The library's history in *folder*, which may have any name."""

    def __init__(self, folder: Path, disk: Disk | None = None, *, now: Callable[[], datetime] = utc_now) -> None:
        self._history = FolderHistory(folder.parent, disk, now=now)
        self._history._folder = folder

    def append(self, *entries: HistoryEntry) -> tuple[HistoryEntry, ...]:
        """Store entries."""
        return self._history.append_now(*entries)

    def after(self, cursor: int, limit: int | None = None) -> tuple[HistoryEntry, ...]:
        """Return the entries after a cursor."""
        return tuple(_done(self._history.after(_SCOPE, cursor, limit)))

    def find(self, entry: str) -> HistoryEntry | None:
        """Return an entry by its id."""
        return _done(self._history.find(_SCOPE, entry))

    def keep_raw(self, entry: HistoryEntry, messages: Sequence[Any]) -> HistoryEntry:
        """Store messages without a summary."""
        return _done(self._history.keep_raw(_SCOPE, entry, messages))

    def raw_messages(self, entry: str) -> list[Line]:
        """Return the messages in the raw archive of an entry."""
        lines = map(decode, self._history._load().raws)
        return [line["message"] for line in lines if line and line.get("entry") == entry and line.get("message")]

    @property
    def dream_cursor(self) -> int:
        """The cursor of the last entry that Dream has processed, as a file says."""
        return self._history._load().dream_cursor

    @dream_cursor.setter
    def dream_cursor(self, cursor: int) -> None:
        self._history._change(lambda history: (replace(history, dream_cursor=max(cursor, history.dream_cursor)), None))


def _done(work: Coroutine[Any, Any, T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
