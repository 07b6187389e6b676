"""The operator API: HTTP over a unix socket, by which other commands use the gateway that runs on a home.

Each operation is one route: ``parlour people list`` is ``POST /v1/people/list`` with a JSON object of arguments. The
response is JSON lines, one ``{"line": {…}}`` per line of the answer, so that no field of an answer is taken for a
field of the protocol. An error is ``{"error": "one line", "exit_code": 2}``: the body of a 4xx or 5xx response or,
after the first line, the last line of the response. A conversation (``parlour chat``) is a WebSocket whose messages
have the same form. Access is by file mode: the socket is 0600 in a 0700 folder, so its peer is the owner of the home.

The client is here too; it imports aiohttp and websockets only once a gateway is known to run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from gateway.errors import UserError
from gateway.home import Home, in_use, is_held, short_socket_path

if TYPE_CHECKING:
    import aiohttp
    from websockets.asyncio.client import ClientConnection

API = "/v1"
LONGEST_LINE = 1_048_576  # bytes of the arguments, and of one message of a conversation

Line: TypeAlias = Mapping[str, Any]
Operation: TypeAlias = Callable[[Line], AsyncIterator[Line]]


class ControlConnection(Protocol):
    """One end of a conversation."""

    async def receive(self) -> Line | None:
        """Return the other end's next line; None once it has closed."""

    async def send(self, line: Line) -> None:
        """Send one line; raise OSError when the other end has closed."""


Conversation: TypeAlias = Callable[[Line, ControlConnection], Awaitable[None]]


class OperationFailed(UserError):
    """An operation failed in the running gateway, with the text and the exit code of its error."""

    def __init__(self, text: str, exit_code: int = 2) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def route_of(name: str) -> str:
    """Return the path of the operation called *name*."""
    return f"{API}/{name.replace(' ', '/')}"


_STOPPED = "the gateway stopped before it answered; try again when it has restarted"
_OTHER_PROTOCOL = "the running gateway has another version than this command; restart it with this version"


@asynccontextmanager
async def connect(home: Home) -> AsyncIterator[GatewayClient | None]:
    """Return a client of the gateway that runs on *home*; None when none runs.

    Raises UserError when a process holds the home but does not listen: it is starting or stopping.
    """
    with short_socket_path(home.socket) as address:
        try:
            _, writer = await asyncio.open_unix_connection(address)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            if is_held(home):
                raise UserError(f"{in_use(home)} (it is starting or stopping: try again in a moment)") from None
            yield None
            return
        except OSError as error:
            raise UserError(
                f"{home.socket} cannot be opened ({error.strerror}); run this as the user who runs Parlour"
            ) from None
        writer.close()
        await writer.wait_closed()  # or the gateway would count it beside the next one
        yield GatewayClient(address)


class GatewayClient:
    """Calls operations of a running gateway."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def call(self, name: str, arguments: Line) -> AsyncIterator[Line]:
        """Run one operation and yield its lines; raise UserError when it failed or its gateway stopped."""
        import aiohttp

        # Without a timeout, because backups and forgetting take as long as they take.
        async with aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self._address),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=LONGEST_LINE,
        ) as client:
            try:
                async with client.post(f"http://gateway{route_of(name)}", json=dict(arguments)) as response:
                    if response.status >= 400:
                        raise await _error_of(response)
                    async for text in response.content:
                        yield _line_of(json.loads(text))
            except (aiohttp.ClientError, OSError):
                raise UserError(_STOPPED) from None

    @asynccontextmanager
    async def converse(self, name: str) -> AsyncIterator[GatewayConversation]:
        """Start a conversation with the operation called *name*; close it on exit."""
        from websockets.asyncio.client import unix_connect
        from websockets.exceptions import WebSocketException

        opening = unix_connect(
            self._address,
            f"ws://gateway{route_of(name)}",
            max_size=LONGEST_LINE,
            ping_interval=None,
            compression=None,
            close_timeout=1,
        )
        try:
            websocket = await opening
        except (WebSocketException, EOFError, OSError):
            raise UserError(_STOPPED) from None
        try:
            yield GatewayConversation(websocket)
        finally:
            await websocket.close()


class GatewayConversation:
    """The client's end of a conversation."""

    def __init__(self, websocket: ClientConnection) -> None:
        self._websocket = websocket

    async def receive(self) -> Line | None:
        """Return the next line; None when the conversation has ended or its gateway has stopped.

        Raises UserError when the operation failed.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            return _line_of(json.loads(await self._websocket.recv()))
        except ConnectionClosed:
            return None

    async def send(self, line: Line) -> None:
        """Send one line; raise ConnectionError when the gateway has stopped."""
        from websockets.exceptions import ConnectionClosed

        try:
            await self._websocket.send(json.dumps(line))
        except ConnectionClosed:
            raise ConnectionError("the gateway has stopped") from None


def _line_of(message: Any) -> Line:
    if "error" in message:
        raise OperationFailed(str(message["error"]), int(message.get("exit_code", 2)))
    line: Line = message["line"]
    return line


async def _error_of(response: aiohttp.ClientResponse) -> UserError:
    with suppress(ValueError):
        message = json.loads(await response.read())
        if isinstance(message, dict) and "error" in message:
            return OperationFailed(str(message["error"]), int(message.get("exit_code", 2)))
    return UserError(f"{_OTHER_PROTOCOL} (HTTP {response.status})")
