"""Shared and exclusive locks of memory scopes: turns and jobs share a scope, moving its files excludes them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from agent.memory.jobs.job_runner import Handler, RetryJobLater
from gateway.ports.journal import Job

if TYPE_CHECKING:
    from gateway.store.jobs import SqlJobs


_IMMEDIATELY = timedelta(0)
_RETRY_DELAY = timedelta(seconds=1)
_MAX_WAIT = timedelta(seconds=2)  # moving files takes milliseconds, unless the disk is full
_LOOK = 0.5  # seconds between looks at a move of another gateway


class ScopeLock:
    """Readers-writer lock for each scope; the entries of unused scopes are removed.

    A move that the store knows as begun locks its scopes at every gateway, also while the gateway that does it is down.
    """

    def __init__(self, moving: Callable[[], Collection[str]] = tuple) -> None:
        """*moving* returns the scopes of the moves that are not complete (`SqlAccountLinks.moving`)."""
        self._moving = moving
        self._users: Counter[str] = Counter()
        self._locked: set[str] = set()
        self._waiting: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def hold_shared(self, resolve: Callable[[], str]) -> AsyncIterator[str]:
        """Hold the shared lock of the scope that *resolve* returns, and yield the scope.

        Waits while the scope is locked exclusively. The scope's files are not moved while the context is open.
        """
        while self.is_locked(scope := resolve()):  # moving the files may change the scope
            await self._wait_changed()
        self._users[scope] += 1
        try:
            yield scope
        finally:
            self._users[scope] -= 1
            if not self._users[scope]:
                del self._users[scope]
            self._wake()

    def is_locked(self, scope: str) -> bool:
        """Return True if *scope* is locked exclusively, or is being moved."""
        return scope in self._locked or scope in self._moving()

    async def wait_unlocked(self, scope: str, at_most: timedelta) -> None:
        """Return when *scope* is not locked exclusively any more, or after *at_most*."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most.total_seconds()):
                while self.is_locked(scope):
                    await self._wait_changed()

    @asynccontextmanager
    async def hold_exclusive(self, *scopes: str) -> AsyncIterator[None]:
        """Hold the exclusive locks of *scopes*; waits until no lock of them is held.

        New shared locks are granted while it waits, so that a long turn of one chat does not delay other chats.
        """
        while any(each in self._users or each in self._locked for each in scopes):
            await self._wait_changed()
        self._locked.update(scopes)
        try:
            yield
        finally:
            self._locked.difference_update(scopes)
            self._wake()

    async def _wait_changed(self) -> None:
        """Return when a lock was released, or after a moment; the caller looks again, as others may have come first."""
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(change)
        try:
            async with asyncio.timeout(_LOOK):
                await change
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(change)

    def _wake(self) -> None:
        for change in self._waiting:
            if not change.done():
                change.set_result(None)


def lock_handler(lock: ScopeLock, jobs: SqlJobs, handler: Handler) -> Handler:
    """Wrap *handler* to hold the shared lock of its job's scope; a job whose scope is locked is retried."""

    async def run(job: Job) -> RetryJobLater | None:
        if lock.is_locked(job.scope):
            await lock.wait_unlocked(job.scope, _MAX_WAIT)
            delay = _RETRY_DELAY if lock.is_locked(job.scope) else _IMMEDIATELY
            return RetryJobLater(delay, "the files of its scope are being moved", counts=False)
        async with lock.hold_shared(lambda: job.scope):
            if all(each.id != job.id for each in await jobs.pending_in(job.scope)):
                # The job has moved to another scope since it was claimed; the retry claims it there.
                return RetryJobLater(_IMMEDIATELY, "its scope has changed", counts=False)
            if lock.is_locked(job.scope):  # the look has told of a move that another gateway has begun
                return RetryJobLater(_RETRY_DELAY, "its scope is being moved", counts=False)
            return await handler(job)

    return run
