"""Files of an answer in the terminal: saved in a folder that the user can find."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

from channels.frames.frame_codec import safe_file_name


class ConsoleFiles:
    """One folder. Nothing in it is ever written over, and only its owner reads it."""

    def __init__(self, folder: Path, read: Callable[[str], Awaitable[bytes | None]]) -> None:
        """Save into *folder*, made when it is first needed; *read* gives the bytes behind a reference."""
        self._folder = folder
        self._read = read

    async def save(self, name: str, reference: str, text: str) -> Path | None:
        """Save a file under a name like *name*; None when it is lost or cannot be written."""
        data = await self._read(reference) if reference else text.encode()
        if data is None:
            return None
        try:
            return await asyncio.to_thread(self._write, safe_file_name(name), data)
        except OSError:
            return None

    def _write(self, name: str, data: bytes) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stem, dot, ending = name.rpartition(".")
        for number in count(2):
            path = self._folder / name
            try:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileExistsError:
                if path.is_file() and path.read_bytes() == data:
                    return path  # shown again, not sent again
                name = f"{stem}-{number}.{ending}" if dot else f"{ending}-{number}"
                continue
            with os.fdopen(handle, "wb") as out:
                out.write(data)
            return path
        raise AssertionError("count never ends")
