"""The workspace of one scope: its files, and for a week those that were replaced or deleted.

A write is a temporary file, a flush to the disk and a rename, so a reader sees the old file or the new one, also after
a crash. The temporary file, the deleted files and the records of appends are hidden in the workspace:

    files/trips/rome.md                              a file; `%u` before the name: it holds untrusted text
    files/.trash/<time>.<id>/trips/rome.md           what was at that name until then
    files/.appends/<time>.<id>.<size>                an append, and the size before it
    files/.new-…, files/.lock                        a file being written; the lock of writers

Every change takes the key of the call that asked for it and has no effect the second time. Everything here blocks.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog

from agent.attachments.file_names import format_size
from agent.files.path_resolution import FOLDER_FLAGS, open_folder, open_root
from agent.files.workspace_disk import (
    NEW,
    DiskFile,
    DiskPath,
    FileTooLarge,
    create_empty,
    find_newest,
    holds,
    link_file,
    list_names,
    load_file,
    move_into_place,
    new_name,
    remove_file,
    remove_tree,
    replace_in_place,
    scan,
    stat_file,
    write_new,
)
from agent.files.workspace_names import RECEIVED, InvalidFileName, disk_files, is_marked, parse_name, shown_name
from agent.memory.storage.disk import FILE_MODE
from agent.memory.storage.written_files import note_writes
from gateway.events import short_id

log = structlog.get_logger(__name__)

FILE_BYTES = 20_000_000
MOST_FILES = 2_000  # and as many deleted ones
KEPT_FOR = timedelta(days=7)  # deleted files
TRASH, APPENDS = ".trash", ".appends"
_LOCK = ".lock"
_STAMP = "%Y%m%dt%H%M%Sz"
_TRASHED = re.compile(r"(?P<at>\d{8}t\d{6}z)\.(?P<id>f[a-z2-7]{8})\Z")
_APPENDED = re.compile(r"(?P<at>\d{8}t\d{6}z)\.(?P<id>f[a-z2-7]{8})\.(?P<size>\d{1,12})\Z")
_IN_TRASH = 2  # parts of a path before those of a deleted file


@dataclass(frozen=True, slots=True)
class WorkspaceFile:
    """A file as a listing names it."""

    name: str
    size: int
    changed_at: datetime
    is_untrusted: bool  # a call wrote it that untrusted text may have caused


@dataclass(frozen=True, slots=True)
class FileContent:
    """The bytes of a file."""

    data: bytes
    is_untrusted: bool


@dataclass(frozen=True, slots=True)
class FileChange:
    """A finished change: the size of the file now, and the id that restores what was there; "" if nothing was."""

    size: int
    trash_id: str = ""


@dataclass(frozen=True, slots=True)
class DeletedFile:
    """A file that was replaced or deleted and can be restored."""

    id: str
    name: str
    size: int
    at: datetime


class WorkspaceFull(Exception):
    """A limit of the workspace is reached: *reason* names it; *trash* is the size of the deleted files in bytes."""

    def __init__(self, reason: str, trash: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.trash = trash


class FileWorkspace:
    """The files beneath one folder, which need not exist yet. Safe to use from several threads and processes.

    Methods raise InvalidFileName, FileTooLarge, and OSError where the disk fails.
    """

    def __init__(self, root: Path, *, most_bytes: int, now: Callable[[], datetime]) -> None:
        """Keep at most *most_bytes*, deleted files included."""
        self._root = root
        self._most_bytes = most_bytes
        self._now = now

    # -- reading -----------------------------------------------------------------------------------

    def list_files(self) -> list[WorkspaceFile]:
        """Return the files, the last changed first."""
        files: dict[str, WorkspaceFile] = {}
        with self._open() as root:
            for each in scan(root):
                name, is_untrusted = shown_name(each.path), is_marked(each.path[-1])
                # Of two versions that a crash left, the marked one counts, as in `find_file`.
                if name.partition("/")[0] != RECEIVED and (is_untrusted or name not in files):
                    files[name] = WorkspaceFile(name, each.size, each.changed_at, is_untrusted)
        return sorted(files.values(), key=lambda each: (each.changed_at, each.name), reverse=True)

    def read(self, name: str, *, most: int = FILE_BYTES) -> FileContent | None:
        """Return the file *name*, None if it does not exist. Raises FileTooLarge beyond *most* bytes."""
        parts = parse_name(name)
        if parts[0] == RECEIVED:
            return None
        with self._open() as root:
            for path in (*disk_files(parts), *disk_files(parts)):  # again: the mark in its name may change meanwhile
                with suppress(OSError):
                    return FileContent(load_file(root, path, most), is_marked(path[-1]))
        return None

    def deleted_files(self) -> list[DeletedFile]:
        """Return the files that can be restored, the last deleted first."""
        with self._open() as root:
            kept = {each.inode for each in scan(root)}  # a restored file is still in the trash
            deleted = [
                DeletedFile(entry["id"], shown_name(each.path), each.size, _time_of(entry))
                for entry, each in _scan_trash(root)
                if each.inode not in kept
            ]
        return sorted(deleted, key=lambda each: (each.at, each.id), reverse=True)

    # -- changing ----------------------------------------------------------------------------------

    def create(self, name: str, data: bytes, *, is_untrusted: bool) -> FileChange | None:
        """Write a new file; None if another one has its name. Raises WorkspaceFull."""
        parts = _parse_own_name(name)
        with self._open_for_change() as root:
            path = find_newest(root, parts)
            if path is not None:
                return FileChange(len(data)) if holds(root, path, data) else None
            self._reserve(root, len(data))
            move_into_place(root, write_new(root, data), parts, None, is_untrusted=is_untrusted)
        return FileChange(len(data))

    def replace(self, name: str, data: bytes, *, key: str, is_untrusted: bool) -> FileChange:
        """Write the file *name*; its older version is kept in the trash. Raises WorkspaceFull."""
        parts, trash_id = _parse_own_name(name), _derive_id(key, name)
        with self._open_for_change() as root:
            path = find_newest(root, parts)
            if path is None or is_marked(path[-1]) is not is_untrusted or not holds(root, path, data):
                self._reserve(root, len(data))
                new = write_new(root, data)
                if path is not None:
                    self._keep_in_trash(root, path, trash_id)
                move_into_place(root, new, parts, path, is_untrusted=is_untrusted)
            return FileChange(len(data), trash_id if _is_in_trash(root, trash_id) else "")

    def append(self, name: str, data: bytes, *, key: str, is_untrusted: bool) -> FileChange:
        """Add *data* to the end of the file *name*, or create it; a marked file stays marked. Raises WorkspaceFull."""
        parts, append_id = _parse_own_name(name), _derive_id(key, name)
        with self._open_for_change() as root:
            path = find_newest(root, parts)
            before = b"" if path is None else load_file(root, path, FILE_BYTES)
            sizes = [int(entry["size"]) for entry in _entries(root, APPENDS, _APPENDED) if entry["id"] == append_id]
            if any(before[size:].startswith(data) for size in sizes):
                return FileChange(len(before))
            self._reserve(root, len(before) + len(data), freed=len(before))
            new = write_new(root, before + data)
            create_empty(root, (APPENDS, f"{self._stamp()}.{append_id}.{len(before)}"))
            is_untrusted = is_untrusted or (path is not None and is_marked(path[-1]))
            move_into_place(root, new, parts, path, is_untrusted=is_untrusted)
        return FileChange(len(before) + len(data))

    def delete(self, name: str, *, key: str) -> FileChange | None:
        """Move the file *name* to the trash; None if it does not exist."""
        parts, trash_id = _parse_own_name(name), _derive_id(key, name)
        with self._open_for_change() as root:
            path = find_newest(root, parts)
            if path is not None:
                self._keep_in_trash(root, path, trash_id)
                remove_file(root, path)
            return FileChange(0, trash_id) if _is_in_trash(root, trash_id) else None

    def restore(self, trash_id: str) -> str | None:
        """Put a deleted file back and return its name, None for an unknown id. A file in its place is deleted."""
        with self._open_for_change() as root:
            for entry, deleted in _scan_trash(root):
                if entry["id"] == trash_id:
                    name = shown_name(deleted.path)
                    path = find_newest(root, parse_name(name))
                    if path is None or stat_file(root, path).st_ino != deleted.inode:
                        if path is not None:
                            self._keep_in_trash(root, path, _derive_id(f"{trash_id} {secrets.token_hex(8)}", name))
                        new = link_file(root, (TRASH, entry[0], *deleted.path), (new_name(),))
                        move_into_place(root, new, parse_name(name), path, is_untrusted=is_marked(deleted.path[-1]))
                    return name
        return None

    def erase(self, clear: Callable[[str, bytes], bytes | None], *, is_preview: bool = False) -> list[str]:
        """Pass the name and the bytes of each file to *clear*, and store its result; None removes the file for good.

        A deleted file that would change is removed. Files beyond FILE_BYTES are not read. Return the names of the
        files that changed, or with *is_preview* would change.
        """
        changed: dict[str, None] = {}
        if self._root.is_symlink() or not self._root.exists():
            return []
        with self._open_for_change() as root:
            trash = [((TRASH, entry[0], *each.path), each) for entry, each in _scan_trash(root)]
            for path, each in [*((each.path, each) for each in scan(root)), *trash]:
                if each.size > FILE_BYTES:
                    continue
                name = shown_name(each.path)
                try:
                    before = load_file(root, path, FILE_BYTES)
                except (FileNotFoundError, PermissionError) as error:  # an operator's
                    log.warning("workspace.not_read", error=error.strerror)
                    continue
                after = clear(name, before)
                if after != before:
                    changed[name] = None
                    if not is_preview:
                        replace_in_place(root, path, None if path[0] == TRASH else after)
        return list(changed)

    def expire_trash(self, *, age: timedelta = KEPT_FOR) -> int:
        """Remove for good what was deleted *age* ago or earlier; return the number of files."""
        removed = 0
        if not any((self._root / each).is_dir() for each in (TRASH, APPENDS)):
            return 0
        with self._open_for_change() as root:
            limit = self._now().astimezone(UTC) - age
            for entry, _ in _scan_trash(root):
                removed += _time_of(entry) <= limit
            for folder, pattern in ((TRASH, _TRASHED), (APPENDS, _APPENDED)):
                for entry in _entries(root, folder, pattern):
                    if _time_of(entry) <= limit:
                        remove_tree(root, (folder, entry[0]))
        return removed

    # -- steps of a change, under the lock ---------------------------------------------------------

    @contextmanager
    def _open(self) -> Iterator[int]:
        """Open the workspace for reading. One that does not exist is empty, and so is a link in its place."""
        try:
            root = os.open(self._root, FOLDER_FLAGS)
        except OSError:
            root = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # beneath which nothing can be opened
        try:
            yield root
        finally:
            os.close(root)

    @contextmanager
    def _open_for_change(self) -> Iterator[int]:
        with note_writes(self._root, is_tree=True), open_root(self._root) as root:
            lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE, dir_fd=root)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                for name in list_names(root):
                    if name.startswith(NEW):  # of a process that was killed: we hold the lock
                        os.unlink(name, dir_fd=root)
                yield root
            finally:
                os.close(lock)

    def _stamp(self) -> str:
        return f"{self._now().astimezone(UTC):{_STAMP}}"

    def _reserve(self, root: int, size: int, *, freed: int = 0) -> None:
        """Raise WorkspaceFull unless a file of *size* bytes fits when *freed* bytes of its older version go."""
        if size > FILE_BYTES:
            raise FileTooLarge(f"a file has at most {format_size(FILE_BYTES)}; this one would have {format_size(size)}")
        kept, deleted = list(scan(root)), [each for _, each in _scan_trash(root)]
        inodes = {each.inode for each in kept}
        trash = sum({each.inode: each.size for each in deleted if each.inode not in inodes}.values())
        if len(kept) >= MOST_FILES or len(deleted) >= MOST_FILES:
            what = "files" if len(kept) >= MOST_FILES else "deleted files"
            raise WorkspaceFull(f"the workspace is full ({MOST_FILES} {what})", trash)
        if sum(each.size for each in kept) + trash - freed + size > self._most_bytes:
            largest = max(kept, key=lambda each: each.size, default=None)
            named = f"; the largest: {shown_name(largest.path)}, {format_size(largest.size)}" if largest else ""
            raise WorkspaceFull(f"the workspace is full ({format_size(self._most_bytes)}){named}", trash)

    def _keep_in_trash(self, root: int, path: DiskPath, trash_id: str) -> None:
        """Link the file *path* into the trash; it stays in its place until it is replaced or removed."""
        if not _is_in_trash(root, trash_id):  # else an earlier attempt of this call kept what was there before it
            link_file(root, path, (TRASH, f"{self._stamp()}.{trash_id}", *path))


def exported_name(path: DiskPath) -> str:
    """Return the name in an export of the file at *path* beneath a workspace; "" for one without a person's data."""
    if path[0] == TRASH and len(path) > _IN_TRASH:
        return f"deleted files/{path[1]}/{shown_name(path[_IN_TRASH:])}"
    return "" if path[0].startswith(".") else f"files/{shown_name(path)}"


def _parse_own_name(name: str) -> DiskPath:
    parts = parse_name(name)
    if parts[0] == RECEIVED:
        raise InvalidFileName(f"people sent the files in {RECEIVED}/, which cannot be changed; use another name")
    return parts


def _derive_id(key: str, name: str) -> str:
    return "f" + short_id(f"{key}\n{name}", 8)


def _time_of(entry: re.Match[str]) -> datetime:
    return datetime.strptime(entry["at"], _STAMP).replace(tzinfo=UTC)


def _scan_trash(root: int) -> Iterator[tuple[re.Match[str], DiskFile]]:
    for entry in _entries(root, TRASH, _TRASHED):
        with suppress(OSError), open_folder(root, (TRASH, entry[0])) as folder:
            yield from ((entry, each) for each in scan(folder))


def _is_in_trash(root: int, trash_id: str) -> bool:
    return any(entry["id"] == trash_id for entry, _ in _scan_trash(root))


def _entries(root: int, folder: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    try:
        with open_folder(root, (folder,)) as opened:
            names = sorted(list_names(opened))
    except OSError:
        return []
    return [match for match in map(pattern.match, names) if match]
