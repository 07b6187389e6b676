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
HEADER_BYTES = 65_536  # of one header of an answer: proxies send policies of 9,000 bytes
_LAST_BYTES = 0.2  # seconds: after [DONE] the connection can be used again if the end of the response comes
_DONE = b"[DONE]"
_LONGEST_END = 32  # bytes
_LIST = re.compile(rb"\[\s*[\]{]")  # others are words in brackets
_CODES = ("code", "status", "status_code", "http_code", "http_status")  # of an error; the first that is a status counts


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
            self._is_first = not line
        if not line:
            self._dispatch(events)
            return
        field, _, value = line.partition(b":")  # a comment has an empty field
        value = value.removeprefix(b" ")
        if field in (b"data", b"error"):
            self._data.append(value)
            self._size += len(value) + 1
            self._check()
            self._name = field if field == b"error" else self._name  # as llama.cpp sends it
        elif field == b"event":
            self._name = value

    def _dispatch(self, events: list[ServerSentEvent]) -> None:
        if self._data:
            events.append(ServerSentEvent(self._name, b"\n".join(self._data)))
        self._name, self._data, self._size = b"", [], 0

    def _check(self) -> None:
        if self._size + len(self._line) > self._limit:
            raise EventTooLarge(f"an event of more than {self._limit:,} bytes")


class AnswerClock:
    """The time limit of one answer, which each byte from the server moves, up to an end that nothing moves."""

    def __init__(self, first: float, silence: float, total: float) -> None:
        """*first* is the number of seconds to the first words, *silence* between two pieces, *total* for all."""
        self._loop = asyncio.get_running_loop()
        started = self._loop.time()
        self._silence = silence
        self._end = started + total
        self._first = started + first  # a server that says early that it lives may take as long as a silent one
        self._at = min(self._first, self._end)
        self._limit = asyncio.timeout_at(self._at)

    async def __aenter__(self) -> AnswerClock:
        await self._limit.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._limit.__aexit__(*error)  # raises TimeoutError where the limit was reached

    def note_bytes(self) -> None:
        """Take any byte as a sign of life."""
        at = min(max(self._loop.time() + self._silence, self._first), self._end)
        # A timer for each piece costs more than reading it, so the limit may end by a hundredth of the silence early.
        if not 0 <= at - self._at <= self._silence / 100 and not self._limit.expired():
            self._at = at
            self._limit.reschedule(at)

    def note_words(self) -> None:
        """Take a piece of the answer: from now on only the silence counts."""
        self._first = 0.0
        self.note_bytes()


class JsonObject(dict[str, Any]):
    """A JSON object whose keys are attributes too. Missing attributes read as None."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


class CompletionStream:
    """A streamed answer; see `ProviderStream`."""

    def __init__(self, read: Callable[[], Awaitable[bytes]], model: str, broken: type[Exception]) -> None:
        """*read* returns the next bytes, b"" at the end, and raises *broken* where the response breaks off."""
        self.body: list[JsonObject] | None = None
        self.is_finished = False
        self.ends_unmarked = False
        self._get = read
        self._broken = broken
        self._model = model
        self._decoder = EventStreamDecoder(limit=STREAM_BYTES)
        self._chunks: deque[JsonObject] = deque()
        self._first = b""  # what was read to tell an event from a body
        self._is_over = False
        self._has_reason = False  # the finish reason was read

    async def open(self, kind: str) -> None:
        """Tell events from one body by their first bytes, and read a body, whatever its content type *kind*.

        Raises InvalidModelReply for a web page.
        """
        is_json = kind.rpartition("/")[2].rpartition("+")[2] == "json"
        data = bytearray()
        while len(start := _stripped(data)) < _LONGEST_FIELD:
            if not (piece := await self._get()):
                break
            data += piece
            if len(data) > STREAM_BYTES:
                raise InvalidModelReply(f"{self._model}: more than {STREAM_BYTES:,} bytes of nothing")
        is_events = _EVENTS.match(start) is not None
        if start.startswith(b"<") or (kind == "text/html" and not is_events and not start.startswith(b"{")):
            raise InvalidModelReply(f"{self._model}: the answer is a web page")
        if not start.startswith((b"{", b"[")) and (is_events or not is_json):
            self._first = bytes(data)
            return
        while piece := await self._get():
            data += piece
            if len(data) > STREAM_BYTES:
                raise InvalidModelReply(f"{self._model}: an answer of more than {STREAM_BYTES:,} bytes")
        self.body = parse_answer(bytes(data), self._model)

    def __aiter__(self) -> CompletionStream:
        return self

    async def __anext__(self) -> JsonObject | None:
        if not self._chunks:
            if self._is_over:
                raise StopAsyncIteration
            await self._read()
        if not self._chunks:
            return None
        chunk = self._chunks.popleft()
        # Read as dictionaries, here and in `plain_words`: an attribute costs five times as much, for each chunk.
        choices = chunk.get("choices")
        if (not choices or "error" in chunk) and not self._has_reason:
            check_error(chunk)  # behind the end of an answer it takes nothing back
        if isinstance(choices, list) and choices and isinstance(choices[0], dict) and choices[0].get("finish_reason"):
            self.is_finished = self._has_reason = True
        return chunk

    async def _read(self) -> None:
        try:
            piece, self._first = self._first or await self._get(), b""
        except self._broken:
            if not self.is_finished:
                raise
            piece = b""  # the model had ended its answer; only the end of the response is missing
        try:
            events = self._decoder.feed(piece) if piece else self._decoder.close()
        except EventTooLarge as error:
            raise InvalidModelReply(f"{self._model}: {error}") from None
        is_whole = True
        for event in events:
            if _is_end(event):
                self.is_finished = self._is_over = True
                await self._read_end()
                return
            try:
                self._chunks += parse_event(event, self._model)
            except InvalidModelReply:
                if piece:
                    raise
                is_whole = False  # a part of an event, with which the stream was cut off
        self._is_over = not piece
        self.ends_unmarked = self._is_over and is_whole

    async def _read_end(self) -> None:
        with suppress(TimeoutError, self._broken):
            async with asyncio.timeout(_LAST_BYTES):
                while await self._get():
                    pass


_LONGEST_FIELD = 6  # characters of a field's name in an event, with its colon
_EVENTS = re.compile(rb"(?:data|event|id|retry|error)?:|(?:event|retry|error)")


def _stripped(data: bytes | bytearray) -> bytes:
    """Return *data* without the blank lines that keep a connection open, and without a byte order mark."""
    return bytes(data).lstrip().removeprefix(_BOM).lstrip()


def parse_answer(data: bytes, model: str) -> list[JsonObject]:
    """Return a whole answer: one body, or the chunks of a stream that was not asked for, as events, lines or a list.

    Raises InvalidModelReply, or ProviderHttpError for an error with status 200.
    """
    if _EVENTS.match(start := _stripped(data)) is None:
        bodies = parse_objects(start, model)
    else:
        decoder = EventStreamDecoder(limit=len(data) + 1)
        events = [*decoder.feed(data), *decoder.close()]
        bodies = [each for event in events if not _is_end(event) for each in parse_event(event, model)]
    for body in bodies:
        check_error(body)
    return bodies


def _is_end(event: ServerSentEvent) -> bool:
    """Return True if *event* ends the answer. Some proxies quote the mark, or write it small."""
    return len(event.data) < _LONGEST_END and event.data.strip(b' "').upper() == _DONE


def parse_event(event: ServerSentEvent, model: str) -> list[JsonObject]:
    """Return the chunks of *event*, nearly always one; none if it only keeps the connection open.

    Raises InvalidModelReply.
    """
    is_error = event.name == b"error"
    data = event.data.strip()
    if data.startswith(b"data:"):  # a proxy that makes events of the lines of a stream
        data = data.removeprefix(b"data:").lstrip()
        if data == _DONE:
            return []
    if data.startswith(b"{") or _LIST.match(data):
        return parse_objects(data, model, is_error=is_error)
    if is_error and data:
        return [JsonObject(error=data.decode(errors="replace"))]
    return []  # a heartbeat: nothing, or a word


def plain_words(chunk: object) -> str:
    """Return the words of a chunk that has nothing else in it, as most have; "" for any other."""
    if type(chunk) is not JsonObject or chunk.get("usage") is not None or "error" in chunk:
        return ""
    choices = chunk.get("choices")
    if type(choices) is not list or not choices or type(choice := choices[0]) is not JsonObject:
        return ""
    if choice.get("index"):
        return ""
    delta = choice.get("delta")
    if type(delta) is not JsonObject or choice.get("finish_reason"):
        return ""
    if len(delta) != 1 and (len(delta) != 2 or delta.get("role") != "assistant"):
        return ""
    words = delta.get("content")
    return words if type(words) is str else ""


def check_error(chunk: JsonObject) -> None:
    """Raise ProviderHttpError for an error beside or in place of an answer."""
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], JsonObject) else JsonObject()
    if first.get("delta") or first.get("message"):
        return
    if chunk.error:
        raise error_in_body(chunk.error)
    base = chunk.base_resp  # MiniMax's, which an answer has as well
    has_code = isinstance(base, Mapping) and base.get("status_code") not in (None, 0, "0")
    is_error = chunk.object == "error" or chunk.type == "error" or chunk.success is False
    has_words = any(chunk.get(name) for name in ("detail", "errors")) or (
        isinstance(chunk.message, str) and any(chunk.get(name) for name in _CODES)
    )
    if not choices and (has_code or is_error or has_words):
        raise error_in_body(chunk)


def parse_objects(data: bytes, model: str, *, is_error: bool = False) -> list[JsonObject]:
    """Return the objects in *data*: one, a list of them, or one a line. Raises InvalidModelReply.

    *is_error*: it is the object of an error.
    """
    text = data.decode(errors="replace")  # half a character is no reason to lose an answer
    try:
        try:
            found = _decode(text)
        except ValueError:
            if len(lines := text.split("\n")) < 2:
                raise
            found = [_decode(line) for line in lines if line.strip() and line.strip() != _DONE.decode()]
    except (ValueError, RecursionError):
        raise InvalidModelReply(f"{model}: the answer is not JSON") from None
    bodies = found if isinstance(found, list) else [found]
    if not all(isinstance(each, JsonObject) for each in bodies):
        raise InvalidModelReply(f"{model}: the answer is not a JSON object")
    return [JsonObject(error=each) if is_error and not each.error else each for each in bodies]


_decode = json.JSONDecoder(object_hook=JsonObject, strict=False).decode  # servers leave control characters as they are


def error_in_body(error: object) -> ProviderHttpError:
    """Return the error in the body of an answer with status 200; one without a status counts as HTTP 500."""
    codes = [error.get(name) for name in _CODES] if isinstance(error, Mapping) else []
    found = [int(code) for code in codes if isinstance(code, int | str) and str(code).isascii() and str(code).isdigit()]
    status = next((code for code in found if is_http_error(code)), 500)
    return ProviderHttpError(status, json.dumps(error), {})
