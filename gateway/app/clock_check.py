"""Whether a message that looks too old to be answered is: or this machine's clock is ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import structlog

from gateway.net.platform_time import clock_ahead, clock_line

log = structlog.get_logger(__name__)

_ASK_AGAIN = timedelta(minutes=10)


class ClockCheck:
    """Asks a platform what time it is when a message looks a day old; at most once in ten minutes."""

    def __init__(self, servers: Sequence[str], proxy: str, now: Callable[[], datetime]) -> None:
        self._servers = servers
        self._proxy = proxy
        self._now = now
        self._asking = asyncio.Lock()
        self._ahead = timedelta(0)
        self._asked_at: float | None = None

    async def ahead(self) -> timedelta:
        """Return how far this machine's clock is ahead, if that is more than a day; otherwise zero."""
        async with self._asking:
            time = asyncio.get_running_loop().time()
            if self._asked_at is None or time - self._asked_at >= _ASK_AGAIN.total_seconds():
                self._ahead = await clock_ahead(self._servers, self._now(), proxy=self._proxy)
                self._asked_at = time
                if self._ahead:
                    log.error("clock.ahead", mend=clock_line(self._ahead))
        return self._ahead
