"""A scope's own folder `files/`, opened part by part: no link is followed, and nothing outside it is reached."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without waiting: a pipe that somebody put there would hold the thread for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileTooLarge(Exception):
    """The file is there, and larger than it may be."""


def read_beneath(root: Path, name: str, most: int) -> bytes | None:
    """Return the file *name* (parts between slashes) under *root*, or None if it is not a regular file. Blocks.

    Raises FileTooLarge beyond *most* bytes. Each part is opened relative to its folder and never by path, so that it
    cannot be replaced by a link between two steps.
    """
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        return None
    opened: list[int] = []
    try:
        opened.append(os.open(root, _FOLDER))
        for part in parts[:-1]:
            opened.append(os.open(part, _FOLDER, dir_fd=opened[-1]))
        opened.append(os.open(parts[-1], _FILE, dir_fd=opened[-1]))
        return _read(opened[-1], most)
    except (OSError, ValueError):
        return None
    finally:
        for fd in opened:
            os.close(fd)


def _read(fd: int, most: int) -> bytes | None:
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        return None
    if about.st_size > most:
        raise FileTooLarge
    data = bytearray()
    while piece := os.read(fd, 1 << 20):
        data += piece
        if len(data) > most:  # it grew while it was read
            raise FileTooLarge
    return bytes(data)


def names_in(root: Path, most: int) -> list[str]:
    """Return the names of the plain files right in *root*, the last changed first. Blocks."""
    try:
        with os.scandir(root) as entries:
            files = [each for each in entries if each.is_file(follow_symlinks=False)]
            files.sort(key=lambda each: each.stat(follow_symlinks=False).st_mtime, reverse=True)
            return [each.name for each in files[:most]]
    except OSError:
        return []
