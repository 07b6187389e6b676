"""The chat page: a browser speaks to the bot over a WebSocket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from gateway.channel import Channel, ChannelContext
from gateway.ports.channel import PlatformTraits


class WebSettings(BaseModel):
    """Settings of this platform alone; the gateway adds the common ones of every channel."""

    traits: ClassVar[PlatformTraits] = PlatformTraits(chat_is_person=True, is_local=True, has_uploads=True)


class WebPlugin:
    """The kind `web`."""

    name = "web"
    settings: type[Any] = WebSettings

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel; browsers reach it through its routes."""
        from channels.web.adapter import WebChannel

        return WebChannel(context)

    def routes(self, channel: Channel) -> Sequence[Any]:
        """Return the page, its files, its login and its socket; the block named `web` has the root."""
        from channels.web.adapter import WebChannel
        from channels.web.routes import routes

        if not isinstance(channel, WebChannel):
            raise TypeError(f"these routes serve a WebChannel, not {type(channel).__name__}")
        return routes(channel, prefix="" if channel.name == self.name else f"/{channel.name}")

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:  # noqa: ARG002 - the port's signature
        """Return nothing: there is nothing to set wrong."""
        return ()


plugin = WebPlugin()
