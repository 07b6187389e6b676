"""A chat completion as it comes over HTTP, streamed or whole, whichever library made the connection."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from agent.llm.chat_model import ANSWER_CHARS
from agent.llm.event_stream import EventStreamDecoder, EventTooLarge
from agent.llm.provider_errors import ProviderHttpError, is_http_error
from gateway.errors import InvalidModelReply

# Of an event, or of a body where a stream was asked for: a character is at most 12 bytes of JSON.
STREAM_BYTES = 16 * ANSWER_CHARS
_LAST_BYTES = 0.2  # seconds: after [DONE] the connection can be used again if the end of the response comes
_DONE = b"[DONE]"


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
