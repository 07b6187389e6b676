"""The unix socket other commands speak through while a gateway runs: JSON lines, both ways.

The first line names an operation: ``{"do": "status", "with": {}}``. Each line of its answer comes as
``{"line": {…}}``, so that no field of it is taken for the protocol's own; the answer ends with ``{"end": true}`` or
``{"error": "one line"}``. Lines of the caller are the operation's own. Whoever can open the socket (0600, in a 0700
folder) is the owner of the home.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import structlog

from gateway.errors import ParlourError, UserError
from gateway.home import Home, full_disk, in_use, is_full_disk, is_held, short_socket_path

log = structlog.get_logger(__name__)

LONGEST_LINE = 1_048_576  # bytes
_CALLS_AT_ONCE = 64
_FIRST_LINE_SECONDS = 10

Line: TypeAlias = Mapping[str, Any]


class ControlConnection(Protocol):
    """One conversation over lines."""

    async def receive(self) -> Line | None:
        """Return the other side's next line; None when it has gone."""
        ...

    async def send(self, line: Line) -> None:
        """Send one line; raise OSError when the other side has gone."""
        ...


Handler: TypeAlias = Callable[[Line, ControlConnection], Awaitable[None]]  # the arguments, the rest of the conversation


class ControlProtocolError(ParlourError):
    """What came is no line of this protocol; the conversation is over."""


class StreamConnection:
    """A connection over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> Line | None:
        """Return the next line; None at the end, BadLine for what is no JSON object or too long."""
        try:
            data = await self._reader.readline()
        except ValueError:
            raise ControlProtocolError(f"a line is at most {LONGEST_LINE} bytes") from None
        except OSError:
            return None
        if not data.endswith(b"\n"):
            return None
        try:
            line = json.loads(data)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            raise ControlProtocolError("a line is one JSON object")
        return line

    async def send(self, line: Line) -> None:
        """Send one line, waiting while the other side is slow."""
        self._writer.write(json.dumps(line).encode() + b"\n")
        await self._writer.drain()


class _AnswerConnection:
    """The gateway's end of one operation: what it sends is framed as a line of the answer."""

    def __init__(self, connection: ControlConnection) -> None:
        self._connection = connection

    async def receive(self) -> Line | None:
        """Return the caller's next line; None when it has gone."""
        return await self._connection.receive()

    async def send(self, line: Line) -> None:
        """Send one line of the answer."""
        await self._connection.send({"line": line})


class ControlServer:
    """Serves operations on a socket; only the owner of the home may open one on it."""

    def __init__(self, path: Path, handlers: Mapping[str, Handler]) -> None:
        self._path = path
        self._handlers = handlers
        self._calls: set[asyncio.Task[None]] = set()
        self._listening = asyncio.Event()

    async def serve(self) -> None:
        """Serve until cancelled; then every conversation is ended and the socket removed."""
        # The home's lock is ours, so a socket that stands there belongs to a process that has died.
        self._path.unlink(missing_ok=True)
        with short_socket_path(self._path) as address:
            server = await asyncio.start_unix_server(self._accept, address, limit=LONGEST_LINE)
        try:
            self._path.chmod(0o600)
            self._listening.set()
            await asyncio.get_running_loop().create_future()  # until cancelled
        finally:
            self._listening.clear()
            server.close()
            for call in self._calls:
                call.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)
            self._remove()

    def _remove(self) -> None:
        # What cannot be removed is removed by the next start; the stop goes on, or turns would not be given back.
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("control.socket_left", error=error.strerror)

    async def wait_listening(self) -> None:
        """Return when the socket takes connections."""
        await self._listening.wait()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._calls) >= _CALLS_AT_ONCE:
            writer.close()
            return
        call = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="control call")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = StreamConnection(reader, writer)
        try:
            with suppress(OSError):
                await self._answer(connection)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, connection: ControlConnection) -> None:
        name = ""
        try:
            async with asyncio.timeout(_FIRST_LINE_SECONDS):
                name, arguments = _request(await connection.receive())
            await self._named(name)(arguments, _AnswerConnection(connection))
        except TimeoutError:
            await connection.send({"error": "nothing was asked"})
        except ParlourError as wrong:
            await connection.send({"error": str(wrong)})
        except ConnectionError as gone:
            log.debug("control.gone", operation=name, error=type(gone).__name__)
        except OSError as wrong:  # the operation's own: a disk that is full, a file that may not be read
            log.warning("control.os_error", operation=name, error=type(wrong).__name__, number=wrong.errno)
            line = full_disk(wrong) if is_full_disk(wrong) else f"{name} failed: {wrong.strerror or wrong}"
            with suppress(OSError):
                await connection.send({"error": line})
        except Exception:  # the service boundary: a bug in one operation ends that call alone
            log.exception("control.failed", operation=name)
            await connection.send({"error": f"{name} failed; the gateway's log says why"})
        else:
            await connection.send({"end": True})

    def _named(self, name: str) -> Handler:
        if name not in self._handlers:
            raise ControlProtocolError("this gateway knows no such operation; are both of the same version?")
        return self._handlers[name]


def _request(line: Line | None) -> tuple[str, Line]:
    arguments = (line or {}).get("with", {})
    if line is None or not isinstance(arguments, dict):
        raise ControlProtocolError("a request names an operation and its arguments")
    return str(line.get("do", "")), arguments


@asynccontextmanager
async def connect(home: Home) -> AsyncIterator[ControlConnection | None]:
    """Open a conversation with the gateway that runs on *home*; None when none does.

    Raises UserError when a process holds the home but does not listen (yet, or any more).
    """
    try:
        with short_socket_path(home.socket) as address:
            reader, writer = await asyncio.open_unix_connection(address, limit=LONGEST_LINE)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        if is_held(home):
            raise UserError(f"{in_use(home)} (it is starting or stopping: try again in a moment)") from None
        yield None
        return
    except OSError as wrong:
        raise UserError(
            f"{home.socket} cannot be opened ({wrong.strerror}); run this as the user who runs Parlour"
        ) from None
    try:
        yield StreamConnection(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


class OperationCall:
    """The caller's end of one operation: lines both ways until it ends."""

    def __init__(self, connection: ControlConnection) -> None:
        self._connection = connection
        self.has_ended = False  # False when `receive` returned None: the gateway has gone

    async def receive(self) -> Line | None:
        """Return the next line; None when the operation has ended or its gateway has gone.

        Raises UserError with the line of an operation that failed.
        """
        frame = await self._connection.receive()
        if frame is None:
            return None
        if "error" in frame:
            raise UserError(str(frame["error"]))
        self.has_ended = "end" in frame
        line: Line | None = None if self.has_ended else frame["line"]
        return line

    async def send(self, line: Line) -> None:
        """Send the operation one line; raise OSError when the gateway has gone."""
        await self._connection.send(line)


async def start_call(connection: ControlConnection, name: str, arguments: Line) -> OperationCall:
    """Ask for one operation and return the caller's end of it."""
    await connection.send({"do": name, "with": arguments})
    return OperationCall(connection)


async def call(connection: ControlConnection, name: str, arguments: Line) -> AsyncIterator[Line]:
    """Run one operation and yield its lines; raise UserError when it failed or its gateway has gone."""
    operation = await start_call(connection, name, arguments)
    while (line := await operation.receive()) is not None:
        yield line
    if not operation.has_ended:
        raise UserError("the gateway stopped before it had answered; ask again when it is back")


class LocalConnection:
    """One end of a conversation inside a process, for operations that run without a socket."""

    def __init__(self, sending: asyncio.Queue[Line | None], receiving: asyncio.Queue[Line | None]) -> None:
        self._sending = sending
        self._receiving = receiving

    async def receive(self) -> Line | None:
        """Return the other end's next line; None once it has closed."""
        return await self._receiving.get()

    async def send(self, line: Line) -> None:
        """Hand one line over."""
        await self._sending.put(line)

    async def close(self) -> None:
        """Tell the other end that nothing more comes."""
        await self._sending.put(None)


def connection_pair() -> tuple[LocalConnection, LocalConnection]:
    """Return the two ends of a conversation."""
    there: asyncio.Queue[Line | None] = asyncio.Queue(64)
    back: asyncio.Queue[Line | None] = asyncio.Queue(64)
    return LocalConnection(there, back), LocalConnection(back, there)
