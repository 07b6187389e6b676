"""uvicorn's HTTP and WebSocket protocols, whose connections are counted and wait no longer than their deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from gateway.web.connections import ClientDuty, ConnectionLimiter, HttpConnection

MOST_DRAINED = 256 * 1024  # bytes read for nothing from a WebSocket that we close: uvicorn waits for its close frame


class LimitedServerState(ServerState):
    """uvicorn's state of one server, passed to every protocol, with the server's limiter."""

    def __init__(self, limiter: ConnectionLimiter) -> None:
        super().__init__()
        self.limiter = limiter


def _connection_of(state: ServerState, transport: asyncio.BaseTransport) -> HttpConnection:
    if not isinstance(state, LimitedServerState) or not isinstance(transport, asyncio.Transport):
        raise TypeError("these protocols need a LimitedServerState and a stream transport")
    peer = transport.get_extra_info("peername") or ("",)
    return state.limiter.connection(transport, str(peer[0]))


class _ReportingFlow(FlowControl):
    """Flow control that reports each change of direction."""

    def __init__(self, transport: asyncio.Transport, on_change: Callable[[], None]) -> None:
        super().__init__(transport)
        self._on_change = on_change

    def pause_reading(self) -> None:
        super().pause_reading()
        self._on_change()

    def resume_reading(self) -> None:
        super().resume_reading()
        self._on_change()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._on_change()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._on_change()


class LimitedHttpProtocol(H11Protocol):
    """HTTP/1.1 with a deadline for each header, for each body, and for reading the answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Count the connection and wait for its first header."""
        super().connection_made(transport)
        self._connection = _connection_of(self.server_state, transport)
        self.flow = _ReportingFlow(transport, self._update)
        self._update()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._connection.end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count and handle what came."""
        self._connection.count(len(data))
        super().data_received(data)
        self._update()

    def on_response_complete(self) -> None:
        """Wait for the next header, or for the rest of a body."""
        super().on_response_complete()
        self._update()

    def _update(self) -> None:
        # After an upgrade the connection is the WebSocket protocol's.
        if self.transport.get_protocol() is self:
            self._connection.expect(self._duty())

    def _duty(self) -> ClientDuty | None:
        if self.flow.write_paused or self.transport.is_closing():
            return ClientDuty.READING
        if self.conn.their_state is h11.IDLE:
            return ClientDuty.HEADER
        # A body that we do not read yet is not late.
        if self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused:
            return ClientDuty.BODY
        return None


class LimitedWebSocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket with a deadline until it is accepted and for reading what it is sent, and a limit while it closes."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._state = server_state
        self._drained = 0

    def data_received(self, data: bytes) -> None:
        """Read *data*; abort a connection whose client sends more than a little after our close frame."""
        if self.close_sent:
            self._drained += len(data)
            if self._drained > MOST_DRAINED:
                self.transport.abort()
                return
        super().data_received(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection over from the HTTP protocol."""
        super().connection_made(transport)
        self._connection = _connection_of(self._state, transport)
        self._update()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._connection.end()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._update()

    def resume_writing(self) -> None:
        """Note that the client read."""
        super().resume_writing()
        self._update()

    async def send(self, message: Any) -> None:
        """Send; once the socket is accepted the client owes nothing."""
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # refused with a whole response; uvicorn would log that nothing was sent
        self._update()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """Wait for a closing connection no longer than for a reader."""
        super().on_task_complete(task)
        self._update()

    def _update(self) -> None:
        if not self.writable.is_set() or self.transport.is_closing():
            self._connection.expect(ClientDuty.READING)
        else:
            self._connection.expect(None if self.handshake_complete else ClientDuty.LOGIN)
