"""The files of a scope's history: printed from what the store has, and read once from homes of earlier releases."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.memory.history.history_log import (
    CURSOR,
    DREAM_CURSOR,
    HISTORY_JSONL,
    RAW_JSONL,
    HistoryLog,
    read_cursor,
)
from agent.memory.history.history_markdown import HISTORY_MD, format_entry
from agent.memory.history.plain_files import NOTE_NAME as NOTE_NAME
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode, encode
from gateway.ports import PRINTED_MARKS, MarkKind, ScopeHistory, StoredNote, mark_file
from gateway.text.history_lines import read_entry

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
    lines = (decode(raw) or {} for raw in history.entries)
    markdown = (format_entry((str(each.get("timestamp", "")), str(each.get("content", "")))) for each in lines)
    files = {
        HISTORY_JSONL: b"".join(history.entries),
        HISTORY_MD: "".join(markdown).encode("utf-8", "replace"),
        RAW_JSONL: b"".join(history.raws),
        CURSOR: b"%d\n" % history.cursor if history.cursor else b"",
        DREAM_CURSOR: b"%d\n" % history.dream_cursor if history.dream_cursor else b"",
        **{name: note.body for name, note in history.notes.items()},
        **{MARK_FILES[kind]: encode(marks) for kind, marks in history.marks.items() if kind in MARK_FILES},
    }
    return {name: data for name, data in files.items() if data}


def read_files(folder: Path, disk: Disk) -> ScopeHistory:
    """Return the history in the files of *folder*, a scope's `memory/`. Blocks; raises OSError.

    An older system's HISTORY.md is converted first. Lines without a cursor are moved to `history.jsonl.corrupt`.
    """
    HistoryLog(folder, disk).after(0)
    entries = _rising([raw for raw in _lines(disk, folder / HISTORY_JSONL) if read_entry(raw) is not None])
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
