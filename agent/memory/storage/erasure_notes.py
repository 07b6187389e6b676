"""Note in a scope's folder that an erasure has begun whose words may still be in its files.

The store knows its erasures, but a store that is lost does not, and `parlour mirror import` must not bring words back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from agent.memory.scopes import list_scopes, scope_folder
from agent.memory.storage.disk import Disk, wait_for_thread

_NOTE = Path("memory") / ".mirror" / "erasing"


async def owe_mirror(home: Path, scope: str, disk: Disk) -> None:
    """Note, durably, that words are about to be erased from *scope*. Raises OSError."""
    folder = scope_folder(home, scope)
    if folder.is_dir():
        await wait_for_thread(asyncio.to_thread(disk.replace, folder / _NOTE, b""))


async def pay_mirror(home: Path, scope: str, disk: Disk) -> None:
    """Note that no file of *scope* has erased words any more. Raises OSError."""
    path = scope_folder(home, scope) / _NOTE
    if path.exists():
        await wait_for_thread(asyncio.to_thread(disk.remove, path))


def owed_scopes(home: Path) -> Sequence[str]:
    """Return the scopes whose files may have erased words. Blocks."""
    return [scope or "the home" for scope in ("", *list_scopes(home)) if (scope_folder(home, scope) / _NOTE).exists()]
