"""A window: one open page or terminal, and what waits to be sent to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import count
from typing import Any

from channels.frames.frame_codec import Frame, HistoryFrame
from gateway.events import SessionKey

MOST_WAITING = 2_000  # frames; a window that does not read is closed, and gets the history when it is back
MOST_CHARACTERS = 8_000_000


class SharedFrame(dict[str, Any]):
    """An immutable frame for any number of windows, encoded when the first of them sends it."""

    __slots__ = ("_text",)

    def encoded(self) -> str:
        """Return the frame as JSON text."""
        try:
            return self._text
        except AttributeError:
            self._text: str = json.dumps(self, ensure_ascii=False, separators=(",", ":"))
            return self._text


class ClientConnection:
    """One connected client of a chat. Its opener serves it; any code may push to it or close it."""

    def __init__(self, key: SessionKey, sender: str, is_open: Callable[[], bool] = lambda: True) -> None:
        self.key = key
        self.sender = sender
        self.is_open = is_open  # asked before each message: a login can be taken away meanwhile
        self._waiting: dict[object, Frame] = {}
        self._characters = 0
        self._numbers = count()
        self._news = asyncio.Event()
        self._asked: HistoryFrame | None = None
        self._asking = asyncio.Event()
        self._page_taken = asyncio.Event()
        self._page_taken.set()
        self._closed = asyncio.Event()

    def push(self, frame: Frame) -> None:
        """Queue *frame*; a preview or activity still waiting is replaced by its successor, in its place.

        Nothing is queued any more once the window is asked to close.
        """
        if self._closed.is_set():
            return
        self._forget_preview(frame)
        slot = _slot(frame)
        if slot is None:
            slot = next(self._numbers)
        self._characters += _weight(frame) - _weight(self._waiting.get(slot))
        self._waiting[slot] = frame
        if slot == _PAGE:
            self._page_taken.clear()
        self._news.set()
        if len(self._waiting) > MOST_WAITING or self._characters > MOST_CHARACTERS:
            self.close()

    async def take(self) -> Frame:
        """Wait for the oldest frame and return it."""
        while not self._waiting or next(iter(self._waiting.values())) is _BEING_READ:
            self._news.clear()
            await self._news.wait()
        slot = next(iter(self._waiting))
        frame = self._waiting.pop(slot)
        self._characters -= _weight(frame)
        if slot == _PAGE:
            self._page_taken.set()
        return frame

    def ask(self, look: HistoryFrame) -> None:
        """Request a page of history; a request that is not being answered yet is replaced."""
        self._asked = look
        self._asking.set()

    async def wait_asked(self) -> HistoryFrame:
        """Wait until the last page was taken and another one is wanted; return which.

        The newest page has its place in the queue from here on, because it replaces what the window shows: a frame that
        is pushed while the page is read may be missing in it, and is sent after it.
        """
        await self._page_taken.wait()
        await self._asking.wait()
        look, self._asked = self._asked or HistoryFrame(), None
        self._asking.clear()
        if not look.before:
            self._waiting[_PAGE] = _BEING_READ
        return look

    def close(self) -> None:
        """Ask the server of this window to end it."""
        self._closed.set()

    async def wait_closed(self) -> None:
        """Return when `close` was called."""
        await self._closed.wait()

    def _forget_preview(self, frame: Frame) -> None:
        if frame["type"] == "message":
            stale = self._waiting.pop(("preview", frame["turn"]), None)
            self._characters -= _weight(stale)


_PAGE = ("page",)  # one at a time, see `wait_asked`
_BEING_READ: Frame = {}  # in place of the newest page


def _slot(frame: Frame) -> object | None:
    match frame["type"]:
        case "preview":
            return ("preview", frame["turn"])
        case "activity":
            return ("activity",)
        case "history" | "earlier":
            return _PAGE
        case _:
            return None


def _weight(frame: Frame | None) -> int:
    if not frame:
        return 0
    return len(frame.get("text", "")) + sum(len(line["text"]) for line in frame.get("lines", ()))
