"""The thread of a session: psycopg's connections block, and the rules are not coroutines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from gateway.store.database import StoreConnection

T = TypeVar("T")


class PostgresThread:
    """The one thread that uses a connection, which it opens and closes.

    A daemon: confirmed operations are durable, so a failing process must not wait for it.
    """

    def __init__(self, connector: Callable[[], StoreConnection]) -> None:
        self._connector = connector
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[tuple[asyncio.Future[Any], Callable[[StoreConnection], Any]] | None] = SimpleQueue()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def open(cls, connector: Callable[[], StoreConnection]) -> PostgresThread:
        """Start the thread and open the connection; when that fails, the thread has ended, and the error is raised."""
        thread = cls(connector)
        Thread(target=thread._work, name="store writer", daemon=True).start()
        try:
            await asyncio.shield(thread._opened)
        except BaseException:
            await thread.close()
            raise
        return thread

    async def call(self, work: Callable[[StoreConnection], T]) -> T:
        """Run *work* on the thread and return its result."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put((future, work))
        return await future

    async def close(self) -> None:
        """Close the connection and end the thread."""
        self._calls.put(None)
        await asyncio.shield(self._ended)

    def _work(self) -> None:
        try:
            connection = self._connector()
        except BaseException as error:  # noqa: BLE001 - raised where the connection was asked for
            self._answer(self._opened, None, error)
        else:
            self._answer(self._opened, None, None)
            while (asked := self._calls.get()) is not None:
                self._run(connection, *asked)
            connection.close()
        self._answer(self._ended, None, None)

    def _run(self, connection: StoreConnection, future: asyncio.Future[Any], work: Callable[..., Any]) -> None:
        try:
            self._answer(future, work(connection), None)
        except BaseException as error:  # noqa: BLE001 - raised where the work was asked for
            self._answer(future, None, error)

    def _answer(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
