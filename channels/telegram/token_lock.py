"""One process of this machine per bot: two that fetch with one token take each other's messages away.

A flock, so that it ends with its process however that ends; in a folder of this user alone, named by a hash, so
that neither the token nor who uses it can be read from it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)


class TokenLock:
    """The lock of one bot at one server."""

    def __init__(self, token: str, base_url: str) -> None:
        self._name = hashlib.sha256(f"{base_url}\0{token}".encode()).hexdigest()
        self._file: int | None = None

    def acquire(self) -> bool:
        """Take the lock; False when another process has it. Where no lock can be had, go on without (and say so)."""
        if self._file is not None:
            return True
        try:
            folder = _private_folder()
            file = os.open(folder / f"telegram-{self._name}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as wrong:
            log.warning("telegram.no_lock", reason=wrong.strerror)
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        with suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
        return True

    def holder(self) -> str:
        """Return the process id of who has it, as far as it is known."""
        with suppress(OSError, ValueError):
            return str(int((_private_folder() / f"telegram-{self._name}").read_text("ascii")))
        return "unknown"

    def release(self) -> None:
        """Give it back; harmless when it is not ours."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _private_folder() -> Path:
    """Return the folder of this user's locks; raise OSError when somebody else could play with it."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"parlour-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(1, f"{folder} is not private to this user")
    return folder
