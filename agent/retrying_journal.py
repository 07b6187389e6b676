"""The journal as a turn sees it: it waits for a store that is down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import structlog

from gateway.errors import StoreUnavailable
from gateway.events import SessionKey
from gateway.ports import InboxRow, Journal, SessionRow, TurnCommit, TurnLease, TurnRecord, TurnStep

log = structlog.get_logger(__name__)

T = TypeVar("T")

_STORE_PAUSE = timedelta(seconds=0.5)


class RetryingJournal:
    """The journal as a running turn sees it: while the disk is full a turn waits, it does not fail.

    Every call may be repeated (gateway/ports/journal.py), so waiting is safe; cancelling ends it.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def step(self, lease: TurnLease, step: TurnStep) -> None:
        """Store one step."""
        await self._until_stored(lambda: self._journal.step(lease, step))

    async def steer(self, lease: TurnLease) -> tuple[InboxRow, ...]:
        """Take what the sender wrote meanwhile."""
        return await self._until_stored(lambda: self._journal.steer(lease))

    async def commit(self, lease: TurnLease, commit: TurnCommit) -> TurnRecord:
        """Store the turn."""
        return await self._until_stored(lambda: self._journal.commit(lease, commit))

    async def settle(self, row: InboxRow, commit: TurnCommit) -> TurnRecord:
        """Store a control command's turn."""
        return await self._until_stored(lambda: self._journal.settle(row, commit))

    async def session(self, key: SessionKey) -> SessionRow:
        """Return the key's session."""
        return await self._until_stored(lambda: self._journal.session(key))

    @staticmethod
    async def _until_stored(write: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await write()
            except StoreUnavailable:
                log.warning("turn.waits_for_store")
                await asyncio.sleep(_STORE_PAUSE.total_seconds())
