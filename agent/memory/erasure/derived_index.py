"""The search index, as forgetting sees it: derived data that may be deleted at any time and built again."""

from __future__ import annotations

from typing import Protocol


class DerivedIndex(Protocol):
    """The indexes of all scopes."""

    async def purge_stale(self, scope: str) -> None:
        """Remove from the index of *scope* what its sources no longer hold, free pages included."""
        ...

    async def close_index(self, scope: str) -> None:
        """Close the index files of *scope*, which are about to be moved or removed."""
        ...
