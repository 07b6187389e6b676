"""Limits of the web server's connections: their number, and the time each may wait for its client.

uvicorn has no deadline for a header or a body, and counts connections only once a request is complete. Here each
connection counts from the first moment, and waits for its client no longer than `ConnectionLimits` says. Where too
many wait, the one that was silent for longest is closed: a client that sends its request is answered all the same.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import h11
import structlog
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gateway.net.addresses import network_of

log = structlog.get_logger(__name__)

MOST_CONNECTIONS = 4_096
SLOWEST_BODY = 4_000  # bytes a second
_LOGGED_EVERY = 60.0  # seconds
_UNLIMITED = 10_240  # open files where the system names no hard limit; macOS takes no more


class ClientDuty(Enum):
    """The action a connection waits for."""

    HEADER = "header"
    BODY = "body"
    LOGIN = "login"  # a WebSocket that is not accepted yet
    READING = "reading"  # of an answer that the client does not take


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The most connections of a web server, and the seconds a client has for each duty."""

    connections: int = MOST_CONNECTIONS
    header: float = 10.0
    body: float = 20.0  # and as long again, while it comes at SLOWEST_BODY or faster
    login: float = 10.0
    reading: float = 60.0

    @property
    def waiting_limit(self) -> int:
        """Most waiting connections of one address. A trusted proxy has no limit, since many users are behind it.

        Letting a thousand idle ones wait costs less than closing each: their clients would only connect again.
        """
        return max(1, self.connections // 4)

    def seconds(self, duty: ClientDuty) -> float:
        """Return the deadline of *duty*."""
        return float(getattr(self, duty.value))


def raise_open_file_limit() -> int:
    """Raise the limit of open files to the hard limit; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:  # a sandbox may forbid it; what is left is enough to start
            log.warning("web.open_files_limited", limit=soft, reason=str(error))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connection_limit() -> int:
    """Return the most connections of the web server: half the open files are kept for journal and platforms."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, soft // 2)


class HttpConnection:
    """One open connection and what its client owes."""

    __slots__ = ("_duty", "_is_open", "_limiter", "_limits", "_received", "_timer", "_transport", "network")

    def __init__(
        self, transport: asyncio.Transport, network: str, limiter: ConnectionLimiter, limits: ConnectionLimits
    ) -> None:
        self.network = network  # "" = not bounded by address
        self._transport = transport
        self._limiter = limiter
        self._limits = limits
        self._duty: ClientDuty | None = None
        self._received = 0
        self._is_open = True
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, duty: ClientDuty | None) -> None:
        """Wait for *duty* until its deadline; None = the client owes nothing now. Repeating a duty extends nothing."""
        if not self._is_open:
            return
        if duty is not self._duty:
            self._duty, self._received = duty, 0
            self._start_timer()
        self._limiter.note(self, is_waiting=duty is not None)

    def count(self, size: int) -> None:
        """Note that *size* more bytes came."""
        self._received += size

    def drop(self) -> None:
        """Close the connection now, without what is not sent yet."""
        self._transport.abort()

    def end(self) -> None:
        """Forget a connection that is closed."""
        self._is_open, self._duty = False, None
        self._start_timer()
        self._limiter.remove(self._transport)

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._duty is not None:
            seconds = self._limits.seconds(self._duty)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        if self._duty is ClientDuty.BODY and self._received >= self._limits.body * SLOWEST_BODY:
            self._received = 0
            self._start_timer()
            return
        log.debug("web.client_too_slow", duty=self._duty.value if self._duty else "")
        self.drop()


class ConnectionLimiter:
    """All connections of one web server, and which of them wait for their clients, the longest silent first."""

    def __init__(self, limits: ConnectionLimits, *, is_proxy: Callable[[str], bool]) -> None:
        self._limits = limits
        self._is_proxy = is_proxy
        self._open: dict[asyncio.Transport, HttpConnection] = {}
        self._waiting: dict[HttpConnection, None] = {}
        self._by_network: dict[str, dict[HttpConnection, None]] = {}
        self._dropped = 0
        self._logged_at = -_LOGGED_EVERY

    def connection(self, transport: asyncio.Transport, address: str) -> HttpConnection:
        """Return the connection of *transport*, which comes from *address*: a new one, or the one known."""
        known = self._open.get(transport)
        if known is not None:
            return known
        network = "" if self._is_proxy(address) else network_of(address)
        new = self._open[transport] = HttpConnection(transport, network, self, self._limits)
        if len(self._open) > self._limits.connections:
            self._drop(next(iter(self._waiting), new), "connections")
        return new

    def note(self, connection: HttpConnection, *, is_waiting: bool) -> None:
        """Note that *connection* just did something, and whether it waits for its client now."""
        own = self._by_network.get(connection.network, {})
        self._waiting.pop(connection, None)
        own.pop(connection, None)
        if is_waiting:
            self._waiting[connection] = own[connection] = None
            self._by_network[connection.network] = own
            if connection.network and len(own) > self._limits.waiting_limit:
                self._drop(next(iter(own)), "of_one_address")
        elif not own:
            self._by_network.pop(connection.network, None)

    def remove(self, transport: asyncio.Transport) -> None:
        """Forget a closed connection."""
        connection = self._open.pop(transport, None)
        if connection is not None:
            self.note(connection, is_waiting=False)

    def close_all(self) -> None:
        """Close every connection now, without what is not sent yet."""
        for connection in tuple(self._open.values()):
            connection.drop()

    def _drop(self, connection: HttpConnection, too_many: str) -> None:
        self._dropped += 1
        now = time.monotonic()
        # Counted here, not bounded by the log's own filter: a line is made before it is left out.
        if now - self._logged_at >= _LOGGED_EVERY:
            log.warning("web.connections_dropped", too_many=too_many, dropped=self._dropped, open=len(self._open))
            self._logged_at, self._dropped = now, 0
        # It is closed for us now; the transport says so a moment later, when the next one may be here already.
        connection.end()
        connection.drop()


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
