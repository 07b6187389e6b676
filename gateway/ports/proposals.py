"""Changes of memory that wait for a person's yes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProposal:
    """A stored change. `body` is JSON, with the `session` and the `person` that are asked, where there are any."""

    name: str  # identifies it in its scope
    at: datetime
    expires_at: datetime
    body: Mapping[str, Any]


class ProposalStore(Protocol):
    """The proposals of every scope. Methods return when a write is durable, and raise StoreUnavailable otherwise."""

    async def put(self, scope: str, proposals: Sequence[MemoryProposal]) -> None:
        """Store the proposals whose names are new, in one transaction."""

    async def pending(self, scope: str, at: datetime) -> Sequence[MemoryProposal]:
        """Return the proposals that have not expired at the time *at*, the oldest first."""

    async def find_in_groups(self, name: str) -> Sequence[tuple[str, MemoryProposal]]:
        """Return the proposals *name* of groups, each with its scope, expired ones too."""

    async def replace(self, scope: str, old: MemoryProposal, new: MemoryProposal) -> bool:
        """Replace the body of a proposal that is still *old*; return False if it is not."""

    async def rewrite(self, scope: str, change: Callable[[MemoryProposal], MemoryProposal | None]) -> int:
        """Replace the proposals of *scope*, expired ones too, by what *change* returns, and remove those without.

        Returns the number of changed ones. *change* runs in a thread. It runs again for a proposal that was changed at
        the same time.
        """

    async def remove(self, scope: str, name: str) -> None:
        """Remove a proposal, if it exists."""

    async def clear(self, scope: str) -> None:
        """Remove every proposal of *scope*."""

    async def is_adopted(self) -> bool:
        """Return True if the files of an earlier release were stored."""

    async def mark_adopted(self) -> None:
        """Note that the files of an earlier release are stored."""
