"""Transcripts and files of a scope, carried to another one. Blocks; nobody else may be at work in the scopes meanwhile.

Every step may be done twice.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from agent.memory.scopes import quote, scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.segments import SegmentChain, archive_path
from agent.memory.storage.transcript_lines import FORGOTTEN, decode, encode, kind_of, parse_time
from gateway.ports import Line, ScopeMove

_CONTENTS = ("sessions", "attachments", "files")
# Made anew when they are missed; an export that was being packed is asked for again.
_DERIVED = ("blobs", "exports", "index.db", "index.db-wal", "index.db-shm", "index.db-journal")
_MEMORY = ("memory", ".memory-new", ".memory-old")
_TOP = ("USER.md", "SOUL.md")
_HEAD_BYTES = 4096
_DIGEST = re.compile(rb"\b[0-9a-f]{64}\b")
# What a user's line keeps of a time in which two were one; what was recalled for it is not the user's.
_OWN = frozenset(
    {"kind", "i", "turn", "role", "content", "timestamp", "by", "mid", "head", "indented", "origin", "tokens", "files"}
    | {"quoted"}
)
_SPARE = ("by", "origin", "tokens", "model", "head")  # makes room where a text was shorter than `[forgotten]`


def merge_scope_files(home: Path, disk: Disk, move: ScopeMove) -> None:
    """Give everything of *move.source* but its memory to *move.target*, and take what is left of it away."""
    source, target = scope_folder(home, move.source), scope_folder(home, move.target)
    end_conversations(source, disk, move)
    for name in _CONTENTS:
        for path in _tree(source / name):
            _give(disk, path, target / path.relative_to(source))
    for name in (*_DERIVED, *_MEMORY, *_CONTENTS, *(_TOP if move.source else ("USER.md",))):
        _drop(source / name)
    if move.source and source.is_dir():  # what somebody else keeps there; the home itself is not ours to clear
        for path in _tree(source):
            _give(disk, path, target / path.relative_to(source))
        shutil.rmtree(source)
        disk.sync_folder(source.parent)


def split_scope_files(home: Path, disk: Disk, move: ScopeMove, account_of: Callable[[str], str]) -> None:
    """Give the chats of *move.identity* to *move.target*; what was answered while the two were one is in neither."""
    source, target = scope_folder(home, move.source), scope_folder(home, move.target)
    end_conversations(source, disk, move)
    for folder in (source, target):
        for path in sorted((folder / "sessions").glob("*.jsonl")):
            clear_answers(path, disk, move.since)
    going = {
        path.name: path
        for path in sorted((source / "sessions").glob("*.jsonl"))
        if account_of(key_of(path, disk)) == move.identity
    }
    for path in sorted((source / "sessions").glob("*.corrupt")):
        if path.name.removesuffix(".corrupt") in {*going, *(f"{quote(key)}.jsonl" for key in move.keys)}:
            going[path.name] = path
    for name, path in going.items():
        _give(disk, path, target / "sessions" / name)
    theirs, ours = _named(target / "sessions", disk), _named(source / "sessions", disk)
    for digest in sorted(theirs):
        path = source / "attachments" / digest
        if path.exists():
            if digest in ours:
                disk.replace(target / "attachments" / digest, disk.load(path) or b"")
            else:
                _give(disk, path, target / "attachments" / digest)
    for name in _DERIVED:
        _drop(source / name)


def end_conversations(folder: Path, disk: Disk, move: ScopeMove) -> None:
    """Put the transcripts that go no further into the archive, as /new does."""
    turn = "t" + base64.b32encode(hashlib.sha256(move.id.encode()).digest()[:10]).decode().lower()
    for key, transcript in move.ended:
        path = folder / "sessions" / f"{quote(key)}.jsonl"
        if disk.size(path) and SegmentChain(disk, path).transcript == transcript:
            disk.rename(path, archive_path(path, transcript, turn))


def oldest(folder: Path, disk: Disk) -> datetime | None:
    """Return when the first of a scope's conversations began; None when there is none."""
    heads = (_head(path, disk) for path in (folder / "sessions").glob("*.jsonl"))
    begun = [at for head in heads if (at := parse_time(head.get("created"))) is not None]
    return min(begun, default=None)


def key_of(path: Path, disk: Disk) -> str:
    """Return the session key in a transcript's head, or an empty string."""
    return str(_head(path, disk).get("key", ""))


def clear_answers(path: Path, disk: Disk, since: datetime | None) -> None:
    """Clear what was answered, looked up and noted from *since* on: it may tell of either. Lengths stay."""
    before = (disk.load(path) or b"").splitlines(keepends=True)
    after = [_cleared(raw, since) for raw in before]
    if after != before:
        disk.replace(path, b"".join(after))


def _cleared(raw: bytes, since: datetime | None) -> bytes:
    line = decode(raw)
    if line is None or since is None:
        return raw
    empty = _without_answer(line)
    at = parse_time(line.get("timestamp"))
    if empty is None or (at is not None and at < since):
        return raw
    for spare in _SPARE:
        if len(encode(empty)) > len(raw):
            empty.pop(spare, None)
    if len(encode(empty)) > len(raw):
        empty = {name: ("" if value == FORGOTTEN else value) for name, value in empty.items()}
    if empty == line:
        return raw
    data = encode(empty)[:-1]
    return data + b" " * max(len(raw) - 1 - len(data), 0) + b"\n"


def _without_answer(line: Line) -> dict[str, Any] | None:
    """Return a line as it may stay; None for one that holds nothing of anybody's memory."""
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
        return {name: value for name, value in line.items() if name in _OWN}
    kept = {name: value for name, value in line.items() if name in _OWN and name not in ("files", "quoted")}
    kept["content"] = FORGOTTEN if line.get("content") else ""
    if calls := line.get("tool_calls"):
        kept["tool_calls"] = [_without_arguments(call) for call in calls]
    return kept | {name: line[name] for name in ("tool_call_id", "name") if name in line}


def _without_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    return {**call, "function": {**function, "arguments": "{}"}} if isinstance(function, dict) else call


def _named(folder: Path, disk: Disk) -> set[str]:
    """Return what could be digests of files in a folder's transcripts."""
    found: set[str] = set()
    for path in folder.glob("*.jsonl"):
        found |= {each.decode() for each in _DIGEST.findall(disk.load(path) or b"")}
    return found


def _head(path: Path, disk: Disk) -> Line:
    head = decode(disk.read(path, 0, _HEAD_BYTES).split(b"\n", 1)[0])
    return head if head is not None and kind_of(head) == "head" else {}


def _tree(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def _give(disk: Disk, path: Path, wanted: Path) -> None:
    """Put a file where it belongs; one that is there already and says something else keeps its name."""
    disk.make_folder(wanted.parent)
    n = 2
    place = wanted
    while place.exists():
        if disk.load(place) == disk.load(path):
            disk.remove(path)
            return
        place = wanted.with_name(f"{wanted.name}.{n}")
        n += 1
    path.rename(place)
    for folder in (place.parent, path.parent):
        disk.sync_folder(folder)


def _drop(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
