"""The terminal chat's server side: one attached terminal is one window, served over the control socket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from channels.frames.client_connection import ClientConnection
from channels.frames.frame_channel import FrameChannel
from gateway.events import SessionKey

OWNER = "owner"  # whoever can open the control socket owns the home


class ConsoleChannel(FrameChannel):
    """Terminals of the owner; all of them see one chat."""

    # A line of the control socket has a megabyte, and its JSON may take three times as many bytes as a window's.
    page_bytes = 256_000

    async def attach(
        self,
        receive: Callable[[], Awaitable[Mapping[str, Any] | None]],
        send: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Serve one terminal until `receive` gives None or `send` raises OSError."""
        await self.attend(ClientConnection(SessionKey(self.name, OWNER), OWNER), receive, send)
