"""The files of a scope's history: printed from what the store has, and read once from homes of earlier releases.

The rows are true, and no turn reads the files. One that a person has edited is set aside as `<name>.edited-<digest>`
when it is written again. The digests of what was written last are in `memory/.mirror/history.json`, so that such a file
is recognized. Here are also the words that remembered lines are found by although they lack them.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from cachetools import LRUCache

from agent.base.disk import Disk, read_text, save_corrupt, wait_for_thread
from agent.base.scopes import scope_folder
from agent.base.transcript_lines import FORGOTTEN, decode, encode, entry_id, utc_now
from agent.memory.storage.scope_documents import line_fingerprint
from gateway.ports.memory import (
    HISTORY_JSONL,
    HISTORY_MD,
    PRINTED_MARKS,
    RAW_JSONL,
    HistoryEntry,
    HistoryStore,
    MarkKind,
    ScopeHistory,
    StoredNote,
    mark_file,
)
from gateway.text.json_lines import encode_entry, read_entry

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory

log = structlog.get_logger(__name__)

ARCHIVE_SUFFIX = ".archive.md"  # of notes that old lines of MEMORY.md were moved to
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n")
LOCK = ".lock"  # in `memory/`, of a folder without a gateway; it guards the documents too
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
_WRITTEN = ".mirror/history.json"  # name -> digests that the file may have: of its text now, and of the one before
_FROM_ENTRIES = frozenset({HISTORY_JSONL, HISTORY_MD, CURSOR})
_MOST_KNOWN = 256  # scopes


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


@dataclass(frozen=True, slots=True)
class _WrittenEntries:
    """The files of a scope's entries as they were written last."""

    cursor: int  # of the last entry
    hashes: Mapping[str, Any]  # by name, of hashlib; more bytes may be added to a copy
    states: Mapping[str, object]  # by name, as `_state` returns them


class HistoryFiles:
    """Writes the files of the history of any scope, one after the other."""

    def __init__(self, home: Path, history: SqlHistory, disk: Disk) -> None:
        self._home = home
        self._history = history
        self._disk = disk
        self._known: LRUCache[str, _WrittenEntries] = LRUCache(_MOST_KNOWN)

    async def write(self, scope: str, names: Set[str] | None = None, *, is_outdated: bool = False) -> None:
        """Write the stale files *names*, or all; outdated ones are not set aside. Raises OSError and StoreUnavailable.

        Where entries were added alone, they are appended if the files are as they were left.
        """
        if names is not None and HISTORY_JSONL in names:
            is_appended = HISTORY_MD not in names and await self._append(scope)
            names = names - {HISTORY_JSONL} if is_appended else names | _FROM_ENTRIES
            if not names:
                return
        self._known.pop(scope, None)
        contents = await self._history.load(scope)
        folder = scope_folder(self._home, scope) / "memory"
        printed = await asyncio.to_thread(printed_files, contents)
        await wait_for_thread(asyncio.to_thread(self._write_files, folder, printed, names, is_outdated))
        if names is None or HISTORY_MD in names:
            hashes = {name: hashlib.sha256(printed.get(name, b"")) for name in (HISTORY_JSONL, HISTORY_MD)}
            self._known[scope] = _WrittenEntries(contents.cursor, hashes, _states(folder))

    async def _append(self, scope: str) -> bool:
        """Append the entries behind those in the files; return False where these are not as they were left."""
        known = self._known.pop(scope, None)
        folder = scope_folder(self._home, scope) / "memory"
        if known is None or await asyncio.to_thread(_states, folder) != known.states:
            return False
        entries = await self._history.after(scope, known.cursor)
        added = print_entries([encode_entry(each) for each in entries])
        hashes = {name: each.copy() for name, each in known.hashes.items()}
        for name, data in added.items():
            hashes[name].update(data)
        digests = {name: [hashes[name].hexdigest(), each.hexdigest()] for name, each in known.hashes.items()}
        cursor = entries[-1].cursor if entries else known.cursor
        if entries:
            await wait_for_thread(asyncio.to_thread(self._append_files, folder, added, digests, cursor))
        self._known[scope] = _WrittenEntries(cursor, hashes, await asyncio.to_thread(_states, folder))
        return True

    def _append_files(
        self, folder: Path, added: Mapping[str, bytes], digests: Mapping[str, list[str]], cursor: int
    ) -> None:
        written = dict(decode(self._disk.load(folder / _WRITTEN) or b"{}") or {})
        self._disk.replace(folder / _WRITTEN, encode({**written, **digests}))  # before the files, as below
        for name, data in added.items():
            self._disk.append(folder / name, data)
        self._disk.replace(folder / CURSOR, b"%d\n" % cursor)

    def _write_files(
        self, folder: Path, printed: Mapping[str, bytes], names: Collection[str] | None, is_outdated: bool
    ) -> None:
        if not folder.is_dir() and not printed:  # the scope was erased, or moved
            return
        if names is None:
            there = {path.name for path in folder.glob("*")} if folder.is_dir() else set()
            names = {name for name in there | set(printed) if is_history_file(name)}
        written = dict(decode(self._disk.load(folder / _WRITTEN) or b"{}") or {})
        current = {name: self._disk.load(folder / name) for name in names}
        changes = {name: printed.get(name) for name in names if printed.get(name) != current[name]}
        if not changes:
            return
        for name, data in changes.items():
            now = current[name]
            if now and not is_outdated and not name.startswith("."):
                is_ours = digest_of(now) in written.get(name, ()) or (data or b"").startswith(now)
                if not is_ours:
                    self._disk.replace(folder / f"{name}.edited-{digest_of(now)[:8]}", now)
            written[name] = [digest_of(each) for each in (data, now) if each]
        # Before the files: after a kill in between, both texts are known as ours.
        self._disk.replace(folder / _WRITTEN, encode({name: each for name, each in written.items() if each}))
        for name, data in changes.items():
            if data is None:
                self._disk.remove(folder / name)
            else:
                self._disk.replace(folder / name, data)


def _states(folder: Path) -> dict[str, object]:
    """Return inode, size and time of the files of the entries, which change with them."""
    states: dict[str, object] = {}
    for name in (HISTORY_JSONL, HISTORY_MD):
        try:
            found = (folder / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            states[name] = None
        else:
            states[name] = (found.st_ino, found.st_size, found.st_mtime_ns)
    return states


def digest_of(data: bytes) -> str:
    """Return the SHA-256 of *data* in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


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


# -- keys of lines ---------------------------------------------------------------------------------


async def archive_names(history: HistoryStore, scope: str) -> list[str]:
    """Return the names of the archives of MEMORY.md, the oldest first."""
    return [name for name in await history.note_names(scope) if name.endswith(ARCHIVE_SUFFIX)]


async def remembered_lines(history: HistoryStore, scope: str, text: str) -> list[str]:
    """Return the lines of *text*, that of MEMORY.md, and of its archives."""
    archives = [await history.note(scope, name) or b"" for name in await archive_names(history, scope)]
    texts = [text, *(each.decode("utf-8", "replace") for each in archives)]
    return [line for each in texts for line in each.splitlines() if line.strip()]


async def add_keys(history: HistoryStore, scope: str, keys: Mapping[str, str], text: str) -> None:
    """Store the keys, by `line_fingerprint`, of lines that *text*, MEMORY.md, or an archive has. Idempotent."""
    if keys:
        present = {line_fingerprint(line) for line in await remembered_lines(history, scope, text)}
        added = {name: words for name, words in keys.items() if name in present}
        await history.write(scope, marks={MarkKind.KEYS: added})


async def drop_absent_lines(history: HistoryStore, scope: str, text: str) -> None:
    """Remove the keys and uses of lines that neither *text*, MEMORY.md, nor an archive has. Idempotent."""
    stored = {kind: await history.marks(scope, kind) for kind in (MarkKind.KEYS, MarkKind.USED)}
    if any(stored.values()):
        present = {line_fingerprint(line) for line in await remembered_lines(history, scope, text)}
        gone = {kind: {name: None for name in marks if name not in present} for kind, marks in stored.items()}
        if any(gone.values()):
            await history.write(scope, marks=gone)


async def keys_of_all_lines(history: HistoryStore, scope: str) -> dict[str, str]:
    """Return the keys of every line by `line_fingerprint`, those from summaries too."""
    summarized = [entry.keys for entry in await history.after(scope)]
    return {
        line: text for keys in (*summarized, await history.marks(scope, MarkKind.KEYS)) for line, text in keys.items()
    }


# -- erasure ---------------------------------------------------------------------------------------


def is_plain_file(name: str) -> bool:
    """Return True if *name* is the history, a note, a flushed day or an archive of MEMORY.md."""
    return name == HISTORY_JSONL or NOTE_NAME.match(name) is not None


def sentences(text: str) -> list[str]:
    """Return the sentences and lines of a text."""
    return [piece.strip() for piece in _SENTENCE.split(text) if piece.strip()]


async def remove_lines(history: SqlHistory, scope: str, name: str, removed: Collection[str]) -> None:
    """Remove lines from the note *name*, or sentences from the history. Idempotent."""
    if not is_plain_file(name):
        raise ValueError(f"nothing that was written down: {name!r}")
    targets = {each.strip() for each in removed}

    def change(place: str, body: bytes) -> bytes:
        if place != name:
            return body
        if name == HISTORY_JSONL:
            line = dict(decode(body) or {})
            content = str(line.get("content", ""))
            left = drop_sentences(content, lambda piece: piece.strip() in targets)
            return body if left == content else encode({**line, "content": left})
        lines = body.decode("utf-8", "replace").splitlines(keepends=True)
        kept = "".join(line for line in lines if line.strip() not in targets)
        return body if len(kept) == sum(map(len, lines)) else kept.encode()

    await history.rewrite(scope, change)


def drop_sentences(text: str, is_gone: Callable[[str], bool]) -> str:
    """Return *text* without the sentences and lines for which *is_gone* is True; FORGOTTEN if nothing is left."""
    pieces, gaps = _SENTENCE.split(text), [*_SENTENCE.findall(text), ""]
    kept = [piece + gap for piece, gap in zip(pieces, gaps, strict=True) if not is_gone(piece)]
    return text if len(kept) == len(pieces) else "".join(kept).strip() or FORGOTTEN
