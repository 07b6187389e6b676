"""Take over the files of scopes that earlier releases have kept in folders: attachments, snapshot texts, long results.

Workspaces, `files/`, are taken over at every start, because operators put files there:

trips/%52ome.csv                       trips/Rome.csv; a name that is in no quoted form is used as it is
trips/%u%52ome.csv                     the same file, written by a call that untrusted text may have caused
.trash/<time>.<id>/trips/%52ome.csv    what was at that name until then
.appends/<time>.<id>.<size>            a finished append

Files that a release kept in a database are written into the home first, once. The database had the truth, and a home
a copy of it. Other files of the home are removed, so that nothing erased comes back. After a kill it continues with the
files that are missing (docs/adr/0086-editions.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import structlog

from agent.base.disk import FILE_MODE, Disk
from agent.base.scopes import list_scopes, scope_folder
from agent.files.file_workspace import FILE_BYTES, InvalidFileName, parse_own_name
from gateway.errors import ObjectDamaged, UserError
from gateway.events import quote_file_name
from gateway.ports.memory import BYTES, CACHE, EarlierFile, FileKind, ScopeFile, ScopeFileChange, is_mirrored

if TYPE_CHECKING:
    from gateway.store.file_copies import SqlEarlierFiles
    from gateway.store.files import SqlFiles
    from gateway.store.objects import ObjectStore

log = structlog.get_logger(__name__)

FILES = ("attachments", "blobs", "results", "files")  # folders that have no documents, conversations or history
_STORED_FOLDERS = (*FILES, "sessions", "memory")
_DOCUMENTS = ("SOUL.md", "USER.md")
_PART = ".fetched.tmp"
_ADOPTING = "adopting"  # the home with the id has more than the database
_FOLDERS = {"attachments": FileKind.ATTACHMENT, "blobs": FileKind.TEXT, "results": FileKind.RESULT}
_EXPORTS, _WORKSPACE = "exports", "files"
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_OUTSIDE = re.compile(r"([0-9a-f]{64})-[0-9a-f]{8}\Z")
_LEFT = "backups/not-adopted"  # in a home: files that are not what their names say, or that no workspace can have
_AT_ONCE, _MOST_BYTES = 64, 8 * 1024 * 1024  # files, and bytes of them, that are stored together
_REPORT_EVERY = 50  # scopes
_MARK = "%u"  # quoting never makes it
_TRASH, _APPENDS, _WORKSPACE_LOCK, _NEW = ".trash", ".appends", ".lock", ".new-"
_ENTRY = re.compile(r"(?P<at>\d{8}t\d{6}z)\.(?P<id>f[a-z2-7]{8})(?:\.\d{1,12})?\Z")
_STAMP = "%Y%m%dt%H%M%Sz"


@dataclass(frozen=True, slots=True)
class _FoundFile:
    """A file in a folder of an earlier release."""

    path: Path
    kind: FileKind
    digest: str
    size: int
    at: datetime


async def adopt_files(home: Path, files: SqlFiles) -> int:
    """Store the files of every scope and remove them from their folders; return their number.

    A file is removed once its row is durable and has its digest. One that is not what its name says is set aside in
    `backups/not-adopted`. Idempotent; a kill interrupts it. Raises OSError and StoreUnavailable.
    """
    scopes, count, damaged = ["", *await asyncio.to_thread(list_scopes, home)], 0, 0
    for n, scope in enumerate(scopes, start=1):
        folder = scope_folder(home, scope)
        for some in _in_parts(await asyncio.to_thread(lambda folder=folder: list(_scan(folder)))):  # type: ignore[misc]
            stored = await asyncio.gather(*(_store(files, scope, each) for each in some))
            count += sum(stored)
            await asyncio.to_thread(_end, home, dict(zip((each.path for each in some), stored, strict=True)))
            damaged += len(some) - sum(stored)
        count += await _adopt_large(folder, scope, files)
        await asyncio.to_thread(_remove_folders, folder)
        if not n % _REPORT_EVERY:
            log.info("memory.adopting_files", scopes=n, of=len(scopes), files=count)
    if count or damaged:
        log.info("memory.files_adopted", scopes=len(scopes), files=count, damaged=damaged)
    return count


async def adopt_workspaces(home: Path, files: SqlFiles) -> int:
    """Store what is in the folders `files/` of all scopes, and remove it there; return the number of new files.

    What a workspace cannot have is set aside in `backups/not-adopted`: links, hidden files, impossible names, files
    beyond FILE_BYTES. Idempotent; a kill interrupts it. Raises OSError and StoreUnavailable.
    """
    count = 0
    for scope, folder in await asyncio.to_thread(_find_workspaces, home):
        stored: list[Path] = []
        for file, path in await asyncio.to_thread(lambda folder=folder: list(_scan_workspace(folder))):  # type: ignore[misc]
            data = await asyncio.to_thread(path.read_bytes) if path is not None else b""
            is_new = await files.change(scope, ScopeFileChange(now=file, data=data))
            if path is not None:
                count += is_new
                row = await files.find(scope, file.kind, file.name)
                if row is not None and row.digest == await asyncio.to_thread(_digest, data):
                    stored.append(path)
        await asyncio.to_thread(_end_workspace, home, folder, stored)
    return count


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _end_workspace(home: Path, folder: Path, adopted_paths: Sequence[Path]) -> None:
    """Remove what is stored, by every name that it has, and set the rest aside."""
    inodes = {path.lstat().st_ino for path in adopted_paths}
    for path in adopted_paths:
        path.unlink()
    _set_aside(home, [path for path in _leftovers(folder) if path.lstat().st_ino not in inodes])
    shutil.rmtree(folder)


def _find_workspaces(home: Path) -> Sequence[tuple[str, Path]]:
    """Return the scopes with a folder `files/`, which is no link, and these folders."""
    folders = [(scope, home / scope / _WORKSPACE) for scope in ("", *list_scopes(home))]
    return [(scope, folder) for scope, folder in folders if folder.is_dir() and not folder.is_symlink()]


async def _store(files: SqlFiles, scope: str, file: _FoundFile) -> bool:
    """Store a file; return False for one that is not what its name says."""
    data = await asyncio.to_thread(file.path.read_bytes)
    if await asyncio.to_thread(_digest, data) != file.digest:
        return False
    stored = await files.put(scope, file.kind, data, at=file.at)
    return stored.digest == file.digest and stored.size == len(data)


async def _adopt_large(folder: Path, scope: str, files: SqlFiles) -> int:
    """Store the large files of a lost store, whose names are not known, as attachments; return their number."""
    known = {each.place for each in await files.files(scope)}
    count = 0
    for path in await asyncio.to_thread(lambda: sorted((folder / BYTES).glob("*"))):
        match = _OUTSIDE.match(path.name)
        if match is not None and path.name not in known:
            at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            if await _store(files, scope, _FoundFile(path, FileKind.ATTACHMENT, match[1], path.stat().st_size, at)):
                await asyncio.to_thread(path.unlink)
                count += 1
    return count


def _scan(folder: Path) -> Iterator[_FoundFile]:
    for name, kind in _FOLDERS.items():
        for path in sorted((folder / name).glob("*")):
            about = path.lstat()
            if _DIGEST.match(path.name) and path.is_file() and not path.is_symlink():
                at = datetime.fromtimestamp(about.st_mtime, UTC)
                yield _FoundFile(path, kind, path.name, about.st_size, at)


def _in_parts(files: Sequence[_FoundFile]) -> Iterator[Sequence[_FoundFile]]:
    """Yield *files* in parts that fit in memory."""
    part: list[_FoundFile] = []
    for each in files:
        if part and (len(part) == _AT_ONCE or sum(one.size for one in part) + each.size > _MOST_BYTES):
            yield part
            part = []
        part.append(each)
    if part:
        yield part


def _end(home: Path, files: Mapping[Path, bool]) -> None:
    """Remove the files that are stored, and set the others aside."""
    for path, is_stored in files.items():
        if is_stored:
            path.unlink(missing_ok=True)
    _set_aside(home, [path for path, is_stored in files.items() if not is_stored])


def _set_aside(home: Path, paths: Sequence[Path]) -> None:
    for path in paths:
        target = first = home / _LEFT / path.relative_to(home)
        Disk().make_folder(target.parent)
        log.warning("memory.file_not_adopted", folder=str(target.parent))
        n = 2
        while os.path.lexists(target):
            target, n = first.with_name(f"{first.name}.{n}"), n + 1
        with suppress(FileNotFoundError):
            Disk().rename(path, target)  # there for good before its folder goes


def _remove_folders(folder: Path) -> None:
    """Remove the folders of earlier releases, with exports that were being made."""
    for name in (*_FOLDERS, _EXPORTS):
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            shutil.rmtree(folder / name)


def _leftovers(folder: Path) -> Iterator[Path]:
    """Yield what was not adopted, but for the lock of writers, unfinished files and the records of appends."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if (
            (path.is_file() or path.is_symlink())
            and parts[0] not in (_WORKSPACE_LOCK, _APPENDS)
            and not parts[0].startswith(_NEW)
        ):
            yield path


def _scan_workspace(folder: Path) -> Iterator[tuple[ScopeFile, Path | None]]:
    """Yield the files of a workspace and where their bytes are, and the records of appends, which have none."""
    if folder.is_symlink():
        return
    kept: set[int] = set()
    for path, about in _walk(folder):
        if (file := _to_file(path.relative_to(folder).parts, about)) is not None:
            kept.add(about.st_ino)
            yield file, path
    for path, about in _walk(folder / _TRASH):
        entry, *parts = path.relative_to(folder / _TRASH).parts
        match, file = _ENTRY.match(entry), _to_file(parts, about)
        if match is not None and file is not None and about.st_ino not in kept:  # else it was restored
            deleted = replace(file, kind=FileKind.DELETED, name=match["id"], original=file.name, at=_time_of(match))
            yield deleted, path
    for path, _ in _walk(folder / _APPENDS):
        if (match := _ENTRY.match(path.name)) is not None:
            yield ScopeFile(kind=FileKind.CALL, name=match["id"], at=_time_of(match)), None


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the regular files in *folder* that are not hidden, marked ones first: of two versions those count."""
    if folder.is_symlink():
        return
    for at, folders, names in os.walk(folder):  # does not follow links
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for name in sorted(names, key=lambda each: (not each.startswith(_MARK), each)):
            about = (Path(at) / name).lstat()
            if stat.S_ISREG(about.st_mode) and not name.startswith("."):
                yield Path(at) / name, about


def _to_file(parts: Sequence[str], about: os.stat_result) -> ScopeFile | None:
    *folders, last = parts or [""]
    try:
        name = parse_own_name("/".join(map(_unquote_part, (*folders, last.removeprefix(_MARK)))))
    except InvalidFileName:
        name = ""
    if not name or about.st_size > FILE_BYTES:
        log.warning("workspace.not_adopted", bytes=about.st_size)
        return None
    at = datetime.fromtimestamp(about.st_mtime, UTC)
    return ScopeFile(kind=FileKind.WORKSPACE, name=name, at=at, is_untrusted=last.startswith(_MARK))


def _unquote_part(part: str) -> str:
    shown = unquote(part, errors="replace")
    return shown if quote_file_name(shown) == part else part


def _time_of(entry: re.Match[str]) -> datetime:
    return datetime.strptime(entry["at"], _STAMP).replace(tzinfo=UTC)


# -- files that an earlier release kept in a database ----------------------------------------------


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
    for path in _walk_stored(folder):
        name = path.relative_to(folder).as_posix()
        stored, status = files.get(name), path.lstat()
        if stored is not None and (status.st_size, status.st_mtime_ns) == (stored.size, stored.modified):
            same.add(name)
        elif stored is None and is_wanted(name):
            path.unlink()
    return [path for path in files if path not in same]


def _walk_stored(folder: Path) -> Iterable[Path]:
    yield from (path for name in _DOCUMENTS if (path := folder / name).is_file())
    for name in _STORED_FOLDERS:
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
