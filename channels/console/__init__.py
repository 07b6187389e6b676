"""The terminal chat: `parlour chat`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from gateway.channel import Channel, ChannelContext
from gateway.ports.channel import PlatformTraits


class ConsoleSettings(BaseModel):
    """Settings of this platform alone; the gateway adds the common ones of every channel."""

    traits: ClassVar[PlatformTraits] = PlatformTraits(chat_is_person=True, is_local=True, saves_files=True)


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
