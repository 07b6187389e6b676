"""The operator API: HTTP over a unix socket, by which other commands use the gateway that runs on a home.

Each operation is one route: ``parlour people list`` is ``POST /v1/people/list`` with a JSON object of arguments. The
response is JSON lines, one ``{"line": {…}}`` per line of the answer, so that no field of an answer is taken for a
field of the protocol. An error is ``{"error": "one line", "exit_code": 2}``: the body of a 4xx or 5xx response or,
after the first line, the last line of the response. A conversation (``parlour chat``) is a WebSocket whose messages
have the same form. Access is by file mode: the socket is 0600 in a 0700 folder, so its peer is the owner of the home.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from gateway.errors import UserError

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
