"""The relay: a platform of the tests' own, with keys or without, with a memory for confirmations or without."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from gateway.text import split
from tests.fakes.relay import TEXT_LIMIT, RelayServer, open_relay
from tests.faults.platforms.port import PlatformSide, SceneOptions, SeenMessage


class RelaySide(PlatformSide):
    """A relay; every chat is a direct one."""

    name = "relay"
    two_parts = 3

    def __init__(self, scene: SceneOptions, relay: RelayServer | None = None) -> None:
        super().__init__(scene)
        self.relay = relay or RelayServer(knows_keys=scene.knows_keys, forgets_acks=scene.forgets_acks)
        self.base = self.relay.base  # known already, if somebody else serves it
        self.may_mark = not scene.knows_keys

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        async with open_relay(self.relay):
            self.base = self.relay.base
            yield

    def open(self) -> AbstractAsyncContextManager[object]:
        """Serve the relay."""
        return self._open()

    def write(self, chat: str, text: str, sender: str) -> str:
        """Let somebody write."""
        self.relay.say(chat, text, sender=sender)
        return f"{self.name}:{chat}"

    def chat_of(self, key: str) -> str:
        """Return the chat's own name."""
        return key.partition(":")[2]

    def shown(self, chat: str) -> list[SeenMessage]:
        """Return what the chat shows; the relay shows marks itself."""
        return [SeenMessage(message.text, message.is_marked) for message in self.relay.chat(chat)]

    def count_shown(self) -> int:
        """Return how many there are."""
        return len(self.relay.shown)

    def parts(self, text: str) -> Sequence[str]:
        """Cut as the relay's channel does."""
        return split(text, limit=TEXT_LIMIT)

    def is_told(self) -> bool:
        """Say whether the last update is confirmed."""
        return bool(self.relay.updates) and self.relay.confirmed >= len(self.relay.updates)

    def is_settled(self) -> bool:
        """The relay's last update stays unconfirmed until the poll after it, which may be after the end."""
        return True

    async def wait_changed(self) -> None:
        """Return at the next thing that happens."""
        await self.relay.wait_changed()
