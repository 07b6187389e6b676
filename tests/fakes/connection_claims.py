"""Claims of connections in memory: of several gateways in one process, each of which has what the test grants it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gateway.store.claims import WorkerConnections


@dataclass(eq=False)
class ClaimTable:
    """Who has which connection; the gateways of a test share one."""

    holders: dict[str, GrantedClaims] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self) -> None:
        """Have those who wait look again."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class GrantedClaims(WorkerConnections):
    """The claims of one gateway: a connection is its own once the test grants it; who comes first may identify."""

    def __init__(self, table: ClaimTable | None = None) -> None:
        self._table = table or ClaimTable()
        self._granted: set[str] = set()

    @property
    def own(self) -> set[str]:
        """Return what is this gateway's."""
        return {name for name, holder in self._table.holders.items() if holder is self}

    def grant(self, *names: str) -> None:
        """Make *names* this gateway's, once it wants them."""
        self._granted.update(names)
        self._table.change()

    async def acquire(self, name: str) -> None:
        """Return when *name* was granted and no other has it."""
        while (name not in self._granted and "/identify-" not in name) or (
            self._table.holders.setdefault(name, self) is not self
        ):
            await self._table.changed.wait()

    async def wait_lost(self, name: str) -> bool:
        """Wait for ever: a look at the database is not part of this."""
        await asyncio.Event().wait()
        return False

    def release(self, name: str) -> None:
        """Give it back."""
        if self._table.holders.get(name) is self:
            del self._table.holders[name]
            self._table.change()
