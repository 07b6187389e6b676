"""Notes in a scope's folder: erasures, deletions and retention that have begun, whose words may still be in its files.

The store knows its erasures, but a store that is lost does not, and `parlour mirror import` must not bring words back.
Each erasure has a note of its own, so that the end of one says nothing of another.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

from agent.base.disk import Disk, wait_for_thread
from agent.base.scopes import list_scopes, scope_folder

_NOTES = Path("memory") / ".mirror" / "erasures"


async def owe_mirror(home: Path, scope: str, disk: Disk, *, erasure: str) -> None:
    """Note, durably, that *erasure*, of any name, is about to erase words from *scope*. Raises OSError."""
    if scope_folder(home, scope).is_dir():
        await wait_for_thread(asyncio.to_thread(disk.replace, _note(home, scope, erasure), b""))


async def pay_mirror(home: Path, scope: str, disk: Disk, *, erasure: str) -> None:
    """Note that no file of *scope* has the words of *erasure* any more. Raises OSError."""
    path = _note(home, scope, erasure)
    if path.exists():
        await wait_for_thread(asyncio.to_thread(disk.remove, path))


def owed_scopes(home: Path) -> Sequence[str]:
    """Return the scopes whose files may have erased words. Blocks."""
    scopes = ("", *list_scopes(home))
    return [scope or "the home" for scope in scopes if any((scope_folder(home, scope) / _NOTES).glob("*"))]


def _note(home: Path, scope: str, erasure: str) -> Path:
    return scope_folder(home, scope) / _NOTES / hashlib.sha256(erasure.encode()).hexdigest()[:16]
