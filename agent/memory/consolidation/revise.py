"""What becomes of MEMORY.md after a model answered: its answer without its losses, and what others wrote meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from agent.memory.consolidation.merge import MergeResult, merge
from agent.memory.consolidation.three_way_merge import MergeConflict, three_way

BUDGET = 32_000  # characters of MEMORY.md, about 8,000 tokens


@dataclass(frozen=True, slots=True)
class MemoryRevision:
    """The new text, what the answer did to the one it was asked about, and where somebody else was at work."""

    text: str
    merged: MergeResult
    conflicts: tuple[MergeConflict, ...] = ()


def revise(base: str, proposed: str, now: str, *, budget: int = BUDGET) -> MemoryRevision:
    """Return the memory *now* with what a model that was shown *base* proposes. Doing it again changes nothing."""
    merged = merge(base, proposed, budget=budget)
    reconciled = three_way(base, merged.text, now)
    return MemoryRevision(reconciled.text, merged, reconciled.conflicts)


def conflict_copy(conflicts: tuple[MergeConflict, ...]) -> str:
    """Return the text of a conflict copy: what we would have written where a person wrote something else."""
    return "\n\n".join(conflict.mine for conflict in conflicts) + "\n"
