"""Take over the histories that earlier releases have kept in files: once, before anything moves or removes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent.memory.history.history_files import REPLACED, cursor_of, free_name, read_files
from agent.memory.scopes import list_scopes, scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode, encode
from gateway.ports.access import ScopeMove
from gateway.ports.memory import MarkKind, ScopeHistory, StoredNote
from gateway.text.history_lines import read_entry

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory


log = structlog.get_logger(__name__)

_MOVED = ".move"  # in a scope's `memory/`: the id of the move that has built the folder


async def adopt_histories(home: Path, history: SqlHistory, moves: Sequence[ScopeMove]) -> int:
    """Store the history in the files of every scope; return the number of scopes that have one.

    Idempotent; a kill interrupts it.

    *moves* are those that were interrupted: where one has merged two folders, the files of its source are left out.
    The files stay, as those that are printed from the rows. Raises OSError and StoreUnavailable.
    """
    if await history.is_adopted():
        return 0
    disk, count = Disk(), 0
    scopes = ["", *await asyncio.to_thread(list_scopes, home)]
    for scope in scopes:
        folder = scope_folder(home, scope) / "memory"
        done = [each for each in moves if each.source == scope and each.kind != "unlink"]
        if any([await asyncio.to_thread(_is_merged, home, disk, each) for each in done]):
            continue
        contents = await asyncio.to_thread(read_files, folder, disk) if folder.is_dir() else ScopeHistory()
        if contents != ScopeHistory():
            count += await _store(history, scope, contents)
            await asyncio.to_thread(_remove_replaced, folder, disk)
    await history.mark_adopted()
    if count:
        log.info("memory.histories_adopted", scopes=len(scopes), with_history=count)
    return count


async def _store(history: SqlHistory, scope: str, contents: ScopeHistory) -> bool:
    """Store what the files of a scope have and the store lacks; return False if that is nothing."""
    while not await history.adopt(scope, contents):
        stored = await history.load(scope)
        both, missing = add_missing(stored, contents)
        if not missing or await history.replace({scope: both}, was={scope: stored}):
            return bool(missing)
    return True


def add_missing(before: ScopeHistory, files: ScopeHistory) -> tuple[ScopeHistory, int]:
    """Return *before* with all that it lacks of *files*, and the number of entries, raw messages and notes.

    Entries are compared by id, those without one by cursor and content. Nothing is replaced: an entry
    whose cursor is taken gets another one; of a note that has grown since, the longer text is taken.
    """
    known, offered = (set(map(_identity, each.entries)) for each in (before, files))
    new = [raw for raw in files.entries if _identity(raw) not in known]
    taken = set(map(cursor_of, before.entries))
    last = max(before.cursor, files.cursor)
    entries = [*before.entries]
    for raw in new:
        is_free = cursor_of(raw) not in taken
        last += not is_free
        entries.append(raw if is_free else encode({**(decode(raw) or {}), "cursor": last}))
    raws = [raw for raw in files.raws if raw not in before.raws]
    notes, missing = dict(before.notes), len(new) + len(raws)
    for name, note in files.notes.items():
        there = notes.get(name, StoredNote(body=b""))
        if not there.body.startswith(note.body):
            notes[name if note.body.startswith(there.body) else free_name(name, notes)] = note
            missing += 1
    has_all = known <= offered  # an older store: what Dream has processed since is in the documents
    both = ScopeHistory(
        entries=tuple(sorted(entries, key=cursor_of)),
        raws=(*before.raws, *raws),
        notes=notes,
        marks={kind: {**files.marks.get(kind, {}), **before.marks.get(kind, {})} for kind in MarkKind},
        cursor=last,
        dream_cursor=max(before.dream_cursor, files.dream_cursor if has_all else 0),
    )
    return both, missing


def _identity(raw: bytes) -> tuple[str, int, bytes]:
    entry = read_entry(raw)
    if entry is not None and entry.entry:
        return entry.entry, 0, b""
    return "", cursor_of(raw), raw


def _is_merged(home: Path, disk: Disk, move: ScopeMove) -> bool:
    return disk.load(scope_folder(home, move.target) / "memory" / _MOVED) == move.id.encode()


def _remove_replaced(folder: Path, disk: Disk) -> None:
    for path in sorted(folder.glob(REPLACED)):
        disk.remove(path)
