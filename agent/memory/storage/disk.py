"""Every touch of a file that memory makes, in one place: private from the first write, durable when it returns.

Tests count bytes and inject faults by wrapping this class; nothing else in `agent.memory` opens files.
All of it blocks: call it in a thread.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import glob
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_RUN = secrets.token_hex(4)  # tells our half-made files from those of a process that is gone


def is_half_made(path: Path) -> bool:
    """Say whether *path* is what a killed process left of a `replace`; one of this process may yet be finished."""
    return path.name.startswith(".") and path.suffix == ".tmp" and f".{_RUN}-" not in path.name


class Disk:
    """The real disk."""

    def size(self, path: Path) -> int | None:
        """Return the file's size, or None when there is none."""
        try:
            return path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

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
        """Return the whole file, or None when there is none."""
        size = self.size(path)
        return None if size is None else self.read(path, 0, size + 1)

    def open_append(self, path: Path) -> int:
        """Open (and, privately, make) a file and its folders for appending; a new name is durable."""
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

    def write(self, fd: int, data: bytes) -> None:
        """Write all of *data*: one call unless the system takes less."""
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def sync(self, fd: int) -> None:
        """Return when what was written is on the disk."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """Close an open file."""
        os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Take away everything after *size*."""
        os.ftruncate(fd, size)

    def rename(self, old: Path, new: Path) -> None:
        """Give *old* another name in its folder, durably."""
        old.rename(new)
        self.sync_folder(new.parent)

    def replace(self, path: Path, data: bytes) -> None:
        """Put *data* at *path* so that a reader sees the old bytes or the new ones, whatever happens."""
        self._put(path, data, lambda: True)

    def swap(self, path: Path, data: bytes, *, was: bytes | None) -> bool:
        """Put *data* at *path* if *was* stands there at the last moment; False when somebody saved something else.

        An editor takes no lock. What it saves while our bytes go to the disk, which takes milliseconds, is seen here.
        """
        return self._put(path, data, lambda: self.load(path) == was)

    def _put(self, path: Path, data: bytes, may: Callable[[], bool]) -> bool:
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
            if is_put := may():
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
        """Take away what a process that was killed in `replace` left; another thread's half-made file stays."""
        for entry in folder.glob(f"{glob.escape(stem)}*.tmp"):
            if not entry.name.startswith(f"{stem}{_RUN}-"):
                entry.unlink(missing_ok=True)

    def overwrite(self, path: Path, start: int, data: bytes) -> None:
        """Put *data* over as many bytes from *start* on, durably; what follows stays where it is."""
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(fd, view, start)
                view, start = view[written:], start + written
            self.sync(fd)
        finally:
            self.close(fd)

    def remove(self, path: Path) -> None:
        """Take a file away, durably; one that is not there is no error."""
        try:
            path.unlink()
        except FileNotFoundError:
            return
        self.sync_folder(path.parent)

    def make_folder(self, path: Path) -> None:
        """Make a folder and what is missing above it, private and durable."""
        if path.is_dir():
            return
        self.make_folder(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=FOLDER_MODE)
        self.sync_folder(path.parent)

    def sync_folder(self, path: Path) -> None:
        """Return when the folder's names are on the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(fd)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        """Hold the lock file *path*; waits for whoever has it, in this process or another."""
        fd = self.open_append(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            self.close(fd)


def save_corrupt(disk: Disk, path: Path, pieces: Sequence[bytes]) -> None:
    """Copy unreadable bytes into ``*.corrupt`` beside the transcript; said once, however often they are met."""
    beside = path.with_name(path.name + ".corrupt")
    known = disk.load(beside) or b""
    fresh = [piece for piece in dict.fromkeys(pieces) if piece.strip() and piece not in known]
    if not fresh:
        return
    fd = disk.open_append(beside)
    try:
        disk.write(fd, b"".join(piece.rstrip(b"\n") + b"\n" for piece in fresh))
        disk.sync(fd)
    finally:
        disk.close(fd)
    log.warning("transcript.set_aside", file=beside.name, pieces=len(fresh), bytes=sum(map(len, fresh)))


def read_text(data: bytes) -> str:
    """Return a text file's text, whoever saved it: UTF-8 or UTF-16 with or without a mark, else Windows' Western code.

    Line ends become those of Unix. Every byte string has a text.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = data.decode("utf-16", "replace")
    else:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode("cp1252", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")
