"""Wake-ups in memory: keys with pending work. They are hints; the file decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class WakeupQueue(Generic[K]):
    """Things to look at, each at most once in the queue, first come first served."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[K | None] = asyncio.Queue()
        self._known: set[K] = set()

    def put(self, thing: K) -> None:
        """Queue *thing* unless it is queued."""
        if thing not in self._known:
            self._known.add(thing)
            self._queue.put_nowait(thing)

    def close(self) -> None:
        """End every stream."""
        self._queue.put_nowait(None)

    async def stream(self) -> AsyncIterator[K]:
        """Yield things as they come, until closed."""
        while (thing := await self._queue.get()) is not None:
            self._known.discard(thing)
            yield thing
        self._queue.put_nowait(None)  # the next reader ends too
