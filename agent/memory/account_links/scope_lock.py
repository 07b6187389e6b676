"""Who is at work in a scope: turns and jobs beside one another, moving a scope's files alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from agent.memory.jobs.job_runner import Handler, RetryJobLater
from gateway.ports import Job, JobQueue

_AT_ONCE = timedelta(0)
_SOON = timedelta(seconds=1)
_PATIENCE = timedelta(seconds=2)  # moving files takes milliseconds; a disk that is full takes as long as it takes


class ScopeLock:
    """Lets many use a scope at once, and one rearrange it while nobody does. Tables free themselves."""

    def __init__(self) -> None:
        self._users: Counter[str] = Counter()
        self._closed: set[str] = set()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def shared(self, scope: Callable[[], str]) -> AsyncIterator[str]:
        """Be at work in the scope that *scope* names once nobody rearranges it; it names the same until the end."""
        async with self._changed:
            held = scope()
            while held in self._closed:
                await self._changed.wait()
                held = scope()  # the scope's name may be what was rearranged
            self._users[held] += 1
        try:
            yield held
        finally:
            await asyncio.shield(self._leave(held))

    def is_closed(self, scope: str) -> bool:
        """Say whether somebody rearranges *scope* now."""
        return scope in self._closed

    async def wait_open(self, scope: str, at_most: timedelta) -> None:
        """Return when nobody rearranges *scope* any more, or after *at_most*."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most.total_seconds()), self._changed:
                await self._changed.wait_for(lambda: scope not in self._closed)

    @asynccontextmanager
    async def exclusive(self, *scopes: str) -> AsyncIterator[None]:
        """Be the only one in *scopes*: wait until nobody is at work there, then keep everybody out.

        Newcomers are let in while it waits, so that a long turn of one chat never holds up another chat.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: not any(self._users[each] or each in self._closed for each in scopes))
            self._closed.update(scopes)
        try:
            yield
        finally:
            await asyncio.shield(self._open(scopes))

    async def _leave(self, scope: str) -> None:
        async with self._changed:
            self._users[scope] -= 1
            if not self._users[scope]:
                del self._users[scope]
            self._changed.notify_all()

    async def _open(self, scopes: tuple[str, ...]) -> None:
        async with self._changed:
            self._closed.difference_update(scopes)
            self._changed.notify_all()


def lock_handlers(gate: ScopeLock, jobs: JobQueue, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
    """Return *handlers* that do a job while nobody rearranges its scope, and under the scope that it has by then."""

    def at_work(handler: Handler) -> Handler:
        async def run(job: Job) -> RetryJobLater | None:
            if gate.is_closed(job.scope):
                await gate.wait_open(job.scope, _PATIENCE)
                later = _SOON if gate.is_closed(job.scope) else _AT_ONCE
                return RetryJobLater(later, "its scope is being rearranged", counts=False)
            async with gate.shared(lambda: job.scope):
                if all(each.id != job.id for each in await jobs.pending_in(job.scope)):
                    # It went to another scope after it was taken up; as it stands now it comes again.
                    return RetryJobLater(_AT_ONCE, "its scope has changed", counts=False)
                return await handler(job)

        return run

    return {kind: at_work(handler) for kind, handler in handlers.items()}
