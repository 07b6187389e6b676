"""Open files and folders beneath an open folder: no link is followed and nothing outside is reached. Blocks.

Linux resolves a whole path with openat2(2). Where that call is missing or forbidden, each part is opened relative to
the folder before it with O_NOFOLLOW. Neither way looks at a path before it opens it, so nothing can be swapped in
between.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from agent.memory.storage.disk import FOLDER_MODE, Disk

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without waiting: opening a pipe that an operator put there would block the thread.
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPENAT2 = 437  # the same number on every architecture
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_ATTEMPTS = 16  # while another process renames folders, the kernel asks to try again

OpenBeneath = Callable[[int, Sequence[str], int], int]


def open_beneath(folder: int, parts: Sequence[str], flags: int) -> int:
    """Return a descriptor of the file or folder *parts* beneath *folder*. Raises OSError."""
    return (_find_openat2() or open_part_by_part)(folder, parts, flags)


@cache
def _find_openat2() -> OpenBeneath | None:
    """Return the system call, or None where the kernel lacks it or a sandbox forbids it."""
    if sys.platform != "linux":
        return None
    import ctypes

    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long

    def openat2(folder: int, parts: Sequence[str], flags: int) -> int:
        how = struct.pack("=QQQ", flags, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)
        path = os.fsencode("/".join(parts))
        if b"\0" in path:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        for _ in range(_ATTEMPTS):
            fd = syscall(ctypes.c_long(_OPENAT2), ctypes.c_int(folder), path, how, ctypes.c_size_t(len(how)))
            code = ctypes.get_errno()
            if fd >= 0 or code not in (errno.EAGAIN, errno.EINTR):
                break
        if fd < 0:
            raise OSError(code, os.strerror(code))
        return int(fd)

    try:
        with _descriptor(os.open("/", FOLDER_FLAGS)) as root:
            os.close(openat2(root, (".",), FOLDER_FLAGS))
    except OSError:
        return None
    return openat2


def open_part_by_part(folder: int, parts: Sequence[str], flags: int) -> int:
    """Do what openat2 does, one part after the other. Raises OSError."""
    if any(part in ("", "..") or "/" in part or "\0" in part for part in parts):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    opened: list[int] = []
    try:
        for part in parts[:-1]:
            opened.append(os.open(part, FOLDER_FLAGS, dir_fd=opened[-1] if opened else folder))
        return os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=opened[-1] if opened else folder)
    finally:
        for fd in opened:
            os.close(fd)


@contextmanager
def _descriptor(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def open_root(path: Path) -> Iterator[int]:
    """Create the folder *path* if it does not exist and open it; a link in its place is refused. Raises OSError."""
    Disk().make_folder(path)
    with _descriptor(os.open(path, FOLDER_FLAGS)) as root:
        yield root


@contextmanager
def open_folder(root: int, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """Open the folder *parts* beneath *root*; *create* makes it, durably. Raises OSError."""
    if create:
        for n, part in enumerate(parts):
            with open_folder(root, parts[:n]) as parent, suppress(FileExistsError):
                os.mkdir(part, FOLDER_MODE, dir_fd=parent)
                os.fsync(parent)
    with _descriptor(open_beneath(root, parts or (".",), FOLDER_FLAGS)) as folder:
        yield folder


@contextmanager
def open_file(root: int, parts: Sequence[str]) -> Iterator[int]:
    """Open the regular file *parts* beneath *root* for reading. Raises OSError, also for anything else than a file."""
    with _descriptor(open_beneath(root, parts, FILE_FLAGS)) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        yield fd
