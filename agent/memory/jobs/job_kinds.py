"""Declarations of kinds of durable jobs, each made by the module that queues them.

The composition root lists the declarations (gateway/app/job_kinds.py), so that no export or erasure names a kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


class JobPace(Enum):
    """How the jobs of a kind are run."""

    QUICK = "quick"  # one after the other, as soon as they are due
    SLOW = "slow"  # they ask a model: a few at a time, while the token budget allows it
    LONG = "long"  # they read a lot, and ask no model: one at a time
    TASK = "task"  # steps of what a person started: a few at a time, within the caps of that person


class JobErasure(Enum):
    """The effect of an erasure on a job with its words in the payload."""

    NONE = "none"  # nothing: no text of people or of the model is written later
    OWN = "own"  # remove it; its `person` may ask for that too, by its `text`
    ADMIN = "admin"  # remove it; only an admin may
    ANSWER = "answer"  # remove them from its answer; without one, as ADMIN


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """One kind. Its jobs may also be stored with one of the *aliases*: those of an earlier release, or of one part.

    If it *locks_scopes*, its handler acquires the locks that it needs; others run under that of their job's scope.
    """

    name: str
    pace: JobPace
    aliases: tuple[str, ...] = ()
    erasure: JobErasure = JobErasure.NONE
    export: str = ""  # file of an export that has the payloads of the scope's jobs of this name
    locks_scopes: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that its jobs may have."""
        return (self.name, *self.aliases)


def by_name(kinds: Iterable[JobKind]) -> Mapping[str, JobKind]:
    """Return the kinds by each of their names."""
    return {name: kind for kind in kinds for name in kind.names}
