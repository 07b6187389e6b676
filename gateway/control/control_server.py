"""The server of the operator API: Starlette routes on the home's unix socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.control import API, LONGEST_LINE, Conversation, Line, Operation, route_of
from gateway.errors import ParlourError, UserError
from gateway.home import full_disk, is_full_disk, short_socket_path
from gateway.installation import program_version, with_operator_commands
from gateway.web.connections import ConnectionLimiter, ConnectionLimits
from gateway.web.server import build_server

log = structlog.get_logger(__name__)

_DAY = 86_400.0  # seconds
# A terminal that is suspended reads nothing for as long as its user likes.
_LIMITS = ConnectionLimits(connections=64, header=10.0, body=10.0, reading=_DAY)
_QUEUED_LINES = 64
_BAD_REQUEST, _NOT_FOUND, _TOO_LARGE, _FAILED, _STOPPED = 400, 404, 413, 500, 503
_OTHER_VERSION = "are both of the same version?"


class ControlServer:
    """Serves operations and conversations on a socket; only the owner of the home may open one on it."""

    def __init__(
        self, path: Path, operations: Mapping[str, Operation], conversations: Mapping[str, Conversation] | None = None
    ) -> None:
        self._path = path
        self._running: set[RunningOperation] = set()
        routes: list[BaseRoute] = [Route(API, self._describe)]
        routes += [self._operation_route(name, run) for name, run in operations.items()]
        routes += [self._conversation_route(name, run) for name, run in (conversations or {}).items()]
        self._names = sorted([*operations, *(conversations or ())])
        self._app = Starlette(
            routes=routes,
            exception_handlers={HTTPException: _refuse},
        )
        self._started = asyncio.Event()

    async def serve(self) -> None:
        """Serve until cancelled; then end every operation and conversation, and remove the socket."""
        # This process holds the lock of the home, so an existing socket belongs to a process that has died.
        self._path.unlink(missing_ok=True)
        limiter = ConnectionLimiter(_LIMITS, is_proxy=lambda _: True)
        server = build_server(
            self._app,
            limiter,
            self._started.set,
            ws_max_size=LONGEST_LINE,
            ws_ping_interval=None,  # a suspended terminal answers no ping
            timeout_graceful_shutdown=1,
        )
        serving = asyncio.create_task(server.serve(sockets=[_bind(self._path)]), name="control server")
        try:
            await asyncio.shield(serving)
        finally:
            self._started.clear()
            # Closing first: the end of an operation that is cancelled here must not look like its result.
            limiter.close_all()
            for operation in tuple(self._running):
                await operation.cancel()
            server.stop()
            await serving
            self._remove()

    def _remove(self) -> None:
        # The next start removes what cannot be removed; a stop that failed here would not give its turns back.
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("control.socket_left", error=error.strerror)

    async def wait_listening(self) -> None:
        """Return when the socket takes connections."""
        await self._started.wait()

    async def _describe(self, _: Request) -> Response:
        return JSONResponse({"version": program_version(), "operations": self._names})

    def _operation_route(self, name: str, run: Operation) -> Route:
        async def respond(request: Request) -> Response:
            return await respond_with(name, run(await read_arguments(request)), self._running)

        return Route(route_of(name), respond, methods=["POST"])

    def _conversation_route(self, name: str, run: Conversation) -> WebSocketRoute:
        async def converse(websocket: WebSocket) -> None:
            await websocket.accept()
            connection = WebSocketConnection(websocket)
            try:
                await run({}, connection)
            except Exception as error:  # noqa: BLE001 - the service boundary; `_error_of` logs what is no known error
                if not isinstance(error, ConnectionError):
                    await connection.send_error(_error_of(name, error)[0])
            await connection.close()

        return WebSocketRoute(route_of(name), converse)


async def respond_with(name: str, lines: AsyncIterator[Line], running: set[RunningOperation]) -> Response:
    """Return the response to a call of the operation *name*, which is among *running* until it has ended."""
    operation = RunningOperation(name, lines, running)
    first = await operation.next_message()
    if first is not None and "error" in first:
        return JSONResponse(first, operation.status)
    return OperationResponse(operation, first)


class RunningOperation:
    """One operation in a separate task: a client that disconnects does not interrupt it before its next line."""

    def __init__(self, name: str, lines: AsyncIterator[Line], running: set[RunningOperation]) -> None:
        self.status = _FAILED  # of the response, when the first message is an error
        self._name = name
        self._messages: asyncio.Queue[Line | None] = asyncio.Queue(_QUEUED_LINES)
        self._is_abandoned = False
        self._task = asyncio.create_task(self._run(lines), name=f"operation {name}")
        running.add(self)
        self._task.add_done_callback(lambda _: running.discard(self))

    async def next_message(self) -> Line | None:
        """Return the next message of the response; None after the last one."""
        return await self._messages.get()

    async def encode(self, message: Line | None) -> AsyncIterator[bytes]:
        """Yield the response body, of which *message* was taken already."""
        while message is not None:
            yield json.dumps(message).encode() + b"\n"
            message = await self.next_message()

    def abandon(self) -> None:
        """Let the operation end at its next line, which no client reads."""
        self._is_abandoned = True
        while not self._messages.empty():
            self._messages.get_nowait()

    async def cancel(self) -> None:
        """Cancel the operation and wait for its end."""
        self._task.cancel()
        self.abandon()
        await asyncio.wait({self._task})

    async def _run(self, lines: AsyncIterator[Line]) -> None:
        try:
            async for line in lines:
                if self._is_abandoned:
                    return
                await self._messages.put({"line": line})
        except asyncio.CancelledError:
            self.abandon()
            self.status = _STOPPED
            self._messages.put_nowait(
                {"error": "the gateway is stopping; try again when it has restarted", "exit_code": 2}
            )
            raise
        except Exception as error:  # noqa: BLE001 - the service boundary: a bug in one operation ends that call alone
            message, self.status = _error_of(self._name, error)
            await self._messages.put(message)
        await self._messages.put(None)


class OperationResponse(StreamingResponse):
    """The messages of an operation as JSON lines."""

    def __init__(self, operation: RunningOperation, first: Line | None) -> None:
        super().__init__(operation.encode(first), media_type="application/x-ndjson")
        self._operation = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response; a client that disconnects leaves the operation on its own."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._operation.abandon()


class WebSocketConnection:
    """The gateway's end of a conversation."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> Line | None:
        """Return the next line; None when the client has disconnected. Raises UserError for other messages."""
        try:
            data = await self._websocket.receive_text()
        except (WebSocketDisconnect, RuntimeError):
            return None
        return _parse_object(data)

    async def send(self, line: Line) -> None:
        """Send one line, waiting while the client is slow."""
        try:
            await self._websocket.send_text(json.dumps({"line": line}))
        except (WebSocketDisconnect, RuntimeError, OSError):
            raise ConnectionError("the client has disconnected") from None

    async def send_error(self, message: Line) -> None:
        """Send the error that ends the conversation, if the client is still connected."""
        with suppress(WebSocketDisconnect, RuntimeError, OSError):
            await self._websocket.send_text(json.dumps(message))

    async def close(self) -> None:
        """Close the conversation as one that ended."""
        with suppress(WebSocketDisconnect, RuntimeError, OSError):
            await self._websocket.close()


async def read_arguments(request: Request) -> Line:
    """Return the arguments of a call. Raises HTTPException for a body that is too long or no JSON object."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_LINE:
            raise HTTPException(_TOO_LARGE, f"arguments are at most {LONGEST_LINE} bytes")
    return _parse_object(body.decode("utf-8", "replace"))


def _parse_object(text: str) -> Line:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise HTTPException(_BAD_REQUEST, "arguments must be one JSON object")
    return value


async def _refuse(request: Request, error: Exception) -> Response:
    """Return the response to a request that reaches no operation."""
    status = error.status_code if isinstance(error, HTTPException) else _FAILED
    text = str(getattr(error, "detail", "")) or "the request was refused"
    if status == _NOT_FOUND:
        text = f"the running gateway ({program_version()}) has no operation {request.url.path}; {_OTHER_VERSION}"
    return JSONResponse({"error": text, "exit_code": 2}, status)


def _error_of(name: str, error: Exception) -> tuple[dict[str, Any], int]:
    """Return the message and the HTTP status for an error of an operation; log what the operator cannot fix."""
    if isinstance(error, ParlourError):
        text = with_operator_commands(str(error) or type(error).__name__)
        code, status = (error.exit_code, _BAD_REQUEST) if isinstance(error, UserError) else (1, _FAILED)
        return {"error": text, "exit_code": code}, status
    if isinstance(error, HTTPException):
        return {"error": error.detail, "exit_code": 2}, error.status_code
    if isinstance(error, OSError):  # a full disk, or a file that may not be read
        log.warning("control.os_error", operation=name, error=type(error).__name__, number=error.errno)
        text = full_disk(error) if is_full_disk(error) else f"{name} failed: {error.strerror or error}"
    else:
        log.error("control.failed", operation=name, exc_info=error)
        text = f"{name} failed; see the gateway's log for the reason"
    return {"error": text, "exit_code": 1}, _FAILED


def _bind(path: Path) -> socket.socket:
    """Return a socket bound to *path*; no other user can connect to it at any time."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_socket_path(path) as address:
            listener.bind(address)
        path.chmod(0o600)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
