"""The claims of connections that exist once, such as the long poll of a bot, among workers that share a database."""

from __future__ import annotations

from typing import Protocol


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
