"""File operations of the memory: files are private from the first write, and durable when a call returns.

Nothing else in `agent.memory` opens files, so that tests can count bytes and inject faults by wrapping `Disk`.
Everything here blocks: call it in a thread.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import ctypes
import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog

log = structlog.get_logger(__name__)

T = TypeVar("T")

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # <linux/fs.h>
_NOT_SUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
_RUN = secrets.token_hex(4)  # in the names of this process's temporary files


def is_half_made(path: Path) -> bool:
    """Return True if *path* is a temporary file of a killed process; those of this process may still be in use."""
    return path.name.startswith(".") and path.suffix == ".tmp" and f".{_RUN}-" not in path.name


class Disk:
    """The real disk."""

    def size(self, path: Path) -> int | None:
        """Return the file's size in bytes, None if it does not exist."""
        try:
            return path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def changed_at(self, path: Path) -> float:
        """Return when the file was written to last, in seconds since 1970. Raises OSError."""
        return path.stat().st_mtime

    def read(self, path: Path, start: int, length: int) -> bytes:
        """Return up to *length* bytes from *start*; fewer only at the end of the file."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            while length > 0 and (piece := os.pread(fd, length, start)):
                pieces.append(piece)
                start += len(piece)
                length -= len(piece)
        finally:
            os.close(fd)
        return b"".join(pieces)

    def load(self, path: Path) -> bytes | None:
        """Return the whole file, None if it does not exist."""
        size = self.size(path)
        return None if size is None else self.read(path, 0, size + 1)

    def open_append(self, path: Path) -> int:
        """Open a file for appending; create it and its folders, private and durable, if they are missing."""
        is_new = self.size(path) is None
        if is_new:
            self.make_folder(path.parent)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        try:
            if is_new:
                os.fchmod(fd, FILE_MODE)
                self.sync_folder(path.parent)
        except OSError:
            os.close(fd)
            raise
        return fd

    @contextlib.contextmanager
    def open_briefly(self, path: Path) -> Iterator[int]:
        """Open a file for appending, and close it at the end of the context."""
        fd = self.open_append(path)
        try:
            yield fd
        finally:
            self.close(fd)

    def append(self, path: Path, data: bytes) -> None:
        """Append *data* to a file, durably. With data that was appended before, it is durable afterwards too."""
        with self.open_briefly(path) as fd:
            if data:
                self.write(fd, data)
            self.sync(fd)

    def write(self, fd: int, data: bytes) -> None:
        """Write all of *data*."""
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def sync(self, fd: int) -> None:
        """Flush the file to the disk."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """Close an open file."""
        os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to *size* bytes."""
        os.ftruncate(fd, size)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file within its folder, durably."""
        old.rename(new)
        self.sync_folder(new.parent)

    def exchange(self, beside: Path, path: Path) -> None:
        """Let two files of one file system have each other's name, durably; no moment is without either of them.

        Where the file system cannot do that, it is three renames, between which a save can be lost. A kill in between
        is repaired by `repair_exchange`.
        """
        if not _exchange(beside, path):
            half = _half_exchanged(beside)
            self.rename(path, half)
            self.rename(beside, path)
            self.rename(half, beside)
        for folder in {beside.parent, path.parent}:
            self.sync_folder(folder)

    def repair_exchange(self, beside: Path, path: Path) -> None:
        """Complete, or take back, an `exchange` that was killed between its renames."""
        half = _half_exchanged(beside)
        if self.size(half) is not None:
            self.rename(half, beside if self.size(path) is not None else path)

    def replace(self, path: Path, data: bytes) -> None:
        """Write *data* to *path* atomically: readers see the old bytes or the new ones, also after a crash."""
        self._put(path, data, lambda: True)

    def swap(self, path: Path, data: bytes, *, was: bytes | None) -> bool:
        """Write *data* to *path* atomically if the file's content is *was*; return False if it is not.

        The content is compared just before the rename, because text editors take no lock and can save at any time.
        """
        return self._put(path, data, lambda: self.load(path) == was)

    def _put(self, path: Path, data: bytes, should_replace: Callable[[], bool]) -> bool:
        self.make_folder(path.parent)
        stem = f".{path.name[:100]}."
        beside = path.with_name(f"{stem}{_RUN}-{secrets.token_hex(4)}.tmp")
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            try:
                self.write(fd, data)
                self.sync(fd)
            finally:
                self.close(fd)
            if is_put := should_replace():
                beside.replace(path)
            else:
                beside.unlink()
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        self._sweep(path.parent, stem)
        self.sync_folder(path.parent)
        return is_put

    def _sweep(self, folder: Path, stem: str) -> None:
        """Remove the temporary files that killed processes left; other threads' files stay."""
        for entry in folder.glob(f"{glob.escape(stem)}*.tmp"):
            if not entry.name.startswith(f"{stem}{_RUN}-"):
                entry.unlink(missing_ok=True)

    def remove(self, path: Path) -> None:
        """Remove a file durably; a missing file is not an error."""
        try:
            path.unlink()
        except FileNotFoundError:
            return
        self.sync_folder(path.parent)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder and all that is in it, durably."""
        shutil.rmtree(path)
        self.sync_folder(path.parent)

    def make_folder(self, path: Path) -> None:
        """Create a folder and its missing parents, private and durable."""
        if path.is_dir():
            return
        self.make_folder(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=FOLDER_MODE)
        self.sync_folder(path.parent)

    def sync_folder(self, path: Path) -> None:
        """Flush the folder's directory entries to the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(fd)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        """Hold an exclusive lock on the file *path*; waits while this or another process holds it."""
        with self.open_briefly(path) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield


async def wait_for_thread(work: Coroutine[Any, Any, T]) -> T:
    """Await the thread's result; when cancelled, wait for the thread first, because it still uses its files."""
    task = asyncio.create_task(work, name="disk thread")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _half_exchanged(beside: Path) -> Path:
    return beside.with_name(f"{beside.name}.half")


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names atomically; return False if this system or file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if not renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        return True
    code = ctypes.get_errno()
    if code in _NOT_SUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(other))


def save_corrupt(disk: Disk, path: Path, pieces: Sequence[bytes]) -> None:
    """Append unreadable bytes to ``<path>.corrupt``. Idempotent: bytes that the file has are not added again."""
    beside = path.with_name(path.name + ".corrupt")
    known = disk.load(beside) or b""
    fresh = [piece for piece in dict.fromkeys(pieces) if piece.strip() and piece not in known]
    if fresh:
        disk.append(beside, b"".join(piece.rstrip(b"\n") + b"\n" for piece in fresh))
        log.warning("transcript.set_aside", file=beside.name, pieces=len(fresh), bytes=sum(map(len, fresh)))


def read_text(data: bytes) -> str:
    """Do what `decode_text` does, with a replacement character for bytes that mean nothing. Never fails."""
    return decode_text(data, errors="replace")


def decode_text(data: bytes, *, errors: str = "strict") -> str:
    """Decode a text file as UTF-16 if it has a byte order mark, else as UTF-8, else as Windows-1252.

    Line ends become line feeds. Raises UnicodeDecodeError.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = data.decode("utf-16", errors)
    else:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode("cp1252", errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def error_reason(error: OSError | ValueError) -> str:
    """Return an error message without paths or user text."""
    if not isinstance(error, OSError):
        return type(error).__name__
    return error.strerror or (os.strerror(error.errno) if error.errno else type(error).__name__)
