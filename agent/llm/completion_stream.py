"""A chat completion as it comes over HTTP, as server-sent events or whole, whichever library made the connection."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from agent.llm.chat_model import ANSWER_CHARS
from agent.llm.provider_errors import ProviderHttpError, is_http_error
from gateway.errors import InvalidModelReply

# Of an event, or of a body where a stream was asked for: a character is at most 12 bytes of JSON.
STREAM_BYTES = 16 * ANSWER_CHARS
_LAST_BYTES = 0.2  # seconds: after [DONE] the connection can be used again if the end of the response comes
_DONE = b"[DONE]"


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


class JsonObject(dict[str, Any]):
    """A JSON object whose keys are attributes too. Missing attributes read as None."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


class CompletionStream:
    """A streamed answer; see `ProviderStream`."""

    def __init__(
        self,
        read: Callable[[], Awaitable[bytes]],
        model: str,
        body: JsonObject | None,
        broken: type[Exception],
    ) -> None:
        """*read* returns what has arrived, b"" at the end, and raises *broken* where the response breaks off."""
        self.body = body
        self.is_finished = False
        self._get = read
        self._broken = broken
        self._model = model
        self._decoder = EventStreamDecoder(limit=STREAM_BYTES)
        self._chunks: deque[JsonObject] = deque()
        self._is_over = False

    def __aiter__(self) -> CompletionStream:
        return self

    async def __anext__(self) -> JsonObject:
        while not self._chunks:
            if self._is_over:
                raise StopAsyncIteration
            await self._read()
        chunk = self._chunks.popleft()
        if chunk.error:
            raise error_in_body(chunk.error)
        choices = chunk.choices
        if isinstance(choices, list) and choices and getattr(choices[0], "finish_reason", None):
            self.is_finished = True
        return chunk

    async def _read(self) -> None:
        try:
            piece = await self._get()
        except self._broken:
            if not self.is_finished:
                raise
            piece = b""  # the model had ended its answer; only the end of the response is missing
        try:
            events = self._decoder.feed(piece) if piece else self._decoder.close()
        except EventTooLarge as error:
            raise InvalidModelReply(f"{self._model}: {error}") from None
        for event in events:
            if event.data.strip() == _DONE:
                self.is_finished = self._is_over = True
                await self._read_end()
                return
            if piece:
                self._chunks.append(parse_object(event.data, self._model, is_error=event.name == b"error"))
            else:
                self._take_last(event.data)
        self._is_over = not piece

    def _take_last(self, data: bytes) -> None:
        """Take an event that has no end: it is a whole chunk, or a part of one, which is dropped."""
        with suppress(InvalidModelReply):
            self._chunks.append(parse_object(data, self._model))

    async def _read_end(self) -> None:
        with suppress(TimeoutError, self._broken):
            async with asyncio.timeout(_LAST_BYTES):
                while await self._get():
                    pass


def parse_body(data: bytes, model: str) -> JsonObject:
    """Return a whole answer. Raises InvalidModelReply, or ProviderHttpError for an error with status 200."""
    body = parse_object(data, model)
    if body.error and not body.choices:
        raise error_in_body(body.error)
    return body


def parse_object(data: bytes, model: str, *, is_error: bool = False) -> JsonObject:
    """Return *data* as an object. Raises InvalidModelReply. *is_error*: it is the object of an error."""
    try:
        body = json.loads(data, object_hook=JsonObject)
    except (ValueError, RecursionError):
        raise InvalidModelReply(f"{model}: the answer is not JSON") from None
    if not isinstance(body, JsonObject):
        raise InvalidModelReply(f"{model}: the answer is not a JSON object")
    return JsonObject(error=body) if is_error and not body.error else body


def error_in_body(error: object) -> ProviderHttpError:
    """Return the error in the body of an answer with status 200; one without a code counts as HTTP 500."""
    code = error.get("code") if isinstance(error, Mapping) else None
    status = int(code) if isinstance(code, int | str) and str(code).isascii() and str(code).isdigit() else 500
    return ProviderHttpError(status if is_http_error(status) else 500, json.dumps(error), {})
