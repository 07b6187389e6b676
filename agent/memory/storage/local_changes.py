"""Find what has changed in the folders of scopes since the database last had their files. Blocks; call it in a thread.

Nothing marks what it writes: changes are found by looking (docs/adr/0083-memory-in-the-database.md).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agent.memory.scopes import scope_folder
from agent.memory.storage.cached_scopes import CachedFile
from agent.memory.storage.scope_scan import (
    DOCUMENTS,
    WORKSPACE,
    FileSignature,
    is_immutable,
    may_grow,
    scan_scope,
    scan_units,
    unit_of,
)
from gateway.errors import StoreUnavailable
from gateway.ports.scope_files import ScopeChange, StoredFile, StoredFileChange

_AT_ONCE = 32 * 1024 * 1024  # bytes of one transaction, if the scope's own order allows to store it in several
_TAIL = 1024
_SECONDS_TO_REST = 10.0  # in which the files of a scope must stay the same for as long as reading them takes
_FIRST = (f"{WORKSPACE}/", "attachments/", "blobs/", "exports/", "results/", "memory/.git/objects/")


@dataclass(slots=True)
class KnownScope:
    """A scope of this home as the database had it."""

    scope: str
    version: str
    files: dict[str, CachedFile]  # those that both had, by path


class LocalChange(NamedTuple):
    """A change to store, and the files that are the same here and there afterwards."""

    change: ScopeChange
    after: Mapping[str, CachedFile]  # the new and changed files


class _TornFile(Exception):
    """A file has changed while it was read."""


def scan_local(home: Path, copy: KnownScope, paths: Collection[str] | None = None) -> dict[str, FileSignature]:
    """Return the files of a scope that are here; those that mean something only with one of *paths*, if given."""
    folder, signatures = scope_folder(home, copy.scope), {path: each.signature for path, each in copy.files.items()}
    if paths is None:
        return scan_scope(folder, signatures, is_home=not copy.scope)
    return scan_units(folder, signatures, paths, is_home=not copy.scope)


def changed_paths(copy: KnownScope, actual: Mapping[str, FileSignature]) -> list[str]:
    """Return the new and changed files."""
    return [
        path
        for path, signature in actual.items()
        if (cached := copy.files.get(path)) is None or cached.signature != signature
    ]


def find_changes(home: Path, scopes: Sequence[KnownScope]) -> tuple[dict[str, LocalChange], bool]:
    """Return the changes of each scope, as of one moment, and True if that is all of them.

    Raises StoreUnavailable if the files keep changing.
    """
    until = time.monotonic() + _SECONDS_TO_REST
    while True:
        before = {each.scope: scan_local(home, each) for each in scopes}
        changed = {each.scope: changed_paths(each, before[each.scope]) for each in scopes}
        removed = {each.scope: each.files.keys() - before[each.scope].keys() for each in scopes}
        is_rest = _select(before, changed)
        found: dict[str, LocalChange] = {}
        with contextlib.suppress(FileNotFoundError, _TornFile):
            for each in scopes:
                if changed[each.scope] or (is_rest and removed[each.scope]):
                    gone = removed[each.scope] if is_rest else ()
                    found[each.scope] = _read_change(home, each, before[each.scope], changed[each.scope], gone)
            # Without this, a file could be stored without the one that was written before it.
            if not found or all(scan_local(home, each) == before[each.scope] for each in scopes):
                return found, is_rest
        if time.monotonic() > until:
            raise StoreUnavailable("the files of the memory keep changing")
        time.sleep(0.002)  # in a thread; writing a file takes about as long


def tail_of(path: Path, size: int) -> int:
    """Return the checksum of the last bytes before *size* ."""
    start = max(size - _TAIL, 0)
    return zlib.crc32(_read_exactly(path, start, size - start))


def _select(actual: Mapping[str, Mapping[str, FileSignature]], changed: dict[str, list[str]]) -> bool:
    """Leave what one transaction takes of *changed*; return True if that is all.

    Only files that others refer to are stored before the rest: without these others they mean nothing.
    """
    total = sum(actual[scope][path].size for scope, paths in changed.items() for path in paths)
    if total <= _AT_ONCE:
        return True
    room, has_first = _AT_ONCE, False
    selected: dict[str, list[str]] = {scope: [] for scope in changed}
    for scope, paths in changed.items():
        for path in paths:
            size = actual[scope][path].size
            if path.startswith(_FIRST) and (size <= room or not has_first):
                selected[scope].append(path)
                room, has_first = room - size, True
    if has_first:
        changed.update(selected)
    return not has_first


def _read_change(
    home: Path,
    copy: KnownScope,
    actual: Mapping[str, FileSignature],
    paths: Iterable[str],
    removed: Collection[str],
) -> LocalChange:
    folder = scope_folder(home, copy.scope)
    version = secrets.token_hex(8)
    changes: list[StoredFileChange] = []
    after: dict[str, CachedFile] = {}
    for path in paths:
        signature, cached = actual[path], copy.files.get(path)
        start = _grown_from(folder / path, cached, signature)
        is_same = cached is not None and is_immutable(path) and cached.signature.size == signature.size
        data = None if is_same else _read_exactly(folder / path, start, signature.size - start)
        replaced = cached.replaced if cached is not None and (is_same or start > 0) else version
        after[path] = CachedFile(signature, replaced, tail_of(folder / path, signature.size) if may_grow(path) else 0)
        stored = StoredFile(path=path, size=signature.size, replaced=replaced, modified=signature.modified)
        is_standalone = unit_of(path) != DOCUMENTS and not may_grow(path)
        changes.append(StoredFileChange(file=stored, start=start, data=data, is_standalone=is_standalone))
    change = ScopeChange(scope=copy.scope, was=copy.version, version=version, changes=changes, removed=tuple(removed))
    return LocalChange(change, after)


def _grown_from(path: Path, cached: CachedFile | None, signature: FileSignature) -> int:
    """Return the size that the file had before something was appended to it; 0 if it is another file."""
    if cached is None or not may_grow(str(path)):
        return 0
    is_longer = cached.signature.inode == signature.inode and 0 < cached.signature.size < signature.size
    return cached.signature.size if is_longer and tail_of(path, cached.signature.size) == cached.tail else 0


def _read_exactly(path: Path, start: int, length: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        pieces = []
        while length > 0:
            piece = os.pread(fd, length, start)
            if not piece:
                raise _TornFile
            pieces.append(piece)
            start, length = start + len(piece), length - len(piece)
    finally:
        os.close(fd)
    return b"".join(pieces)
