"""history.jsonl: the append-only log of consolidations, with cursors for readers ([003]), and its redaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from agent.memory.history.history_markdown import HISTORY_MD, HistoryMarkdown, keep_original, parse_legacy_history
from agent.memory.history.jsonl_file import JsonlFile, rewrite_lines
from agent.memory.storage.disk import Disk, save_corrupt
from agent.memory.storage.transcript_lines import decode, utc_now
from gateway.ports import HISTORY_JSONL as HISTORY_JSONL
from gateway.ports import RAW_JSONL as RAW_JSONL
from gateway.ports import HistoryEntry as HistoryEntry
from gateway.ports import Line
from gateway.text.history_lines import encode_entry, encode_raw, read_entry

log = structlog.get_logger(__name__)

CURSOR = ".cursor"
DREAM_CURSOR = ".dream_cursor"
LOCK = ".lock"  # the scope's, which guards its documents too
_LARGEST = 2**53


class HistoryLog:
    """The history of one scope, in its folder `memory/`. Every method blocks; call it in a thread.

    Several processes may use it at once. The first access imports an older system's HISTORY.md.
    """

    def __init__(self, folder: Path, disk: Disk | None = None, *, now: Callable[[], datetime] = utc_now) -> None:
        self._folder = folder
        self._disk = disk or Disk()
        self._now = now
        self._file = JsonlFile(folder / HISTORY_JSONL, self._disk)
        self._markdown = HistoryMarkdown(folder, self._disk)

    def append(self, *entries: HistoryEntry) -> tuple[HistoryEntry, ...]:
        """Store the entries, each id once, and return them as stored. Durable on return; raises OSError.

        The summary of messages that were kept raw replaces the text of their entry, whose cursor and time stay.
        Cursors only grow and are never reused. HISTORY.md is updated too; if that fails, the next append repairs it.
        """
        with self._disk.lock(self._folder / LOCK):
            self._import_legacy()
            return self._append(entries)

    def after(self, cursor: int, limit: int | None = None) -> tuple[HistoryEntry, ...]:
        """Return at most *limit* entries after *cursor*, the oldest first; reads only these from the file."""
        if self._is_legacy():
            with self._disk.lock(self._folder / LOCK):
                self._import_legacy()
        entries: list[HistoryEntry] = []
        bad: list[bytes] = []
        for raw in self._file.backwards():
            entry = read_entry(raw)
            if entry is None:
                bad.append(raw)
            elif entry.cursor <= cursor:
                break
            else:
                entries.append(entry)
        if bad:
            save_corrupt(self._disk, self._file.path, bad[::-1])
        entries.reverse()
        return tuple(entries if limit is None else entries[:limit])

    def find(self, entry: str) -> HistoryEntry | None:
        """Return the entry with this id, or None."""
        raw = self._file.find("entry", entry) if entry else None
        return read_entry(raw) if raw is not None else None

    def keep_raw(self, entry: HistoryEntry, messages: Sequence[Any]) -> HistoryEntry:
        """Append messages that no model could summarise to the raw archive, and *entry* to the history.

        Idempotent by the id of *entry*, which names the range of the messages. Raises OSError.
        """
        archive = JsonlFile(self._folder / RAW_JSONL, self._disk)
        with self._disk.lock(self._folder / LOCK):
            self._import_legacy()
            if archive.find("entry", entry.entry) is None:
                archive.append(b"".join(encode_raw(entry, messages)))
            else:
                archive.sync()
            return self._append([replace(entry, raw=RAW_JSONL)])[0]

    def raw_messages(self, entry: str) -> list[Line]:
        """Return the messages that the raw archive holds for this entry."""
        lines = map(decode, (self._disk.load(self._folder / RAW_JSONL) or b"").splitlines())
        return [line["message"] for line in lines if line and line.get("entry") == entry and line.get("message")]

    def rebuild(self) -> int:
        """Rewrite HISTORY.md and return its number of entries; text that a person wrote into it is copied to a file."""
        with self._disk.lock(self._folder / LOCK):
            self._import_legacy()
            entries = self.after(0)
            self._markdown.repair([_pair(each) for each in entries])
        return len(entries)

    @property
    def dream_cursor(self) -> int:
        """The cursor of the last entry that Dream has processed."""
        return self._number(DREAM_CURSOR)

    @dream_cursor.setter
    def dream_cursor(self, cursor: int) -> None:
        with self._disk.lock(self._folder / LOCK):
            if cursor > self._number(DREAM_CURSOR):
                self._disk.replace(self._folder / DREAM_CURSOR, b"%d\n" % cursor)

    # -- under the lock ----------------------------------------------------------------------------

    def _append(self, entries: Sequence[HistoryEntry]) -> tuple[HistoryEntry, ...]:
        last = self._last()
        # The file is authoritative; the cursor files only prevent reuse of a cursor whose line was removed.
        cursor = max(last.cursor if last else 0, self._number(CURSOR), self._number(DREAM_CURSOR))
        stored: list[HistoryEntry] = []
        new: list[HistoryEntry] = []
        summarised: dict[str, HistoryEntry] = {}
        mine: dict[str, HistoryEntry] = {}
        for entry in entries:
            known = mine.get(entry.entry) or self.find(entry.entry)
            if known is None:
                cursor += 1
                known = replace(entry, cursor=cursor)
                new.append(known)
                if entry.entry:
                    mine[entry.entry] = known
            elif known.raw and not entry.raw:
                known = replace(entry, cursor=known.cursor, timestamp=known.timestamp)
                summarised[known.entry] = known
            stored.append(known)
        if summarised:
            self._replace_raw(summarised)
        if new:
            self._file.append(b"".join(encode_entry(entry) for entry in new))
        elif stored:
            self._file.sync()
        self._follow(last, new, cursor)
        return tuple(stored)

    def _replace_raw(self, summarised: Mapping[str, HistoryEntry]) -> None:
        def change(line: dict[str, object]) -> dict[str, object]:
            entry = summarised.get(str(line.get("entry", "")))
            return line if entry is None else dict(decode(encode_entry(entry)) or {})

        before = self.after(0)
        # The copy first: a crash in between leaves the entry raw, so that both are written again.
        self._markdown.replace(
            [_pair(each) for each in before], [_pair(summarised.get(each.entry, each)) for each in before]
        )
        rewrite_lines(self._file.path, self._disk, change)

    def _follow(self, last: HistoryEntry | None, new: Sequence[HistoryEntry], cursor: int) -> None:
        """Update the derived files; a failure is logged, the record itself is safe."""
        try:
            if new:
                self._disk.replace(self._folder / CURSOR, b"%d\n" % cursor)
            self._markdown.follow(
                _pair(last), [_pair(each) for each in new], lambda: [_pair(each) for each in self.after(0)]
            )
        except OSError as error:
            log.warning("history.markdown_failed", error=error.strerror)

    def _last(self) -> HistoryEntry | None:
        return next((entry for raw in self._file.backwards() if (entry := read_entry(raw)) is not None), None)

    def _number(self, name: str) -> int:
        return read_cursor(self._folder / name, self._disk)

    def _is_legacy(self) -> bool:
        return self._file.is_empty and bool(self._disk.size(self._folder / HISTORY_MD))

    def _import_legacy(self) -> None:
        """Convert an older system's HISTORY.md into records, once; a copy of the file is kept."""
        if not self._is_legacy():
            return
        data = self._disk.load(self._folder / HISTORY_MD) or b""
        keep_original(self._folder, self._disk, data)
        first = max(self._number(CURSOR), self._number(DREAM_CURSOR)) + 1
        entries = [
            HistoryEntry(timestamp=timestamp, content=content, origin="owner", entry=entry, cursor=n)
            for n, (timestamp, content, entry) in enumerate(parse_legacy_history(data, self._now()), first)
        ]
        if not entries:
            return
        # Replaced as a whole: a part of it would look like a complete history.
        self._disk.replace(self._file.path, b"".join(encode_entry(entry) for entry in entries))
        log.info("history.legacy_imported", entries=len(entries))
        self._disk.replace(self._folder / CURSOR, b"%d\n" % entries[-1].cursor)
        self._markdown.rebuild([_pair(each) for each in entries])


def _pair(entry: HistoryEntry | None) -> tuple[str, str]:
    return (entry.timestamp, entry.content) if entry else ("", "")


def read_cursor(path: Path, disk: Disk) -> int:
    """Return the number in a file of one cursor; 0 without one. Blocks."""
    text = (disk.load(path) or b"").strip()
    number = int(text) if text.isdigit() and len(text) < 17 else 0
    return number if number < _LARGEST else 0
