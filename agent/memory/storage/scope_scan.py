"""List the files of a scope's folder that are stored, by size, time and inode. Blocks.

Our files are replaced by a rename or grow, so that a file with the same three has the same content.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

WORKSPACE, SESSIONS = "files", "sessions/"
BY_HAND = ("SOUL.md", "USER.md", "memory/MEMORY.md")  # which people edit while the gateway runs
_INDEX = ("index.db", "index.db-wal", "index.db-shm", "index.db-journal")
# With `memory.isolation: shared`, the home is a scope among other things.
_IN_THE_HOME = frozenset(
    {"memory", ".memory-new", ".memory-old", "sessions", "attachments", "blobs", "results", "exports", WORKSPACE}
    | {"USER.md", "SOUL.md"}
)
# Files in these mean something on their own; all others, the documents with their versions, do so only together.
_INDEPENDENT = ("sessions", "attachments", "blobs", "results", "exports", WORKSPACE)
# Printed from the rows of the history, or replaced by them (agent/memory/history/history_files.py).
_IN_ROWS = re.compile(
    r"memory/(?:history\.jsonl|HISTORY\.md|raw\.jsonl|\.(?:cursor|dream_cursor|keys\.json|used\.json|flushed\.json)"
    r"|\.mirror(?:/.*)?|\d{4}-\d\d-\d\d(?:-[a-z0-9-]{1,60}|\.archive)?\.md)\Z"
)
DOCUMENTS = "memory"
_NEWEST = "refs/heads/main"
_IMMUTABLE = ("attachments/", "blobs/")


class FileSignature(NamedTuple):
    """Size, time and inode of a file: one of them changes with its content."""

    size: int  # bytes
    modified: int  # nanoseconds since 1970
    inode: int


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file that is the same here and in the database."""

    signature: FileSignature
    replaced: str  # as `StoredFile` has it
    tail: int = 0  # checksum of its last bytes, if it may grow


def scan_scope(folder: Path, cached: Mapping[str, CachedFile], *, is_home: bool = False) -> dict[str, FileSignature]:
    """Return the stored files of a scope by their path in it; {} without a folder.

    The search index, locks and unfinished files are not stored. Objects of a git repository are listed when its branch
    is not the one that is *cached*: without that, nothing refers to new ones.
    """
    return dict(_scan(str(folder), "", cached, is_home=is_home))


def scan_noted(
    folder: Path, cached: Mapping[str, CachedFile], notes: Collection[str], *, is_home: bool = False
) -> dict[str, FileSignature]:
    """Return the stored files that *notes* name, as `WrittenFiles` has them, and look at no others."""
    found: dict[str, FileSignature] = {}
    for note in notes:
        names = note.strip("/").split("/")
        if any(_is_left_out(note, name) for name in names) or (is_home and names[0] not in _IN_THE_HOME):
            continue
        if note.endswith("/"):
            found |= _scan(str(folder / note), note, cached)
        elif (signature := _sign_file(folder / note)) is not None:
            found[note] = signature
    return found


def select_noted(paths: Collection[str], notes: Collection[str]) -> set[str]:
    """Return those of *paths* that *notes* name."""
    trees = tuple(note for note in notes if note.endswith("/"))
    found = {note for note in notes if note in paths}
    return found | {path for path in paths if path.startswith(trees)} if trees else found


def unit_of(path: str) -> str:
    """Return the name of the files that mean something only together: a transcript, a file, or all `DOCUMENTS`."""
    return path if path.startswith(tuple(f"{name}/" for name in _INDEPENDENT)) else DOCUMENTS


def _sign_file(path: Path) -> FileSignature | None:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _signature(status) if stat.S_ISREG(status.st_mode) else None


def _scan(
    folder: str,
    prefix: str,
    cached: Mapping[str, CachedFile],
    *,
    is_home: bool = False,
) -> Iterator[tuple[str, FileSignature]]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        path = prefix + entry.name
        if _is_left_out(path, entry.name) or (is_home and entry.name not in _IN_THE_HOME):
            continue
        try:
            if entry.is_dir(follow_symlinks=False):
                if entry.name == ".git" and not path.startswith(f"{WORKSPACE}/"):
                    yield from _scan_repository(entry.path, f"{path}/", cached)
                else:
                    yield from _scan(entry.path, f"{path}/", cached)
            elif entry.is_file(follow_symlinks=False):
                yield path, _signature(entry.stat(follow_symlinks=False))
        except FileNotFoundError:  # removed in the meantime
            continue


def _scan_repository(folder: str, prefix: str, cached: Mapping[str, CachedFile]) -> Iterator[tuple[str, FileSignature]]:
    # The branch first: the objects that it refers to are there before it.
    try:
        newest = _signature(Path(folder, _NEWEST).stat())
    except FileNotFoundError:
        newest = None
    objects = f"{prefix}objects/"
    branch = cached.get(prefix + _NEWEST)
    is_known = branch is not None and branch.signature == newest
    for entry in os.scandir(folder):
        if is_known and entry.name == "objects":
            yield from ((path, each.signature) for path, each in cached.items() if path.startswith(objects))
        elif entry.is_dir(follow_symlinks=False):
            yield from _scan(entry.path, f"{prefix}{entry.name}/", cached)
        elif entry.is_file(follow_symlinks=False) and not entry.name.endswith(".lock"):
            yield prefix + entry.name, _signature(entry.stat(follow_symlinks=False))


def _signature(status: os.stat_result) -> FileSignature:
    return FileSignature(status.st_size, status.st_mtime_ns, status.st_ino)


def _is_left_out(path: str, name: str) -> bool:
    if path.startswith(f"{WORKSPACE}/"):
        return False
    if _IN_ROWS.match(path):
        return True
    return path in _INDEX or name == ".lock" or name.endswith(".lock") or (name[0] == "." and name.endswith(".tmp"))


def is_immutable(path: str) -> bool:
    """Return True if the file's name is the hash of its content."""
    return path.startswith(_IMMUTABLE) or "/.git/objects/" in path


def may_grow(path: str) -> bool:
    """Return True for a file that we append to; every other changed file is stored as a whole."""
    return path.endswith(".jsonl") and not path.startswith(f"{WORKSPACE}/")
