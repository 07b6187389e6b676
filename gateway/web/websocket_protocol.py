"""uvicorn's WebSocket protocol, with the deadlines of `gateway.web.connections`. Loaded for the first WebSocket."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from gateway.web.connections import ClientDuty, connection_of

MOST_DRAINED = 256 * 1024  # bytes read for nothing from a WebSocket that we close: uvicorn waits for its close frame


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
        self._connection = connection_of(self._state, transport)
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
