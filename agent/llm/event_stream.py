"""Server-sent events, decoded from the pieces in which they arrive (WHATWG HTML, 9.2.6). Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class ServerSentEvent(NamedTuple):
    """One event: its name, usually empty, and its data."""

    name: bytes
    data: bytes


class EventTooLarge(ValueError):
    """An event exceeds the limit."""


class EventStreamDecoder:
    """Decodes one stream. Ids and retry times are ignored: a model's answer cannot be resumed."""

    def __init__(self, *, limit: int) -> None:
        """*limit* is the number of bytes that one event may have."""
        self._limit = limit
        self._line = bytearray()  # the last line, which has no end yet
        self._name = b""
        self._data: list[bytes] = []
        self._size = 0  # bytes of `_data`
        self._is_first = True
        self._was_cr = False  # the last piece ended in a carriage return, which may be half of a line end

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """Return the events that *piece* completes. Raises EventTooLarge."""
        if not piece:
            return []
        if self._was_cr:
            piece = piece.removeprefix(b"\n")
        self._was_cr = piece.endswith(b"\r")
        *lines, rest = _LINE_END.split(piece)
        events: list[ServerSentEvent] = []
        for line in lines:
            self._line += line
            self._end_line(events)
        self._line += rest
        self._check()
        return events

    def close(self) -> list[ServerSentEvent]:
        """Return the event that the end of the stream cut off before its blank line, if any."""
        events: list[ServerSentEvent] = []
        if self._line:
            self._end_line(events)
        self._dispatch(events)
        return events

    def _end_line(self, events: list[ServerSentEvent]) -> None:
        line = bytes(self._line)
        self._line.clear()
        if self._is_first:
            line = line.removeprefix(_BOM)
            self._is_first = False
        if not line:
            self._dispatch(events)
            return
        field, _, value = line.partition(b":")  # a comment has an empty field
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1
            self._check()
        elif field == b"event":
            self._name = value

    def _dispatch(self, events: list[ServerSentEvent]) -> None:
        if self._data:
            events.append(ServerSentEvent(self._name, b"\n".join(self._data)))
        self._name, self._data, self._size = b"", [], 0

    def _check(self) -> None:
        if self._size + len(self._line) > self._limit:
            raise EventTooLarge(f"an event of more than {self._limit:,} bytes")
