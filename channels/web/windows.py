"""Windows, each an open page or terminal with what waits to be sent to it, and the pages of history for them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from cachetools import LRUCache

from channels.kit.background import ChatRateLimits, TokenBucket
from channels.web.frame_codec import LONGEST_SAYING, MOST_PARTS, TEXT_LIMIT, Frame, HistoryFrame
from gateway.channel import SessionReader
from gateway.events import SessionKey
from gateway.i18n import FALLBACK, translate
from gateway.ports.channel import DisplayedMessage
from gateway.text import sanitize, split_bounded

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


# -- history ---------------------------------------------------------------------------------------
# History for windows: pages of bounded size, read one at a time for a chat and shared by the windows that wait.

NEWEST_TURNS, PAGE_TURNS = 40, 200  # of the page that a window opens with, and of those before it
PAGE_BYTES = 512_000  # of one frame's JSON; holds the longest message that a window can send
_LINE_BYTES = 512  # of a line's JSON besides its texts
_RESERVE = 4_096
_READS_AT_ONCE = 4  # of all chats: each holds up to a few megabytes
_BURST, _INTERVAL = 20, 1.0  # readings of one person at once, then seconds for each
_MOST_CHATS = 1_000  # whose pace is remembered


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Consecutive lines of a history, none longer than a part; `before` is where they begin if there are older."""

    lines: tuple[DisplayedMessage, ...]
    before: str = ""  # a position of `displayed_page`, then "#" and the oldest line's id if lines of it are missing


def cut_page(
    lines: Sequence[DisplayedMessage], *, before: str = "", limit: int = PAGE_BYTES, language: str = FALLBACK
) -> HistoryPage | None:
    """Return the newest of *lines*, or the newest of those older than line *before*, that fit into *limit* bytes.

    A line longer than a message part is cut as its delivery cut it, into lines with separate ids. Return None
    if the line *before* does not exist.
    """
    # A character takes four bytes at most, and the longest line leaves some for its files.
    every = _newest_first(lines, limit // 4 - _RESERVE, language)
    if before and not any(line.id == before for line in every):
        return None
    taken: list[DisplayedMessage] = []
    size = _LINE_BYTES
    for line in every:
        size += _bytes_of(line)
        if taken and size > limit:
            return HistoryPage(tuple(reversed(taken)), taken[-1].id)
        taken.append(line)
    return HistoryPage(tuple(reversed(taken)))


def _newest_first(lines: Sequence[DisplayedMessage], longest: int, language: str) -> Iterator[DisplayedMessage]:
    for line in reversed(lines):
        # The names of a person's files stand in the files, not in what was said.
        text = sanitize(line.typed if line.attachments and line.role == "user" else line.text)
        pieces = _pieces(text, line.role, longest, language)
        last = len(pieces) - 1
        for n in range(last, -1, -1):
            files, choices = (line.attachments, line.choices) if n == last else ((), ())
            sources = line.sources if n == last else ()
            if n == 0:
                yield replace(line, text=pieces[n], attachments=files, choices=choices, sources=sources)
            else:
                yield replace(
                    line,
                    id=f"{line.id}.{n}",
                    message_id="",
                    replaces="",
                    steps=0,
                    has_reasoning=False,
                    text=pieces[n],
                    attachments=files,
                    choices=choices,
                    sources=sources,
                )


def _pieces(text: str, role: str, longest: int, language: str) -> Sequence[str]:
    size = min(longest, LONGEST_SAYING if role == "user" else TEXT_LIMIT)
    if len(text) <= size:
        return [text]
    if role == "user":
        return [text[start : start + size] for start in range(0, len(text), size)]
    return split_bounded(text, limit=size, max_parts=MOST_PARTS, note=translate("delivery.cut", language))


def _bytes_of(line: DisplayedMessage) -> int:
    texts: Iterable[str] = (
        line.text,
        line.name,
        line.message_id,
        line.replaces,
        *(each.name for each in line.attachments),
        *(text for each in line.choices for text in (each.label, each.command)),
        *(text for each in line.sources for text in (each.url, each.title)),
    )
    size = sum(len(json.dumps(text, ensure_ascii=False).encode()) for text in texts)
    return size + _LINE_BYTES * (1 + len(line.attachments) + len(line.choices) + len(line.sources))


@dataclass(slots=True)
class _HistoryReading:
    """One page that windows wait for."""

    frame: SharedFrame | None = None


@dataclass(slots=True)
class _ChatReadings:
    """The readings of one chat: requests that arrive before a reading starts share it."""

    pace: TokenBucket  # of all conversations of a person together
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    to_come: dict[str, _HistoryReading] = field(default_factory=dict)  # by `before`


class HistoryPager:
    """Reads pages for windows. One person's requests cost a bounded part of the process, however many they are."""

    def __init__(
        self,
        sessions: SessionReader,
        encode: Callable[[SessionKey, HistoryPage, str], SharedFrame],
        language: Callable[[SessionKey], str],
        *,
        page_bytes: int = PAGE_BYTES,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """*encode* makes a frame of a page and of the line after it."""
        self._sessions = sessions
        self._encode = encode
        self._language = language
        self._page_bytes = page_bytes
        self._sleep = sleep
        self._paces = ChatRateLimits(_BURST, lambda _: _INTERVAL, clock=clock)
        self._chats: LRUCache[SessionKey, _ChatReadings] = LRUCache(_MOST_CHATS)
        self._slots = asyncio.Semaphore(_READS_AT_ONCE)

    async def read(self, key: SessionKey, before: str = "") -> SharedFrame:
        """Return the newest page, or the one before the line *before*, with everything stored so far."""
        chat = self._chat(key)
        reading = chat.to_come.setdefault(before, _HistoryReading())
        async with chat.lock:
            if reading.frame is None:
                if delay := chat.pace.take():
                    await self._sleep(delay)
                async with self._slots:
                    # Whoever comes from here on may miss what is stored meanwhile, and needs another reading.
                    if chat.to_come.get(before) is reading:
                        del chat.to_come[before]
                    reading.frame = await self._frame(key, before)
            return reading.frame

    def _chat(self, key: SessionKey) -> _ChatReadings:
        chat = self._chats.get(key)
        if chat is None:
            chat = self._chats[key] = _ChatReadings(self._paces.of(str(key.parent)))
        return chat

    async def _frame(self, key: SessionKey, before: str) -> SharedFrame:
        page = await self._read_page(key, before) if before else None
        return self._encode(key, page or await self._read_page(key, "") or HistoryPage(()), before if page else "")

    async def _read_page(self, key: SessionKey, before: str) -> HistoryPage | None:
        """Return the page that ends where *before* says; None if that is nowhere."""
        position, _, line = before.partition("#")
        found = await self._sessions.displayed_page(key, position, turns=PAGE_TURNS if position else NEWEST_TURNS)
        if found is None:
            return None
        language = self._language(key)

        def cut() -> HistoryPage | None:
            return cut_page(found.lines, before=line, limit=self._page_bytes, language=language)

        page = await asyncio.to_thread(cut)
        if page is None:
            return None
        return replace(page, before=f"{position}#{page.before}" if page.before else found.before)
