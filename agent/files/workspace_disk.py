"""Steps on the disk that the changes of a workspace consist of: find, load, write, link, rename, remove. Blocks.

*root* is a descriptor of the workspace's folder, and a `DiskPath` the parts of a path beneath it. Follows no link.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from agent.attachments.file_names import format_size
from agent.files.path_resolution import open_file, open_folder
from agent.files.workspace_names import (
    MOST_LEVELS,
    disk_files,
    disk_folders,
    disk_name,
    is_hidden,
    is_marked,
    shown_name,
)
from agent.memory.storage.disk import FILE_MODE
from gateway.errors import ToolFailed

NEW = ".new-"  # before the names of temporary files
_MOST_ENTRIES = 20_000  # of a folder that an operator filled: what is beyond is not listed
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

DiskPath = tuple[str, ...]


class FileTooLarge(ToolFailed):
    """A file is larger than the caller takes, or than a workspace file may be."""


@dataclass(frozen=True, slots=True)
class DiskFile:
    """A regular file beneath a folder."""

    path: DiskPath
    size: int
    changed_at: datetime
    inode: int


def scan(folder: int, path: DiskPath = (), level: int = 1) -> Iterator[DiskFile]:
    """Yield the regular files beneath *folder*, hidden ones left out; links are neither followed nor listed."""
    try:
        with os.scandir(folder) as listed:
            entries = list(islice(listed, _MOST_ENTRIES))
    except OSError:
        return
    for entry in sorted(entries, key=lambda each: each.name):
        if is_hidden(entry.name):
            continue
        with suppress(OSError):  # removed in the meantime
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(about.st_mode):
                changed_at = datetime.fromtimestamp(about.st_mtime, UTC)
                yield DiskFile((*path, entry.name), about.st_size, changed_at, about.st_ino)
            elif stat.S_ISDIR(about.st_mode) and level < MOST_LEVELS:
                with open_folder(folder, (entry.name,)) as inner:
                    yield from scan(inner, (*path, entry.name), level + 1)


def list_names(folder: int) -> list[str]:
    """Return the names of everything right in *folder*."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def find_file(root: int, parts: Sequence[str]) -> DiskPath | None:
    """Return the path of the regular file *parts*, None if it does not exist."""
    for path in disk_files(parts):
        with suppress(OSError), open_file(root, path):
            return path
    return None


def find_newest(root: int, parts: Sequence[str]) -> DiskPath | None:
    """Do what `find_file` does, and remove the older, unmarked version that a killed write left beside a marked one.

    Raises NotADirectoryError if a part before the last is a file, and IsADirectoryError if the last is a folder: with
    their marks, a file and a folder of one name have different names on disk.
    """
    path = find_file(root, parts)
    if path is not None and is_marked(path[-1]):
        remove_file(root, (*path[:-1], disk_name(parts[-1])))
    if path is None:
        if any(find_file(root, parts[:n]) for n in range(1, len(parts))):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if any(_is_folder(root, each) for each in disk_folders(parts)):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return path


def stat_file(root: int, path: DiskPath) -> os.stat_result:
    """Return the facts of a regular file."""
    with open_file(root, path) as fd:
        return os.fstat(fd)


def load_file(root: int, path: DiskPath, most: int) -> bytes:
    """Return the bytes of a regular file. Raises FileTooLarge beyond *most*."""
    with open_file(root, path) as fd:
        data = bytearray()
        while len(data) <= most and (piece := os.read(fd, 1 << 20)):
            data += piece
    if len(data) > most:
        raise FileTooLarge(f"{shown_name(path)} is larger than {format_size(most)}")
    return bytes(data)


def holds(root: int, path: DiskPath, data: bytes) -> bool:
    """Return True if the file at *path* has exactly these bytes."""
    return stat_file(root, path).st_size == len(data) and load_file(root, path, len(data)) == data


def new_name() -> str:
    """Return the name of a new temporary file."""
    return f"{NEW}{secrets.token_hex(8)}"


def create_empty(root: int, path: DiskPath) -> None:
    """Create an empty file, durably, unless it exists."""
    with open_folder(root, path[:-1], create=True) as folder, suppress(FileExistsError):
        os.close(os.open(path[-1], _CREATE_FLAGS, FILE_MODE, dir_fd=folder))
        os.fsync(folder)


def write_new(root: int, data: bytes) -> str:
    """Write *data* to a temporary file, durably; return its name."""
    name = new_name()
    fd = os.open(name, _CREATE_FLAGS, FILE_MODE, dir_fd=root)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    except OSError:
        os.unlink(name, dir_fd=root)
        raise
    finally:
        os.close(fd)
    return name


def link_file(root: int, path: DiskPath, target: DiskPath) -> str:
    """Give the file *path* a second name, durably; return it. It moves where the file system has no such links."""
    with open_folder(root, path[:-1]) as source, open_folder(root, target[:-1], create=True) as folder:
        try:
            os.link(path[-1], target[-1], src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise
            os.rename(path[-1], target[-1], src_dir_fd=source, dst_dir_fd=folder)
        os.fsync(folder)
    return target[-1]


def move_into_place(
    root: int, new: str, parts: Sequence[str], replaced: DiskPath | None, *, is_untrusted: bool
) -> None:
    """Rename the temporary file *new* to the file *parts*, whose older version *replaced* goes."""
    name = disk_name(parts[-1], is_untrusted=is_untrusted)
    path = next((each for each in disk_folders(parts[:-1]) if _is_folder(root, each)), None)
    if path is None:
        path = tuple(map(disk_name, parts[:-1]))
    with open_folder(root, path, create=True) as folder:
        os.rename(new, name, src_dir_fd=root, dst_dir_fd=folder)
        os.fsync(folder)
    if replaced is not None and replaced != (*path, name):
        remove_file(root, replaced)


def replace_in_place(root: int, path: DiskPath, data: bytes | None) -> None:
    """Store what an erasure left of a file; None removes it."""
    if data is None:
        remove_file(root, path)
        return
    new = write_new(root, data)
    with open_folder(root, path[:-1]) as folder:
        os.rename(new, path[-1], src_dir_fd=root, dst_dir_fd=folder)
        os.fsync(folder)


def _is_folder(root: int, path: DiskPath) -> bool:
    try:
        with open_folder(root, path):
            return True
    except OSError:
        return False


def remove_file(root: int, path: DiskPath) -> None:
    """Remove a file durably, and the folders that are empty then."""
    with suppress(OSError), open_folder(root, path[:-1]) as folder:
        os.unlink(path[-1], dir_fd=folder)
        os.fsync(folder)
    for level in range(len(path) - 1, 0, -1):
        with suppress(OSError), open_folder(root, path[: level - 1]) as parent:  # it has files yet, or is gone
            os.rmdir(path[level - 1], dir_fd=parent)


def remove_tree(root: int, path: DiskPath) -> None:
    """Remove a file or a folder with all that is in it."""
    with suppress(OSError), open_folder(root, path) as folder:
        for name in list_names(folder):
            remove_tree(folder, (name,))
    with suppress(OSError), open_folder(root, path[:-1]) as parent:
        try:
            os.unlink(path[-1], dir_fd=parent)
        except (IsADirectoryError, PermissionError):
            os.rmdir(path[-1], dir_fd=parent)
