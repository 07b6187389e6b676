"""The files of a scope's history: printed from what the store has, and read once from homes of earlier releases."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from agent.memory.history.line_keys import ARCHIVE_SUFFIX
from agent.memory.messages.message_range import entry_id
from agent.memory.storage.disk import Disk, read_text, save_corrupt
from agent.memory.storage.transcript_lines import decode, encode, utc_now
from gateway.ports.memory import (
    HISTORY_JSONL,
    HISTORY_MD,
    PRINTED_MARKS,
    RAW_JSONL,
    HistoryEntry,
    MarkKind,
    ScopeHistory,
    StoredNote,
    mark_file,
)
from gateway.text.history_lines import encode_entry, read_entry

log = structlog.get_logger(__name__)

CURSOR, DREAM_CURSOR = ".cursor", ".dream_cursor"
_LARGEST = 2**53
NOTE_NAME = re.compile(
    rf"\d{{4}}-\d\d-\d\d(?:-[a-z0-9-]{{1,60}}|{re.escape(ARCHIVE_SUFFIX.removesuffix('.md'))})?\.md\Z"
)
LEGACY = f"{HISTORY_MD}.legacy"
STAMP = re.compile(
    r"\[?(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2})(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?\]?:?(?=\s|$)"
)
_BLANK = re.compile(r"\n\s*\n")

TimedText = tuple[str, str]  # timestamp and content
OWNERS = ".of.json"  # accounts of notes without a session, of earlier releases
MARK_FILES = {kind: mark_file(kind) for kind in PRINTED_MARKS}
_FILES = frozenset({HISTORY_JSONL, HISTORY_MD, RAW_JSONL, CURSOR, DREAM_CURSOR, *MARK_FILES.values()})
_IMPORTED = ".imported"  # ends the names of files with fingerprints of earlier releases: merged scopes have several
REPLACED = f"*{_IMPORTED}"  # goes when it was taken over; the other files are printed again
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")


def is_history_file(name: str) -> bool:
    """Return True if *name*, of a file in a scope's `memory/`, is one that is printed from the history."""
    return name in _FILES or NOTE_NAME.match(name) is not None


def printed_files(history: ScopeHistory) -> dict[str, bytes]:
    """Return the files of a scope's history, by name; those that would be empty are left out."""
    files = {
        **print_entries(history.entries),
        RAW_JSONL: b"".join(history.raws),
        CURSOR: b"%d\n" % history.cursor if history.cursor else b"",
        DREAM_CURSOR: b"%d\n" % history.dream_cursor if history.dream_cursor else b"",
        **{name: note.body for name, note in history.notes.items()},
        **{MARK_FILES[kind]: encode(marks) for kind, marks in history.marks.items() if kind in MARK_FILES},
    }
    return {name: data for name, data in files.items() if data}


def print_entries(entries: Sequence[bytes]) -> dict[str, bytes]:
    """Return the lines of history.jsonl, and as HISTORY.md has them."""
    lines = (decode(raw) or {} for raw in entries)
    markdown = (format_entry((str(each.get("timestamp", "")), str(each.get("content", "")))) for each in lines)
    return {HISTORY_JSONL: b"".join(entries), HISTORY_MD: "".join(markdown).encode("utf-8", "replace")}


def read_files(folder: Path, disk: Disk) -> ScopeHistory:
    """Return the history in the files of *folder*, a scope's `memory/`. Blocks; raises OSError.

    An older system's HISTORY.md is converted first. Lines without a cursor are moved to `history.jsonl.corrupt`.
    """
    import_legacy(folder, disk, utc_now())
    lines = _lines(disk, folder / HISTORY_JSONL)
    entries = _rising([raw for raw in lines if read_entry(raw) is not None])
    if len(entries) != len(lines):
        save_corrupt(disk, folder / HISTORY_JSONL, [raw.rstrip(b"\n") for raw in lines if read_entry(raw) is None])
    owners = _record(disk, folder / OWNERS)
    notes = {
        path.name: StoredNote(body=disk.load(path) or b"", owner=owners.get(path.name, ""))
        for path in sorted(folder.glob("[0-9]*.md"))
        if NOTE_NAME.match(path.name)
    }
    marks = {kind: _record(disk, folder / name) for kind, name in MARK_FILES.items()}
    marks[MarkKind.IMPORTED] |= {
        word: ""
        for path in sorted(folder.glob(f"*{_IMPORTED}"))
        for line in _lines(disk, path)  # a torn one is left out
        for word in line.decode("ascii", "replace").split()
        if _FINGERPRINT.fullmatch(word)
    }
    return ScopeHistory(
        entries=entries,
        raws=_lines(disk, folder / RAW_JSONL),
        notes={name: note for name, note in notes.items() if note.body},
        marks={kind: each for kind, each in marks.items() if each},
        cursor=max([read_cursor(folder / CURSOR, disk), *map(cursor_of, entries[-1:])]),
        dream_cursor=read_cursor(folder / DREAM_CURSOR, disk),
    )


def import_legacy(folder: Path, disk: Disk, now: datetime) -> None:
    """Convert an older system's HISTORY.md into records, once; a copy of the file is kept. Raises OSError."""
    if not is_legacy(folder, disk):
        return
    data = disk.load(folder / HISTORY_MD) or b""
    keep_original(folder, disk, data)
    first = max(read_cursor(folder / CURSOR, disk), read_cursor(folder / DREAM_CURSOR, disk)) + 1
    entries = [
        HistoryEntry(timestamp=timestamp, content=content, origin="owner", entry=entry, cursor=n)
        for n, (timestamp, content, entry) in enumerate(parse_legacy_history(data, now), first)
    ]
    if not entries:
        return
    # Replaced as a whole: a part of it would look like a complete history.
    disk.replace(folder / HISTORY_JSONL, b"".join(map(encode_entry, entries)))
    log.info("history.legacy_imported", entries=len(entries))
    disk.replace(folder / CURSOR, b"%d\n" % entries[-1].cursor)
    markdown = "".join(format_entry((each.timestamp, each.content)) for each in entries)
    disk.replace(folder / HISTORY_MD, markdown.encode("utf-8", "replace"))


def is_legacy(folder: Path, disk: Disk) -> bool:
    """Return True if the history of a folder is an older system's HISTORY.md alone."""
    return not disk.size(folder / HISTORY_JSONL) and bool(disk.size(folder / HISTORY_MD))


def read_cursor(path: Path, disk: Disk) -> int:
    """Return the number in a file of one cursor; 0 without one. Blocks."""
    text = (disk.load(path) or b"").strip()
    number = int(text) if text.isdigit() and len(text) < 17 else 0
    return number if number < _LARGEST else 0


def _rising(entries: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the entries with new cursors from the first on that does not rise: a person may have edited the file."""
    last = 0
    rising: list[bytes] = []
    for raw in entries:
        cursor = max(cursor_of(raw), last + 1)
        rising.append(raw if cursor == cursor_of(raw) else encode({**(decode(raw) or {}), "cursor": cursor}))
        last = cursor
    return tuple(rising)


def cursor_of(raw: bytes) -> int:
    """Return the cursor of an entry's line, 0 for any other line."""
    entry = read_entry(raw)
    return entry.cursor if entry is not None else 0


def _lines(disk: Disk, path: Path) -> tuple[bytes, ...]:
    whole, _, _ = (disk.load(path) or b"").rpartition(b"\n")
    return tuple(raw + b"\n" for raw in whole.split(b"\n") if raw.strip())


def _record(disk: Disk, path: Path) -> dict[str, str]:
    record: Mapping[str, Any] = decode(disk.load(path) or b"{}") or {}
    return {str(name): value for name, value in record.items() if isinstance(value, str)}


def free_name(name: str, names: Mapping[str, object]) -> str:
    """Return *name* with the first number that none of *names* has."""
    stem, dot, ending = name.partition(".")
    n = 2
    while (numbered := f"{stem}-{n}{dot}{ending}") in names:
        n += 1
    return numbered


# -- HISTORY.md ------------------------------------------------------------------------------------


def format_entry(entry: TimedText) -> str:
    """Return an entry as a paragraph that begins with its time, followed by a blank line."""
    timestamp, content = entry
    flat = _BLANK.sub("\n", content.strip().replace("\r\n", "\n").replace("\r", "\n"))
    stamped = flat if STAMP.match(flat) and flat.startswith("[") else f"[{timestamp}] {flat}".rstrip()
    return f"{stamped}\n\n"


# -- files of older systems ([000], [001], [004]) ----------------------------------------------------


def parse_legacy_history(data: bytes, now: datetime) -> Iterator[tuple[str, str, str]]:
    """Yield (timestamp, content, entry id) for each entry of an older system's HISTORY.md.

    An entry starts at a line that begins with a time, in brackets [001] or without [004]. Text before the first such
    line is an entry with the time *now*.
    """
    source = f"{HISTORY_MD} {hashlib.sha256(data).hexdigest()}"
    timestamp, lines, n = f"{now:%Y-%m-%d %H:%M}", list[str](), 0
    for line in [*read_text(data).split("\n"), None]:
        found = STAMP.match(line) if line is not None else None
        if found is None and line is not None:
            lines.append(line)
            continue
        content = "\n".join(lines).strip()
        if content:
            yield timestamp, content, entry_id(source, n, n + 1)
            n += 1
        if found is not None and line is not None:
            timestamp = f"{found.group(1)} {found.group(2)}"
            lines = [line[found.end() :].lstrip()]


def keep_original(folder: Path, disk: Disk, data: bytes) -> Path:
    """Copy the older system's file to `HISTORY.md.legacy`; return the copy's path. Idempotent."""
    path = folder / LEGACY
    known = disk.load(path)
    if known is not None and known != data:
        path = folder / f"{LEGACY}-{hashlib.sha256(data).hexdigest()[:8]}"
        known = disk.load(path)
    if known != data:
        disk.replace(path, data)
    return path
