"""The search index, as forgetting sees it: derived, so that it may always be dropped and made again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from agent.memory.erasure.scope_files import INDEX
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk


class IndexHandle(Protocol):
    """Whoever keeps indexes open."""

    async def purge_stale(self, scope: str) -> None:
        """Leave nothing in the index of *scope* that its sources do not hold any more, free pages included."""
        ...

    async def close_index(self, scope: str) -> None:
        """Let go of a scope's files: they are about to be removed."""
        ...


class DerivedIndex:
    """The index that is in use; until `use` names one, its files are removed, and whoever searches builds them anew."""

    def __init__(self, home: Path, disk: Disk | None = None) -> None:
        self._home = home
        self._disk = disk or Disk()
        self._index: IndexHandle | None = None

    def use(self, index: IndexHandle) -> None:
        """Say who keeps the indexes."""
        self._index = index

    async def purge_stale(self, scope: str) -> None:
        """Leave nothing in the index of *scope* that its sources do not hold any more."""
        if self._index is not None:
            await self._index.purge_stale(scope)
            return
        for name in INDEX:
            await asyncio.to_thread(self._disk.remove, scope_folder(self._home, scope) / name)

    async def close_index(self, scope: str) -> None:
        """Let go of a scope's files."""
        if self._index is not None:
            await self._index.close_index(scope)
