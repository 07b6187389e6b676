"""Take over the folder `files/` in which earlier releases kept the workspace of a scope.

trips/%52ome.csv                       trips/Rome.csv; a name that is in no quoted form is used as it is
trips/%u%52ome.csv                     the same file, written by a call that untrusted text may have caused
.trash/<time>.<id>/trips/%52ome.csv    what was at that name until then
.appends/<time>.<id>.<size>            a finished append
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import structlog

from agent.files.file_workspace import FILE_BYTES
from agent.files.workspace_names import InvalidFileName, parse_own_name
from gateway.events import quote_file_name
from gateway.ports import FileKind, FileStore, ScopeFile, ScopeFileChange

log = structlog.get_logger(__name__)

_MARK = "%u"  # quoting never makes it
_TRASH, _APPENDS, _LOCK, _NEW = ".trash", ".appends", ".lock", ".new-"
_ENTRY = re.compile(r"(?P<at>\d{8}t\d{6}z)\.(?P<id>f[a-z2-7]{8})(?:\.\d{1,12})?\Z")
_STAMP = "%Y%m%dt%H%M%Sz"


async def adopt_workspace(folder: Path, scope: str, store: FileStore) -> int:
    """Store the files of *folder* that *scope* does not have yet; return their number.

    Links, hidden files, impossible names and files beyond FILE_BYTES are left out. Nothing in the folder changes.
    Idempotent; a kill interrupts it. Raises OSError and StoreUnavailable.
    """
    count = 0
    for file, path in await asyncio.to_thread(lambda: list(_scan(folder))):
        data = await asyncio.to_thread(path.read_bytes) if path is not None else b""
        count += await store.change(scope, ScopeFileChange(now=file, data=data)) and path is not None
    return count


async def remove_adopted(folder: Path, scope: str, store: FileStore) -> Sequence[Path]:
    """Remove the files of *folder* that *scope* has; return the paths of those that it does not have."""
    gone: set[int] = set()
    for file, path in await asyncio.to_thread(lambda: list(_scan(folder))):
        if path is None:
            continue
        there = await store.find(scope, file.kind, file.name)
        data = await asyncio.to_thread(path.read_bytes)
        if there is not None and there.digest == await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest()):  # noqa: B023
            gone.add(path.lstat().st_ino)
            await asyncio.to_thread(path.unlink)
    return await asyncio.to_thread(lambda: [each for each in _leftovers(folder) if each.lstat().st_ino not in gone])


def _leftovers(folder: Path) -> Iterator[Path]:
    """Yield what was not adopted, but for the lock of writers, unfinished files and the records of appends."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if (
            (path.is_file() or path.is_symlink())
            and parts[0] not in (_LOCK, _APPENDS)
            and not parts[0].startswith(_NEW)
        ):
            yield path


def _scan(folder: Path) -> Iterator[tuple[ScopeFile, Path | None]]:
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
