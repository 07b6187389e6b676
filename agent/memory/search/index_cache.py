"""Cache of open index files with limits on files and vector memory, and the threads that read and write them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agent.memory.search.index_schema import IndexUnusable
from agent.memory.search.scope_index import ScopeIndex

_T = TypeVar("_T")


@dataclass(slots=True)
class _OpenIndex:
    index: ScopeIndex
    inode: int
    users: int = 0
    used_at: float = 0.0  # seconds of the loop's clock

    def is_in_place(self, path: Path) -> bool:
        """Return True if *path* is still the opened file."""
        return _inode(path) == self.inode


class IndexCache:
    """Opens indexes when they are used, and closes the least recently used ones. Call `close` at the end."""

    def __init__(self, *, files: int, matrix_bytes: int, is_flat: bool) -> None:
        self._files = files
        self._matrix_bytes = matrix_bytes
        self._is_flat = is_flat
        self._open: OrderedDict[Path, _OpenIndex] = OrderedDict()
        self._searching = ThreadPoolExecutor(2, "recall-search")
        self._writing = ThreadPoolExecutor(1, "recall-write")

    async def close(self) -> None:
        """Close every file; waits for the work in the threads."""
        for each in self._open.values():
            await self.writing(each.index.close)
        self._open.clear()
        await asyncio.to_thread(self._searching.shutdown)
        await asyncio.to_thread(self._writing.shutdown)

    def __len__(self) -> int:
        """Return the number of open files."""
        return len(self._open)

    @contextlib.asynccontextmanager
    async def using(self, path: Path) -> AsyncIterator[ScopeIndex]:
        """Yield the open index of *path*; it stays open in the context. IndexUnusable closes it and is raised again."""
        if (known := self._open.get(path)) is not None and not known.is_in_place(path):
            await self.drop(path)  # the file was removed or replaced
        if path not in self._open:
            index = await self.searching(lambda: ScopeIndex(path, is_flat=self._is_flat))
            if path in self._open:  # another task has opened it meanwhile
                await self.searching(index.close)
            else:
                self._open[path] = _OpenIndex(index, _inode(path))
        entry = self._open[path]
        self._open.move_to_end(path)
        entry.users += 1
        try:
            yield entry.index
        except IndexUnusable:
            if self._open.get(path) is entry:
                del self._open[path]
            raise
        finally:
            entry.users -= 1
            entry.used_at = asyncio.get_running_loop().time()
            if not entry.users and self._open.get(path) is not entry:
                await asyncio.shield(self.searching(entry.index.close))

    async def drop(self, path: Path) -> None:
        """Close an index; if it is in use, its last user closes it."""
        entry = self._open.pop(path, None)
        if entry is not None and not entry.users:
            await self.writing(entry.index.close)

    async def trim(self) -> None:
        """Close the least recently used files, and free vectors, down to the limits."""
        idle = [path for path, entry in self._open.items() if not entry.users]
        while idle and len(self._open) > self._files:
            await self.drop(idle.pop(0))
        total = sum(entry.index.matrix_bytes for entry in self._open.values())
        for path in idle[:-1]:  # the last used index keeps its vectors, whatever their size
            if total <= self._matrix_bytes:
                return
            if (entry := self._open.get(path)) is not None and entry.index.matrix_bytes:
                total -= entry.index.matrix_bytes
                await self.searching(entry.index.drop_matrix)

    async def close_idle(self, idle: float) -> None:
        """Close the files that were not used for *idle* seconds."""
        before = asyncio.get_running_loop().time() - idle
        for path in [path for path, entry in self._open.items() if not entry.users and entry.used_at <= before]:
            await self.drop(path)

    async def searching(self, work: Callable[[], _T]) -> _T:
        """Run *work* in a thread for searches."""
        return await asyncio.get_running_loop().run_in_executor(self._searching, work)

    async def writing(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Run *work* in the thread for writes, one call at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._writing, work, *arguments)


def _inode(path: Path) -> int:
    """Return the inode of *path*, 0 if it does not exist."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0
