"""The terminal chat: `parlour chat`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from channels.console.settings import ConsoleSettings
from gateway.channel import Channel, ChannelContext


class ConsolePlugin:
    """The kind `console`."""

    name = "console"
    settings: type[Any] = ConsoleSettings

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel; terminals connect through `ConsoleChannel.attach`."""
        from channels.web.frame_channel import ConsoleChannel

        return ConsoleChannel(context)

    def routes(self, channel: Channel) -> Sequence[Any]:  # noqa: ARG002 - the port's signature
        """Return nothing: a terminal speaks over the control socket."""
        return ()

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:  # noqa: ARG002 - the port's signature
        """Return nothing: there is nothing to set wrong."""
        return ()


plugin = ConsolePlugin()
