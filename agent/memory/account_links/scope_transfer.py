"""Move the files of a memory scope to another one; take answers out of conversations that are separated.

Everything is idempotent; plain functions block. The caller holds the exclusive locks of both scopes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from agent.memory.scopes import quote, scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import FORGOTTEN, decode, encode, kind_of, parse_time, without_arguments
from gateway.ports import FileKind, FileStore, Line, ScopeMove, TranscriptStore

_CONTENTS = ("sessions", "files")
# Rebuilt when they are needed; an interrupted export must be requested again.
_DERIVED = ("exports", "index.db", "index.db-wal", "index.db-shm", "index.db-journal")
_MEMORY = ("memory", ".memory-new", ".memory-old")
_TOP = ("USER.md", "SOUL.md")
_DIGEST = re.compile(rb"\b[0-9a-f]{64}\b")
# Fields that a user's line keeps after unlinking; recalled memory, for example, is not the user's own.
_USER_FIELDS = frozenset(
    {"kind", "i", "turn", "role", "content", "timestamp", "by", "mid", "head", "indented", "origin", "tokens", "files"}
    | {"quoted"}
)


def merge_scope_files(home: Path, disk: Disk, move: ScopeMove) -> None:
    """Move everything except the memory from *move.source* to *move.target*, and remove the source folder."""
    source, target = scope_folder(home, move.source), scope_folder(home, move.target)
    for name in _CONTENTS:
        for path in _tree(source / name):
            if name == "sessions" and path.suffix == ".jsonl":
                disk.remove(path)  # the turns are in *target*, where the mirror writes them
                continue
            _move_file(disk, path, target / path.relative_to(source))
    for name in (*_DERIVED, *_MEMORY, *_CONTENTS, *(_TOP if move.source else ("USER.md",))):
        _delete(source / name)
    if move.source and source.is_dir():  # other files in the scope's folder; those in the home itself stay
        for path in _tree(source):
            _move_file(disk, path, target / path.relative_to(source))
        shutil.rmtree(source)
        disk.sync_folder(source.parent)


def split_scope_files(home: Path, disk: Disk, move: ScopeMove) -> None:
    """Move the corrupt lines of the conversations of *move.account*, which are in *move.target*."""
    source, target = scope_folder(home, move.source), scope_folder(home, move.target)
    names = {f"{quote(key)}.jsonl" for key in move.keys}
    for path in sorted((source / "sessions").glob("*.corrupt")):
        if path.name.removesuffix(".corrupt") in names:
            _move_file(disk, path, target / "sessions" / path.name)
    for name in _DERIVED:
        _delete(source / name)


async def split_stored_files(
    files: FileStore, move: ScopeMove, needed: Collection[str], staying: Collection[str]
) -> None:
    """Move the attachments that conversations of *move.account* name, by digest, and copy those of both sides.

    *needed* are the digests that lines of *move.target* name, and *staying* those that lines of *move.source* name.
    Texts of prompts and results of tools are removed: they may have data of either account. Idempotent.
    """
    for file in await files.files(move.source, FileKind.ATTACHMENT):
        if file.name in needed and file.name not in staying:
            await files.move(move.source, move.target, {file: file.name})
        elif file.name in needed and (data := await files.load(move.source, file)) is not None:
            await files.put(move.target, FileKind.ATTACHMENT, data, at=file.at)
    await files.remove(move.source, FileKind.TEXT, FileKind.RESULT)


def blank_answer(raw: bytes, since: datetime | None) -> bytes:
    """Return an answer, a tool call or a memory change from *since* on without its words; any other line unchanged.

    It may contain data of either account.
    """
    line = decode(raw)
    if line is None or since is None:
        return raw
    blank = _remove_answer(line)
    at = parse_time(line.get("timestamp"))
    if blank is None or blank == line or (at is not None and at < since):
        return raw
    return encode(blank)


def _remove_answer(line: Line) -> dict[str, Any] | None:
    """Return *line* without what may come from the memory; None for a line that has no such content."""
    kind = kind_of(line)
    if kind == "delta":
        return {**line, "text": "", "added": [], "removed": []}
    if kind == "command":
        return {**line, "reply": FORGOTTEN if line.get("reply") else ""}
    if kind == "notice":
        return {**line, "content": FORGOTTEN if line.get("content") else ""}
    if kind != "message":
        return None
    if line.get("role") == "user":
        return {name: value for name, value in line.items() if name in _USER_FIELDS}
    fields = _USER_FIELDS - {"files", "quoted"}
    blank = {name: value for name, value in line.items() if name in fields}
    blank["content"] = FORGOTTEN if line.get("content") else ""
    if calls := line.get("tool_calls"):
        blank["tool_calls"] = [without_arguments(call) for call in calls]
    return blank | {name: line[name] for name in ("tool_call_id", "name") if name in line}


async def find_digests(scope: str, transcripts: TranscriptStore) -> Collection[str]:
    """Return the sha256 digests in the lines of *scope*, which may be those of files."""
    digests: set[str] = set()
    after: tuple[str, int] | None = None
    while turns := await transcripts.scan(scope, after=after):
        digests |= {each.decode() for turn in turns for each in _DIGEST.findall(turn.body)}
        after = (str(turns[-1].key), turns[-1].seq)
    return digests


def _tree(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def _move_file(disk: Disk, path: Path, target: Path) -> None:
    """Move a file to *target*, or to a numbered name if another file is there; drop it if that file is equal."""
    disk.make_folder(target.parent)
    n = 2
    free = target
    while free.exists():
        if disk.load(free) == disk.load(path):
            disk.remove(path)
            return
        free = target.with_name(f"{target.name}.{n}")
        n += 1
    path.rename(free)
    for folder in (free.parent, path.parent):
        disk.sync_folder(folder)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
