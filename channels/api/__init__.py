"""The API: programs that speak OpenAI's protocol write to the bot, each key for one person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from gateway.channel import Channel, ChannelContext
from gateway.ports.channel import PlatformTraits


class ApiSettings(BaseModel):
    """Settings of this platform alone; the gateway adds the common ones of every channel."""

    traits: ClassVar[PlatformTraits] = PlatformTraits(
        chat_is_person=True, is_local=True, has_uploads=True, shows_notices=False
    )


class ApiPlugin:
    """The kind `api`."""

    name = "api"
    settings: type[Any] = ApiSettings

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel; programs reach it through its routes."""
        from channels.api.adapter import ApiChannel

        return ApiChannel(context)

    def routes(self, channel: Channel) -> Sequence[Any]:
        """Return the routes below /v1; those of a block with another name are below /hooks/NAME/v1."""
        from channels.api.adapter import ApiChannel
        from channels.api.routes import routes

        if not isinstance(channel, ApiChannel):
            raise TypeError(f"these routes serve an ApiChannel, not {type(channel).__name__}")
        return routes(channel, prefix="" if channel.name == self.name else f"/hooks/{channel.name}")

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:  # noqa: ARG002 - the port's signature
        """Return nothing: there is nothing to set wrong."""
        return ()


plugin = ApiPlugin()
