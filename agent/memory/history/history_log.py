"""history.jsonl: the append-only log of consolidations, with cursors for readers ([003]), and its redaction."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from agent.memory.history.history_markdown import HISTORY_MD, HistoryMarkdown, keep_original, parse_legacy_history
from agent.memory.history.jsonl_file import JsonlFile, rewrite_lines
from agent.memory.storage.disk import Disk, save_corrupt
from agent.memory.storage.transcript_lines import FORGOTTEN, decode, encode, utc_now
from gateway.ports import HISTORY_JSONL as HISTORY_JSONL
from gateway.ports import RAW_JSONL as RAW_JSONL
from gateway.ports import HistoryEntry as HistoryEntry
from gateway.ports import Line
from gateway.text.history_lines import encode_entry, encode_raw, read_entry

log = structlog.get_logger(__name__)

CURSOR = ".cursor"
DREAM_CURSOR = ".dream_cursor"
LOCK = ".lock"  # the scope's, which guards its documents too
ARCHIVE_SUFFIX = ".archive.md"  # of documents that old lines of MEMORY.md were moved to
KEYS = ".keys.json"  # of lines that no summary added; those of the others are in their history entries
_LARGEST = 2**53
_COPIES = f"{HISTORY_MD}.*"  # of an older system's file, and of text that a person wrote into it


def line_fingerprint(line: str) -> str:
    """Return a short digest of a line of a document, without its list mark."""
    text = line.strip().lstrip("-*+ ")
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


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


# -- keys of lines that no summary added -------------------------------------------------------------


def load_keys(folder: Path, disk: Disk) -> dict[str, str]:
    """Return the words that lines are found by although they lack them, by `line_fingerprint`. Blocks."""
    record = decode(disk.load(folder / KEYS) or b"{}") or {}
    return {name: text for name, text in record.items() if isinstance(text, str)}


def keys_of_all_lines(folder: Path, disk: Disk) -> dict[str, str]:
    """Return the keys of every line by `line_fingerprint`, those from summaries too. Blocks."""
    summarized = (entry.keys for entry in HistoryLog(folder, disk).after(0))
    return {line: text for keys in (*summarized, load_keys(folder, disk)) for line, text in keys.items()}


def add_keys(folder: Path, disk: Disk, keys: Mapping[str, str], text: str) -> None:
    """Store the keys of lines that MEMORY.md, whose text is *text*, or an archive has.

    Idempotent; blocks; raises OSError.
    """
    if keys:
        with disk.lock(folder / LOCK):
            save_keys(folder, disk, load_keys(folder, disk) | dict(keys), text)


def save_keys(folder: Path, disk: Disk, keys: Mapping[str, str], text: str) -> None:
    """Store *keys* in place of those before, but only of lines that *text*, that of MEMORY.md, or an archive has.

    The caller holds the scope's lock.
    """
    before = load_keys(folder, disk)
    if not keys and not before:
        return
    archives = [disk.load(path) or b"" for path in folder.glob(f"*{ARCHIVE_SUFFIX}")]
    present = {line_fingerprint(line) for line in _lines([text.encode("utf-8", "replace"), *archives])}
    keys = {name: words for name, words in keys.items() if name in present}
    if keys and keys != before:
        disk.replace(folder / KEYS, encode(keys))
    elif not keys and before:
        disk.remove(folder / KEYS)


def _lines(texts: Sequence[bytes]) -> list[str]:
    return [line for text in texts for line in text.decode("utf-8", "replace").splitlines() if line.strip()]


# -- redaction -------------------------------------------------------------------------------------


def redact_history(folder: Path, disk: Disk, change: Callable[[str], str], memory: str | None = None) -> int:
    """Apply *change* to the text of every entry; return the number of changed entries. Blocks; raises OSError.

    *memory* is the text of MEMORY.md, by default that of its file. Keys are kept only of lines that it and its archives
    have and that *change* does not alter. Entries keep their cursors and ranges, and HISTORY.md is rewritten. Messages
    in the raw archive that *change* would alter are blanked. Idempotent: files are replaced as a whole.
    """
    if not folder.is_dir():
        return 0
    with disk.lock(folder / LOCK):
        if memory is None:
            memory = (disk.load(folder / "MEMORY.md") or b"").decode("utf-8", "replace")
        keyed = _unaltered_lines(folder, disk, change, memory)
        known = load_keys(folder, disk).items()
        unaltered = {name: words for name, words in known if name in keyed and change(words) == words}
        save_keys(folder, disk, unaltered, memory)
        changed = rewrite_lines(folder / HISTORY_JSONL, disk, lambda line: _redact_entry(line, change, keyed))
        rewrite_lines(folder / RAW_JSONL, disk, lambda line: _redact_raw(line, change))
        for copy in sorted(folder.glob(_COPIES)):
            text = (disk.load(copy) or b"").decode("utf-8", "replace")
            if change(text) != text:
                disk.replace(copy, change(text).encode())
        if changed:
            lines = map(decode, (disk.load(folder / HISTORY_JSONL) or b"").splitlines())
            shown = [(str(each.get("timestamp", "")), str(each.get("content", ""))) for each in lines if each]
            HistoryMarkdown(folder, disk).rebuild(shown)
    return changed


def blank_raw(folder: Path, disk: Disk, session: str, mid: str) -> int:
    """Blank one message of *session* in the raw archive; return the number of changed lines. Blocks; raises OSError."""
    if disk.size(folder / RAW_JSONL) is None:
        return 0

    def change(line: dict[str, object]) -> dict[str, object]:
        message = line.get("message")
        is_target = line.get("session") == session and isinstance(message, dict) and message.get("mid") == mid
        return _blank(line) if is_target else line

    with disk.lock(folder / LOCK):
        return rewrite_lines(folder / RAW_JSONL, disk, change)


def _unaltered_lines(folder: Path, disk: Disk, change: Callable[[str], str], memory: str) -> frozenset[str]:
    """Return the fingerprints of the lines of MEMORY.md and its archives that *change* does not alter."""
    archives = [disk.load(path) or b"" for path in folder.glob(f"*{ARCHIVE_SUFFIX}")]
    texts = [memory.encode("utf-8", "replace"), *archives]
    return frozenset(line_fingerprint(line) for line in _lines(texts) if change(line) == line)


def _redact_entry(line: dict[str, object], change: Callable[[str], str], keyed: frozenset[str]) -> dict[str, object]:
    content, keys = line.get("content"), line.get("keys")
    if isinstance(keys, dict):
        kept = {name: text for name, text in keys.items() if name in keyed and change(str(text)) == text}
        line = {**line, "keys": kept}
    return {**line, "content": change(content)} if isinstance(content, str) else line


def _redact_raw(line: dict[str, object], change: Callable[[str], str]) -> dict[str, object]:
    message = line.get("message")
    text = str(message)
    if not isinstance(message, dict) or change(text) == text:
        return line
    return _blank(line)


def _blank(line: dict[str, object]) -> dict[str, object]:
    message = line.get("message")
    names = ("role", "timestamp", "turn", "i")
    kept = {name: message[name] for name in names if name in message} if isinstance(message, dict) else {}
    return {**line, "message": {**kept, "content": FORGOTTEN}}
