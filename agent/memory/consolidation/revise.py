"""What becomes of MEMORY.md after a model answered: its answer without its losses, and what others wrote meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from agent.memory.consolidation.merge import Merged, merge
from agent.memory.consolidation.three_way import Conflict, three_way

BUDGET = 32_000  # characters of MEMORY.md, about 8,000 tokens


@dataclass(frozen=True, slots=True)
class Revision:
    """The new text, what the answer did to the one it was asked about, and where somebody else was at work."""

    text: str
    merged: Merged
    conflicts: tuple[Conflict, ...] = ()


def revise(base: str, proposed: str, now: str, *, budget: int = BUDGET) -> Revision:
    """Return the memory *now* with what a model that was shown *base* proposes. Doing it again changes nothing."""
    merged = merge(base, proposed, budget=budget)
    reconciled = three_way(base, merged.text, now)
    return Revision(reconciled.text, merged, reconciled.conflicts)


def conflict_copy(conflicts: tuple[Conflict, ...]) -> str:
    """Return the text of a conflict copy: what we would have written where a person wrote something else."""
    return "\n\n".join(conflict.mine for conflict in conflicts) + "\n"
