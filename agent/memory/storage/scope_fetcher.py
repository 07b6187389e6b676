"""Fetch files of a scope from the database into the home's folder of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import FILE_MODE, FOLDER_MODE
from agent.memory.storage.local_changes import tail_of
from agent.memory.storage.scope_scan import CachedFile, FileSignature, may_grow
from gateway.errors import StoreUnavailable
from gateway.ports.scope_files import ScopeFileStore, StoredFile

_SMALL, _TOGETHER = 1024 * 1024, 4 * 1024 * 1024  # bytes: files that are fetched together


class FetchInterrupted(StoreUnavailable):
    """The pieces of a file are not what its row says: it was changed after it was listed. List again."""


class ScopeFetcher:
    """Makes files of one home those of the database."""

    def __init__(self, home: Path, store: ScopeFileStore) -> None:
        self._home = home
        self._store = store

    async def fetch(
        self, scope: str, files: Sequence[StoredFile], starts: Mapping[str, int]
    ) -> Mapping[str, CachedFile]:
        """Fetch each of *files* from the byte in *starts* on, up to which the home has it; return their entries.

        Raises FetchInterrupted, StoreUnavailable; files may have been replaced until then.
        """
        folder = scope_folder(self._home, scope)
        missing = [each for each in files if starts[each.path] < max(each.size, 1)]
        for batch in _batches([each for each in missing if starts[each.path] == 0 and _is_small(each)]):
            contents = await self._store.read_small(scope, batch)
            await asyncio.to_thread(_write_files, folder, batch, contents)
        for each in missing:
            if not _is_small(each) or starts[each.path] > 0:
                await self._fetch_large(scope, each, starts[each.path])
        return await asyncio.to_thread(_finish_files, folder, files)

    async def _fetch_large(self, scope: str, file: StoredFile, start: int) -> None:
        """Fetch a file piece by piece, or the end of one that has grown."""
        path = _path_in(scope_folder(self._home, scope), file.path)
        beside = path if start else _path_beside(path)
        await asyncio.to_thread(_prepare, beside, start)
        size = start
        async for data in self._store.read(scope, file, start):
            await asyncio.to_thread(_append, beside, data)
            size += len(data)
        if size != file.size:
            raise _interrupted(scope, file)
        if beside != path:
            await asyncio.to_thread(beside.replace, path)


def remove_files(folder: Path, paths: Iterable[str]) -> None:
    """Remove files of a scope's *folder*, and folders that are empty then. Blocks."""
    for path in paths:
        file = _path_in(folder, path)
        file.unlink(missing_ok=True)
        for each in file.parents:
            if each == folder:
                break
            with contextlib.suppress(OSError):  # others are in it, or it has gone
                each.rmdir()


def _is_small(file: StoredFile) -> bool:
    return file.size <= _SMALL and not file.object


def _interrupted(scope: str, file: StoredFile) -> FetchInterrupted:
    return FetchInterrupted(f"the database has not all of the file {file.path} of {scope}")


def _batches(files: Sequence[StoredFile]) -> Iterable[Sequence[StoredFile]]:
    batch: list[StoredFile] = []
    size = 0
    for each in files:
        if batch and size + each.size > _TOGETHER:
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += each.size
    if batch:
        yield batch


def _write_files(folder: Path, files: Sequence[StoredFile], contents: Mapping[str, bytes]) -> None:
    for each in files:
        data = contents[each.path]
        if len(data) != each.size:
            raise _interrupted(folder.name, each)
        path = _path_in(folder, each.path)
        beside = _path_beside(path)
        _prepare(beside, 0)
        _append(beside, data)
        beside.replace(path)


def _path_in(folder: Path, path: str) -> Path:
    """Return the path of a stored file; it never leads out of *folder*."""
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"not a file of a scope: {path!r}")
    return folder / path


def _path_beside(path: Path) -> Path:
    return path.with_name(f".{path.name[:100]}.fetched.tmp")


def _prepare(path: Path, size: int) -> None:
    """Make the file, its folders private; keep *size* bytes of it."""
    made = [each for each in (path.parent, *path.parent.parents) if not each.exists()]
    for each in reversed(made):
        with contextlib.suppress(FileExistsError):
            each.mkdir(mode=FOLDER_MODE)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def _finish_files(folder: Path, files: Sequence[StoredFile]) -> dict[str, CachedFile]:
    """Give the files their times, which retention goes by; return them as they are now."""
    found = {}
    for each in files:
        path = _path_in(folder, each.path)
        os.utime(path, ns=(each.modified, each.modified))
        stat = path.stat()
        tail = tail_of(path, each.size) if may_grow(each.path) else 0
        found[each.path] = CachedFile(FileSignature(stat.st_size, stat.st_mtime_ns, stat.st_ino), each.replaced, tail)
    return found
