"""Find what has changed in the folders of scopes since the database last had their files. Blocks; call it in a thread.

Looked at are the files that were noted as written, and the documents that people edit; or all of a scope
(docs/adr/0120-writes-are-noted.md).
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
from agent.memory.storage.scope_scan import (
    BY_HAND,
    DOCUMENTS,
    SESSIONS,
    WORKSPACE,
    CachedFile,
    FileSignature,
    is_immutable,
    may_grow,
    scan_noted,
    scan_scope,
    select_noted,
    unit_of,
)
from agent.memory.storage.written_files import WrittenFiles
from gateway.errors import StoreUnavailable
from gateway.ports.documents import is_mirrored
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
    is_unsure: bool = False  # all of its files are to be looked at
    with_sessions: bool = False  # files of conversations count, as in an earlier release
    with_documents: bool = False  # those of documents, too


class LocalChange(NamedTuple):
    """A change to store, and the files that are the same here and there afterwards."""

    change: ScopeChange
    after: Mapping[str, CachedFile]  # the new and changed files


class LocalFiles(NamedTuple):
    """The files of a scope that were looked at."""

    actual: Mapping[str, FileSignature]  # that are here
    changed: Mapping[str, FileSignature]  # the new and changed ones of these
    gone: Collection[str]


class _TornFile(Exception):
    """A file has changed while it was read."""


def look_at_files(home: Path, copy: KnownScope, notes: Collection[str], *, trusts_branch: bool = True) -> LocalFiles:
    """Look at the files of a scope that *notes* name, and at documents; at all of its files if it is unsure.

    With *trusts_branch*, objects of a git repository are taken as known while its branch is.
    """
    folder, known, is_home = scope_folder(home, copy.scope), copy.files, not copy.scope
    if copy.is_unsure or "" in notes:
        actual = scan_scope(folder, known if trusts_branch else {}, is_home=is_home)
        among: Collection[str] = known.keys()
    else:
        named = {*notes, *BY_HAND}
        actual = scan_noted(folder, known, named, is_home=is_home)
        among = select_noted(known, named)
    if not copy.with_sessions:
        actual = {path: signature for path, signature in actual.items() if not path.startswith(SESSIONS)}
    if not copy.with_documents:
        actual = {path: signature for path, signature in actual.items() if not is_mirrored(path)}
    changed = {
        path: signature
        for path, signature in actual.items()
        if (cached := known.get(path)) is None or cached.signature != signature
    }
    return LocalFiles(actual, changed, {path for path in among if path not in actual})


def find_changes(
    home: Path, scopes: Sequence[KnownScope], writes: WrittenFiles
) -> tuple[dict[str, LocalChange], int | None]:
    """Return the changes of each scope, as of one moment, and the count of writes then; None if that is not all.

    Raises StoreUnavailable if the files keep changing.
    """
    until = time.monotonic() + _SECONDS_TO_REST
    while True:
        count = writes.count()
        before = {each.scope: look_at_files(home, each, writes.notes(each.scope)) for each in scopes}
        changed = {scope: list(files.changed) for scope, files in before.items()}
        is_rest = _select({scope: files.changed for scope, files in before.items()}, changed)
        found: dict[str, LocalChange] = {}
        with contextlib.suppress(FileNotFoundError, _TornFile):
            for each in scopes:
                files = before[each.scope]
                if changed[each.scope] or (is_rest and files.gone):
                    gone = files.gone if is_rest else ()
                    found[each.scope] = _read_change(home, each, files.changed, changed[each.scope], gone)
            # Without this, a file could be stored without the one that was written before it.
            if not found or all(
                _is_same(before[each.scope], look_at_files(home, each, writes.notes(each.scope))) for each in scopes
            ):
                return found, count if is_rest else None
        if time.monotonic() > until:
            raise StoreUnavailable("the files of the memory keep changing")
        time.sleep(0.002)  # in a thread; writing a file takes about as long


def _is_same(before: LocalFiles, now: LocalFiles) -> bool:
    return before.changed == now.changed and before.gone == now.gone


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
