"""What gateways of one database share: connections that exist once, and windows of a chat at each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.events import SessionKey


class ConnectionClaims(Protocol):
    """Which worker has which connection. Names are `<channel>:<connection>` (`SupportsOneConnection`)."""

    async def acquire(self, name: str) -> None:
        """Return when the connection is ours, and no other worker's, until it is lost or released."""

    async def wait_lost(self, name: str) -> bool:
        """Return when the connection is to be ended: True if another worker should have it, and it is to be released.

        False if the database has not said for `DEAD_AFTER` that it is ours: others may have it.
        """

    def release(self, name: str) -> None:
        """Give the connection to the next worker that waits for it, within the next look; idempotent."""


class SharedWindows(Protocol):
    """Carries frames between the workers that serve windows of the same chats. *key* is a conversation's.

    A frame is the channel's JSON text in ASCII. Frames of one worker arrive in the order in which it gave them, each
    once; a frame that was lost with a session of the database is made good by `refresh`.
    """

    async def watch(self, chat: SessionKey) -> None:
        """Receive the frames of *chat*: all that are sent after the return. Raises StoreUnavailable."""

    def unwatch(self, chat: SessionKey) -> None:
        """Receive no more frames of *chat*."""

    def is_watched(self, key: SessionKey) -> bool:
        """Return True if another worker has windows of the chat of *key*; False for chats that are not ours."""

    async def send(self, key: SessionKey, frame: str) -> None:
        """Give *frame* to every other worker that watches; it is durable on return. Raises StoreUnavailable."""

    def post(self, key: SessionKey, frame: str, *, slot: str = "") -> None:
        """Give *frame* soon; of those with the same *slot* that wait, only the last one is given."""

    def subscribe(
        self,
        channel: str,
        receive: Callable[[SessionKey, str], None],
        repeat: Callable[[SessionKey], None],
        refresh: Callable[[], None],
    ) -> None:
        """Call *receive* with each frame from another worker for *channel*.

        *repeat* is called with one of our chats when another worker opens a window of it: activity and preview are to
        be posted again. *refresh* is called after a frame may have been lost: windows are to read their history again.
        """
