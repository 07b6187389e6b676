"""What the shared contract suite needs of a channel: a person there, and what that person sees."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.channel import Channel, ChannelPlugin
from gateway.events import InboundMessage, SessionKey
from tests.fakes.web_services import FakePageServices


@dataclass
class ChatView:
    """What one person sees of a chat, folded from whatever the platform sends."""

    messages: dict[str, str] = field(default_factory=dict)  # in order, by the platform's id
    files: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # by message, where our own frames say them
    previews: list[str] = field(default_factory=list)
    marked: list[str] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)  # ids of messages the platform was told are durable
    refused: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # sentences about a message that was not taken
    buttons: list[list[str]] = field(default_factory=list)  # below the newest message, in rows
    is_busy: bool = False
    events: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when *holds* holds."""
        while not holds():
            self.news.clear()
            await self.news.wait()


class PlatformUser(Protocol):
    """Somebody on the platform."""

    shown: ChatView

    async def say(self, text: str, ident: str) -> None:
        """Send a message with the platform's id *ident*; the same again is a redelivery."""
        ...

    async def press(self, label: str) -> None:
        """Press a button below the newest message; the platform tells of it twice."""
        ...

    async def garble(self) -> None:
        """Have the platform send something that cannot be read."""
        ...


@dataclass
class RunningChannel:
    """A channel that is up, and a way to be a person on it."""

    channel: Channel
    key: SessionKey
    join: Callable[[], AbstractAsyncContextManager[PlatformUser]]
    files: Callable[[PlatformUser], Awaitable[list[tuple[str, bytes]]]]  # that stand in the chat, in order
    has_windows: bool = True  # ours: it knows who looks on, and can say a line beside a message
    can_be_asked: bool = True  # whether a part stands there; else a resend is marked
    late: str = "It is **late**."  # how this sentence looks to people
    # A message as an admin of a shared chat says it, of whom the platform tells nothing from now on; None = ours.
    unknown: Callable[[InboundMessage], InboundMessage] | None = None
    ident: Callable[[str], str] = str  # from the id a person said something under to the platform's own


class ChannelHarness(Protocol):
    """One kind of channel under test."""

    kind: ChannelPlugin

    def open(self, services: FakePageServices) -> AbstractAsyncContextManager[RunningChannel]:
        """Bring the channel up in front of *house*."""
        ...
