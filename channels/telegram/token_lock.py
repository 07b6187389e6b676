"""A lock per bot on this machine: two processes that poll with one token take each other's messages.

It is a flock, which ends with its process. Its name is a hash, so that the token cannot be read from it, in a folder
that only this user can open.
"""

from __future__ import annotations

import asyncio
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
        """Take the lock; return False if another process holds it. If locking is impossible, warn and return True."""
        if self._file is not None:
            return True
        try:
            folder = _private_folder()
            file = os.open(folder / f"telegram-{self._name}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            log.warning("telegram.no_lock", reason=error.strerror)
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

    async def wait(self, channel: str, pause: float) -> None:
        """Take the lock, and retry every *pause* seconds while another process holds it; log that once."""
        is_logged = False
        while not await asyncio.to_thread(self.acquire):
            if not is_logged:
                is_logged = True
                log.error(
                    "telegram.token_in_use",
                    channel=channel,
                    process=self.holder(),
                    mend="another Parlour on this machine uses this bot's token; stop it, or give this one a bot of"
                    " its own with @BotFather. It is tried again by itself",
                )
            await asyncio.sleep(pause)

    def holder(self) -> str:
        """Return the process id of the holder, or "unknown"."""
        with suppress(OSError, ValueError):
            return str(int((_private_folder() / f"telegram-{self._name}").read_text("ascii")))
        return "unknown"

    def release(self) -> None:
        """Release the lock; idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _private_folder() -> Path:
    """Return the folder of this user's locks; raise OSError if another user can write to it."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"parlour-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(1, f"{folder} is not private to this user")
    return folder
