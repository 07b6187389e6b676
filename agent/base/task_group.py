"""Tasks side by side whose failure is one error, as that of a plain call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Open an `asyncio.TaskGroup` that raises the first failure itself, not an ExceptionGroup.

    An error is handled by its type (gateway/errors.py), but `except StoreUnavailable` does not catch a
    group that contains one: an outage of the store would be handled as a bug, and end the turn.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
