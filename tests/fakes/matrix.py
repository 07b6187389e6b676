"""A platform whose ids hold colons: users are `@ann:example.org`, rooms `!abc:example.org`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel

from gateway.channel import Channel, ChannelContext
from gateway.ports.channel import PlatformTraits
from tests.fakes.inprocess_gateway import PLAIN, InProcessChannel, InProcessPlugin

SERVER = "example.org"


def user_id(name: str) -> str:
    """Return a user's id."""
    return f"@{name}:{SERVER}"


def room_id(name: str) -> str:
    """Return a room's id. Rooms of two have ids like all others: none tells who is there."""
    return f"!{name}:{SERVER}"


class MatrixSettings(BaseModel):
    """A block whose entries are the ids of this platform."""

    entry_shapes: ClassVar[Mapping[str, str]] = {
        "user": r"@[a-z0-9._=/+-]+:[a-z0-9.-]+(:[0-9]+)?",
        "chat": r"![A-Za-z0-9-]+:[a-z0-9.-]+(:[0-9]+)?",
    }
    traits: ClassVar[PlatformTraits] = PlatformTraits()


class MatrixChannel(InProcessChannel):
    """A homeserver inside the process: members write in rooms of two, or in rooms that several read."""

    async def write(self, name: str, text: str, *, room: str = "", **facts: Any) -> str:
        """Have a member write in their room with the bot, or in *room*; return the text that answers it."""
        chat = room_id(room or f"with-{name}")
        return await self.ask(chat, text, sender=user_id(name), name=name.title(), group=bool(room), **facts)


class MatrixPlugin(InProcessPlugin):
    """The plugin `matrix`."""

    name = "matrix"
    settings: type[Any] = MatrixSettings
    traits = MatrixSettings.traits

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel."""
        self.channel = MatrixChannel(context, PLAIN)
        return self.channel
