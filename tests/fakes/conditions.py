"""Waiting for what nobody announces, without burning the processor that it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

_LOOK_AGAIN = 0.02  # seconds


async def eventually(holds: Callable[[], bool]) -> None:
    """Return when *holds* holds, where nobody tells when that is."""
    while not holds():  # noqa: ASYNC110 - what a library does is seen only by looking
        await asyncio.sleep(_LOOK_AGAIN)


async def wait_for_news(changed: asyncio.Event) -> None:
    """Return when *changed* is set, or a moment later: a condition may be about a model or a store as well."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LOOK_AGAIN):
            await changed.wait()
