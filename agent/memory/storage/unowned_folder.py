"""Programs without a gateway write to no folder that a gateway has the memory of: its store would write over them."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from agent.memory.scopes import AREAS, SHARED
from gateway.errors import HomeInUse
from gateway.ports.memory import MIRROR


@contextlib.contextmanager
def hold_unowned(workspace: Path) -> Iterator[None]:
    """Hold the lock of the home of *workspace*, shared, for one write. Raises HomeInUse if a gateway has the memory."""
    with contextlib.ExitStack() as stack:
        for home in _homes(workspace):
            if is_mirrored(home):
                raise HomeInUse(
                    f"a gateway owns {home} and writes its memory into these files: change it there, in a chat or with"
                    " `parlour memory`, or edit the Markdown files by hand"
                )
            if not (home / "lock").is_file():
                continue
            fd = os.open(home / "lock", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HomeInUse(f"a gateway owns {home}: ask it (`parlour sessions list`), or stop it first") from None
        yield


def require_unowned(workspace: Path) -> None:
    """Raise HomeInUse if a gateway has the memory of *workspace*: before a model is paid for what is not stored."""
    with hold_unowned(workspace):
        return


def is_mirrored(workspace: Path) -> bool:
    """Return True if a gateway writes what it stores into the files of *workspace*."""
    return any((home / MIRROR).exists() for home in _homes(workspace))


def _homes(workspace: Path) -> list[Path]:
    """Return the folders that *workspace* may be a part of: itself, and its home if it is a scope."""
    homes = [workspace]
    if workspace.parent.name in AREAS:
        homes.append(workspace.parent.parent)
    if workspace.name == SHARED:
        homes.append(workspace.parent)
    return homes
