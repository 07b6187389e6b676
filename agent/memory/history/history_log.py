"""history.jsonl: what was consolidated, append-only, with cursors for whoever reads on ([003])."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from agent.memory.history.history_markdown import HISTORY_MD, HistoryMarkdown
from agent.memory.history.jsonl_file import JsonlFile
from agent.memory.history.legacy_history import keep_original, parse_legacy_history
from agent.memory.storage.disk import Disk, save_corrupt
from agent.memory.storage.transcript_lines import decode, encode, utc_now
from gateway.ports import Line

log = structlog.get_logger(__name__)

HISTORY_JSONL = "history.jsonl"
RAW_JSONL = "raw.jsonl"
CURSOR = ".cursor"
DREAM_CURSOR = ".dream_cursor"
LOCK = ".lock"  # the scope's, which guards its documents too
_LARGEST = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One line: what happened, and which messages of which session it was made of."""

    timestamp: str  # "YYYY-MM-DD HH:MM", in the scope's zone
    content: str
    cursor: int = 0  # given by the log
    session: str = ""
    start: int = 0  # `from` in the file
    end: int = 0  # `to`, exclusive
    origin: str = ""  # user, assistant, owner, untrusted
    entry: str = ""  # its id; the same id is never stored twice
    raw: str = ""  # the file that holds the messages themselves, when nothing could be made of them


class HistoryLog:
    """The history of one scope, in its folder `memory/`. Blocks: call it in a thread.

    Several processes may use it at once. An HISTORY.md of an older system is taken over before anything else.
    """

    def __init__(self, folder: Path, disk: Disk | None = None, *, now: Callable[[], datetime] = utc_now) -> None:
        self._folder = folder
        self._disk = disk or Disk()
        self._now = now
        self._file = JsonlFile(folder / HISTORY_JSONL, self._disk)
        self._mirror = HistoryMarkdown(folder, self._disk)

    def append(self, *entries: HistoryEntry) -> tuple[HistoryEntry, ...]:
        """Store the entries, each id once, and return them as stored. Durable on return; raises OSError.

        The cursors are larger than any that was ever given out here. HISTORY.md follows; when it cannot, it
        is mended by the next append.
        """
        with self._disk.lock(self._folder / LOCK):
            self._take_over()
            return self._append(entries)

    def after(self, cursor: int, limit: int | None = None) -> tuple[HistoryEntry, ...]:
        """Return the entries behind *cursor*, the oldest first, at most *limit*; the cost is that of the new ones."""
        if self._is_old():
            with self._disk.lock(self._folder / LOCK):
                self._take_over()
        found: list[HistoryEntry] = []
        bad: list[bytes] = []
        for raw in self._file.backwards():
            entry = _read(raw)
            if entry is None:
                bad.append(raw)
            elif entry.cursor <= cursor:
                break
            else:
                found.append(entry)
        if bad:
            save_corrupt(self._disk, self._file.path, bad[::-1])
        found.reverse()
        return tuple(found if limit is None else found[:limit])

    def find(self, entry: str) -> HistoryEntry | None:
        """Return the entry of this id."""
        raw = self._file.find("entry", entry) if entry else None
        return _read(raw) if raw is not None else None

    def keep_raw(self, entry: HistoryEntry, messages: Sequence[Any]) -> HistoryEntry:
        """Put messages that no model could summarise into the raw archive, as they are, and say so in the history.

        *entry* tells which messages they are; its id makes doing it twice doing it once.
        """
        archive = JsonlFile(self._folder / RAW_JSONL, self._disk)
        lines = [
            {"entry": entry.entry, "session": entry.session, "i": entry.start + n, "message": message}
            for n, message in enumerate(messages)
        ]
        with self._disk.lock(self._folder / LOCK):
            self._take_over()
            if archive.find("entry", entry.entry) is None:
                archive.append(b"".join(encode(line) for line in lines))
            else:
                archive.sync()
            return self._append([replace(entry, raw=RAW_JSONL)])[0]

    def rebuild(self) -> int:
        """Write HISTORY.md anew; return how many entries it holds. What a person wrote into it is kept beside it."""
        with self._disk.lock(self._folder / LOCK):
            self._take_over()
            entries = self.after(0)
            self._mirror.repair([_pair(each) for each in entries])
        return len(entries)

    @property
    def dream_cursor(self) -> int:
        """How far Dream has read."""
        return self._number(DREAM_CURSOR)

    @dream_cursor.setter
    def dream_cursor(self, cursor: int) -> None:
        with self._disk.lock(self._folder / LOCK):
            if cursor > self._number(DREAM_CURSOR):
                self._disk.replace(self._folder / DREAM_CURSOR, b"%d\n" % cursor)

    # -- under the lock ----------------------------------------------------------------------------

    def _append(self, entries: Sequence[HistoryEntry]) -> tuple[HistoryEntry, ...]:
        last = self._last()
        # The file decides; the notes beside it only keep a cursor from being given twice when lines were taken away.
        cursor = max(last.cursor if last else 0, self._number(CURSOR), self._number(DREAM_CURSOR))
        stored: list[HistoryEntry] = []
        new: list[HistoryEntry] = []
        mine: dict[str, HistoryEntry] = {}
        for entry in entries:
            known = mine.get(entry.entry) or self.find(entry.entry)
            if known is None:
                cursor += 1
                known = replace(entry, cursor=cursor)
                new.append(known)
                if entry.entry:
                    mine[entry.entry] = known
            stored.append(known)
        if new:
            self._file.append(b"".join(encode(_line(entry)) for entry in new))
        elif stored:
            self._file.sync()
        self._follow(last, new, cursor)
        return tuple(stored)

    def _follow(self, last: HistoryEntry | None, new: Sequence[HistoryEntry], cursor: int) -> None:
        """Bring along what is derived; the record itself is safe."""
        try:
            if new:
                self._disk.replace(self._folder / CURSOR, b"%d\n" % cursor)
            self._mirror.follow(
                _pair(last), [_pair(each) for each in new], lambda: [_pair(each) for each in self.after(0)]
            )
        except OSError as error:
            log.warning("history.mirror_late", error=error.strerror)

    def _last(self) -> HistoryEntry | None:
        return next((entry for raw in self._file.backwards() if (entry := _read(raw)) is not None), None)

    def _number(self, name: str) -> int:
        text = (self._disk.load(self._folder / name) or b"").strip()
        number = int(text) if text.isdigit() and len(text) < 17 else 0
        return number if number < _LARGEST else 0

    def _is_old(self) -> bool:
        return self._file.is_empty and bool(self._disk.size(self._folder / HISTORY_MD))

    def _take_over(self) -> None:
        """Make records of what an older system left in HISTORY.md, once; its file is kept as it was."""
        if not self._is_old():
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
        # Whole or not at all: half of it would look like a history of ours.
        self._disk.replace(self._file.path, b"".join(encode(_line(entry)) for entry in entries))
        log.info("history.taken_over", entries=len(entries))
        self._disk.replace(self._folder / CURSOR, b"%d\n" % entries[-1].cursor)
        self._mirror.rebuild([_pair(each) for each in entries])


def _pair(entry: HistoryEntry | None) -> tuple[str, str]:
    return (entry.timestamp, entry.content) if entry else ("", "")


def _line(entry: HistoryEntry) -> Line:
    line: dict[str, Any] = {"cursor": entry.cursor, "timestamp": entry.timestamp, "content": entry.content}
    line |= {"session": entry.session, "from": entry.start, "to": entry.end}
    line |= {"origin": entry.origin, "entry": entry.entry}
    return line | ({"raw": entry.raw} if entry.raw else {})


def _read(raw: bytes) -> HistoryEntry | None:
    """Return the entry of a line; one of [003] has cursor, timestamp and content alone."""
    line = decode(raw)
    if line is None or not _is_whole(line.get("cursor")):
        return None
    start, end = line.get("from"), line.get("to")
    texts = {name: str(line.get(name) or "") for name in ("timestamp", "content", "session", "origin", "entry", "raw")}
    return HistoryEntry(
        cursor=line["cursor"],
        start=start if isinstance(start, int) and _is_whole(start) else 0,
        end=end if isinstance(end, int) and _is_whole(end) else 0,
        **texts,
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST
