"""uvicorn's HTTP protocol, whose connections are counted and wait no longer than their deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gateway.web.connections import ClientDuty, ConnectionLimiter, HttpConnection


class LimitedServerState(ServerState):
    """uvicorn's state of one server, passed to every protocol, with the server's limiter."""

    def __init__(self, limiter: ConnectionLimiter) -> None:
        super().__init__()
        self.limiter = limiter


def connection_of(state: ServerState, transport: asyncio.BaseTransport) -> HttpConnection:
    """Return the counted connection of *transport*."""
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
        self._connection = connection_of(self.server_state, transport)
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
