"""Calls in both directions over one stream, each a JSON object on a line of its own."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any

LINE_BYTES = 1 << 26  # a prompt is one line

Handler = Callable[..., Awaitable[Any]]


class RpcLine:
    """One end of the stream. `serve` must run for calls to be answered."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handlers: Mapping[str, Handler]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handlers = handlers
        self._numbers = count(1)
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def call(self, name: str, /, **arguments: Any) -> Any:
        """Return what the other end's handler returns. Raises ConnectionError when the other end is gone.

        What its handler raises is a RuntimeError here, with the other end's traceback.
        """
        if self._is_closed:
            raise ConnectionError("the other end is gone")
        number = next(self._numbers)
        self._open[number] = future = asyncio.get_running_loop().create_future()
        self._write({"call": name, "number": number, "arguments": arguments})
        try:
            return await future
        finally:
            self._open.pop(number, None)

    async def serve(self) -> None:
        """Answer calls until the stream ends; then every open call fails."""
        try:
            while line := await self._reader.readline():
                news = json.loads(line)
                if "call" in news:
                    task = asyncio.create_task(self._answer(news), name=f"call {news['call']}")
                    self._running.add(task)
                    task.add_done_callback(self._running.discard)
                elif (future := self._open.get(news["number"])) is not None and not future.done():
                    if "error" in news:
                        future.set_exception(RuntimeError(news["error"]))
                    else:
                        future.set_result(news["result"])
        except ConnectionError:
            pass  # a killed process resets its stream
        finally:
            self._is_closed = True
            for future in self._open.values():
                if not future.done():
                    future.set_exception(ConnectionError("the other end is gone"))
            for task in self._running:
                task.cancel()
            self._writer.close()

    async def _answer(self, news: Mapping[str, Any]) -> None:
        try:
            fields = {"result": await self._handlers[news["call"]](**news["arguments"])}
        except Exception as error:  # noqa: BLE001 - the caller is told of it
            fields = {"error": "".join(traceback.format_exception(error))}
        if not self._is_closed:
            self._write({"number": news["number"], **fields})

    def _write(self, fields: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(fields, default=str).encode() + b"\n")
