"""A window: one open page or terminal, and what waits to be sent to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from channels.frames.codec import Frame
from gateway.events import SessionKey

MOST_WAITING = 2_000  # frames; a window that does not read is closed, and gets the history when it is back
MOST_CHARACTERS = 8_000_000


class Window:
    """One listener of one chat. Whoever opened it serves it; anybody may push to it or close it."""

    def __init__(self, key: SessionKey, sender: str, is_open: Callable[[], bool] = lambda: True) -> None:
        self.key = key
        self.sender = sender
        self.is_open = is_open  # asked before each message: a login can be taken away meanwhile
        self._waiting: dict[object, Frame] = {}
        self._characters = 0
        self._numbers = count()
        self._news = asyncio.Event()
        self._closed = asyncio.Event()

    def push(self, frame: Frame) -> None:
        """Queue *frame*; a preview or activity still waiting is replaced by its successor, in its place."""
        self._forget_preview(frame)
        slot = _slot(frame)
        if slot is None:
            slot = next(self._numbers)
        self._characters += _weight(frame) - _weight(self._waiting.get(slot))
        self._waiting[slot] = frame
        self._news.set()
        if len(self._waiting) > MOST_WAITING or self._characters > MOST_CHARACTERS:
            self.close()

    async def take(self) -> Frame:
        """Wait for the oldest frame and return it."""
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
        slot = next(iter(self._waiting))
        frame = self._waiting.pop(slot)
        self._characters -= _weight(frame)
        return frame

    def close(self) -> None:
        """Ask whoever serves this window to end it."""
        self._closed.set()

    async def wait_closed(self) -> None:
        """Return when somebody asked for the end."""
        await self._closed.wait()

    def _forget_preview(self, frame: Frame) -> None:
        if frame["type"] == "message":
            stale = self._waiting.pop(("preview", frame["turn"]), None)
            self._characters -= _weight(stale)


def _slot(frame: Frame) -> object | None:
    match frame["type"]:
        case "preview":
            return ("preview", frame["turn"])
        case "activity":
            return ("activity",)
        case _:
            return None


def _weight(frame: Frame | None) -> int:
    return len(frame.get("text", "")) if frame else 0


class Pace:
    """A bound on how often one window may speak: a burst, then a steady rate. It delays and loses nothing."""

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        burst: float = 40,
        per_second: float = 10,
    ) -> None:
        self._clock = clock
        self._burst = burst
        self._per_second = per_second
        self._left = burst
        self._at = clock()

    def delay(self) -> float:
        """Take one turn; return the seconds to wait before it."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        self._left -= 1
        return max(0.0, -self._left / self._per_second)
