"""What recall is given and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent.memory.search.result_selection import SearchResult
from agent.memory.search.search_unit import SearchUnit, UnitSource

BUILDING = "building"  # `Answer.note`: the index is being built; ask again, or look elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReading:
    """What was read of a source: all of it, or (*is_more*) what follows the mark that was given."""

    units: Sequence[SearchUnit]
    mark: str
    is_more: bool = False


class UnitSources(Protocol):
    """What there is to find in one scope. Called from threads, never two calls at once."""

    def marks(self) -> Mapping[UnitSource, str]:
        """Return every source with a mark that changes when it changes (size and time of a file)."""
        ...

    def read(self, source: UnitSource, since: str) -> SourceReading:
        """Return what *source* holds; of one that only grew since the mark *since*, its new end will do.

        Raises FileNotFoundError when it is gone.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class IndexedScope:
    """One index file and what it is made of."""

    path: Path
    sources: UnitSources


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallAnswer:
    """What was found. *note* says what it lacks: `BUILDING`, or why meaning was not asked; "" when nothing."""

    results: tuple[SearchResult, ...] = ()
    note: str = ""
