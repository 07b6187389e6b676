"""Write the files that an earlier release kept in a database into a home, once, where they are taken over from.

The database had the truth, and a home a copy of it. Other files of the home are removed, so that nothing erased
comes back. After a kill it continues with the files that are missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import structlog

from agent.memory.scopes import list_scopes, scope_folder
from agent.memory.storage.disk import FILE_MODE, Disk
from gateway.errors import ObjectDamaged, UserError
from gateway.ports.memory import CACHE, EarlierFile, is_mirrored

if TYPE_CHECKING:
    from gateway.store.earlier_files import SqlEarlierFiles
    from gateway.store.objects import ObjectStore


log = structlog.get_logger(__name__)

FILES = ("attachments", "blobs", "results", "files")  # folders that have no documents, conversations or history
_FOLDERS = (*FILES, "sessions", "memory")
_DOCUMENTS = ("SOUL.md", "USER.md")
_REPORT_EVERY = 50  # scopes
_PART = ".fetched.tmp"
_ADOPTING = "adopting"  # the home with the id has more than the database


def build_filter(*, documents: bool, conversations: bool, history: bool, files: bool) -> Callable[[str], bool]:
    """Return a predicate for the paths of files that are still to be taken over."""

    def is_wanted(path: str) -> bool:
        if path.startswith(tuple(f"{name}/" for name in FILES)):
            return files
        if path.startswith("sessions/"):
            return conversations
        return documents if is_mirrored(path) else history and path.startswith("memory/")

    return is_wanted


async def fetch_earlier_files(
    home: Path,
    store: SqlEarlierFiles,
    objects: ObjectStore | None,
    *,
    is_wanted: Callable[[str], bool],
    is_one: bool,
) -> int:
    """Make the files of every scope that *is_wanted* takes by their path those of *store*; return their number.

    *is_one*: the home itself is the scope. Raises UserError for a home with other memory, OSError, StoreUnavailable.
    """
    if not await store.exists():
        return 0
    local = await asyncio.to_thread(_list_local, home, is_one=is_one)
    if not await _has_more(home, local, store):
        return 0
    scopes = [each for each in sorted({*await store.scopes(), *local}) if each or is_one]
    count = 0
    for n, scope in enumerate(scopes, start=1):
        files = {each.path: each for each in await store.files(scope) if is_wanted(each.path)}
        count += await _fetch_scope(scope_folder(home, scope), scope, files, store, objects, is_wanted)
        if not n % _REPORT_EVERY:
            log.info("memory.fetching", scopes=n, of=len(scopes), files=count)
    if count:
        log.info("memory.fetched", scopes=len(scopes), files=count)
    return count


async def _has_more(home: Path, local: Sequence[str], store: SqlEarlierFiles) -> bool:
    """Return False if the home has all that the database may have. Raises UserError if it is another one's home."""
    state, has_turns = await store.state()
    kind, _, id_ = state.partition(":")
    if not kind:
        if has_turns and not local:
            raise UserError(
                f"the database has conversations, but no memory yet, and {home} has none: it is in the home of the"
                " machine where the gateway ran before. Start it there once, which stores it"
            )
        return False
    if await asyncio.to_thread(_read_id, home) != id_:
        if kind == _ADOPTING:
            raise UserError("the memory is being stored from another home: start the gateway there once more")
        if local:
            raise UserError(
                f"{home} has memory that is not the database's ({local[0]}, …): move its folders people, chats and"
                " shared away, or set PARLOUR_HOME to another directory"
            )
        await asyncio.to_thread(_note_id, home, id_)  # a start that is killed has left files
    return kind != _ADOPTING


async def drop_earlier_files(home: Path, store: SqlEarlierFiles) -> None:
    """Drop the files of *store*, which were taken over. If another gateway has done that, remove the home's copies."""
    if await store.exists():
        await store.drop()
        await asyncio.to_thread(_remove_copies, home, is_taken_over=True)
    else:
        await asyncio.to_thread(_remove_copies, home, is_taken_over=False)


def _remove_copies(home: Path, *, is_taken_over: bool) -> None:
    disk, cache = Disk(), list(home.glob(f"{CACHE}*"))
    if cache and not is_taken_over:
        for folder in [scope_folder(home, scope) / name for scope in ("", *list_scopes(home)) for name in FILES]:
            if folder.is_dir():
                disk.remove_folder(folder)
    for path in cache:
        path.unlink()


async def _fetch_scope(
    folder: Path,
    scope: str,
    files: Mapping[str, EarlierFile],
    store: SqlEarlierFiles,
    objects: ObjectStore | None,
    is_wanted: Callable[[str], bool],
) -> int:
    missing = await asyncio.to_thread(_remove_others, folder, files, is_wanted)
    for path in missing:
        pieces = _read_object(scope, files[path], objects) if files[path].object else store.read(scope, files[path])
        await _write(_path_in(folder, path), files[path], pieces)
    if missing:
        await asyncio.to_thread(_set_times, folder, [files[path] for path in missing])
    return len(missing)


def _remove_others(folder: Path, files: Mapping[str, EarlierFile], is_wanted: Callable[[str], bool]) -> Sequence[str]:
    """Remove the files that *files* does not have; return those of *files* that are missing or others."""
    same: set[str] = set()
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        stored, status = files.get(name), path.lstat()
        if stored is not None and (status.st_size, status.st_mtime_ns) == (stored.size, stored.modified):
            same.add(name)
        elif stored is None and is_wanted(name):
            path.unlink()
    return [path for path in files if path not in same]


def _walk(folder: Path) -> Iterable[Path]:
    yield from (path for name in _DOCUMENTS if (path := folder / name).is_file())
    for name in _FOLDERS:
        yield from [path for path in (folder / name).rglob("*") if path.is_symlink() or path.is_file()]


async def _write(path: Path, file: EarlierFile, pieces: AsyncIterator[bytes]) -> None:
    beside = path.with_name(f".{path.name[:100]}{_PART}")
    await asyncio.to_thread(_begin, beside)
    size = 0
    async for data in pieces:
        await asyncio.to_thread(_append, beside, data)
        size += len(data)
    if size < file.size:
        raise UserError(
            f"the database has {size:,} of the {file.size:,} bytes of {path}: restore a dump that has all of it, or"
            " remove the file with `parlour store repair` of the release before"
        )
    await asyncio.to_thread(beside.replace, path)


async def _read_object(scope: str, file: EarlierFile, objects: ObjectStore | None) -> AsyncIterator[bytes]:
    if objects is None:
        raise UserError(f"{scope}/{file.path} is in an object store: set PARLOUR_STORE__OBJECTS__URL again")
    digest = hashlib.sha256()
    try:
        async for data in objects.read(file.object):
            digest.update(data)
            yield data
        is_whole = digest.hexdigest() == file.object.partition("-")[0]
    except ObjectDamaged:
        is_whole = False
    if not is_whole:
        raise UserError(
            f"the object {file.object} ({scope}/{file.path}) is missing or damaged: bring it back from a copy of the"
            " object store, or remove the file with `parlour store repair` of the release before"
        )


def _set_times(folder: Path, files: Collection[EarlierFile]) -> None:
    """Note in the times of files that they are complete; they are on the disk before."""
    os.sync()
    for each in files:
        os.utime(_path_in(folder, each.path), ns=(each.modified, each.modified))


def _path_in(folder: Path, path: str) -> Path:
    """Return the path of a stored file; it never leads out of *folder*."""
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"not a file of a scope: {path!r}")
    return folder / path


def _begin(path: Path) -> None:
    Disk().make_folder(path.parent)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE))


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def _list_local(home: Path, *, is_one: bool) -> list[str]:
    is_scope = is_one and any((home / name).exists() for name in ("memory", "sessions"))
    return list_scopes(home) + ([""] if is_scope else [])


def _note_id(home: Path, id_: str) -> None:
    for path in home.glob(f"{CACHE}*"):
        path.unlink()
    Disk().make_folder(home)
    with closing(sqlite3.connect(home / CACHE)) as database, database:
        database.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        database.execute("INSERT INTO meta VALUES ('id', ?)", (id_,))
    (home / CACHE).chmod(FILE_MODE)


def _read_id(home: Path) -> str:
    """Return the id of the database's memory that the home has a copy of; "" for another home."""
    if not (home / CACHE).exists():
        return ""
    with (
        contextlib.suppress(sqlite3.DatabaseError),
        closing(sqlite3.connect(f"file:{quote(str(home / CACHE))}?mode=ro", uri=True)) as database,
    ):
        found = database.execute("SELECT value FROM meta WHERE name = 'id'").fetchone()
        return str(found[0]) if found is not None else ""
    return ""
