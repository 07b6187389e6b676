"""The search index, as forgetting sees it: derived, so that it may always be dropped and made again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from agent.memory.files.disk import Disk
from agent.memory.forgetting.places import INDEX
from agent.memory.scopes import scope_folder


class Index(Protocol):
    """Whoever keeps indexes open."""

    async def forgotten(self, scope: str) -> None:
        """Leave nothing in the index of *scope* that its sources do not hold any more, free pages included."""
        ...

    async def leave(self, scope: str) -> None:
        """Let go of a scope's files: they are about to be removed."""
        ...


class DerivedIndex:
    """The index that is in use; until `use` names one, its files are removed, and whoever searches builds them anew."""

    def __init__(self, home: Path, disk: Disk | None = None) -> None:
        self._home = home
        self._disk = disk or Disk()
        self._index: Index | None = None

    def use(self, index: Index) -> None:
        """Say who keeps the indexes."""
        self._index = index

    async def forgotten(self, scope: str) -> None:
        """Leave nothing in the index of *scope* that its sources do not hold any more."""
        if self._index is not None:
            await self._index.forgotten(scope)
            return
        for name in INDEX:
            await asyncio.to_thread(self._disk.remove, scope_folder(self._home, scope) / name)

    async def leave(self, scope: str) -> None:
        """Let go of a scope's files."""
        if self._index is not None:
            await self._index.leave(scope)
