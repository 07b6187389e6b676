"""The steps of a run: who does what, drawn from one seed before anything has happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

_PAUSE = 0.12  # seconds between two steps, on average
_SHARE_OF_FAULTS = 0.1
_PEOPLE = {
    "talk": 40, "remember": 14, "undo": 8, "correct": 5, "purge": 4, "forget": 2, "stop": 4, "edit": 5, "delete": 4,
    "redeliver": 5, "new": 5, "hand": 5, "link": 5,
}  # fmt: skip
_FAULTS = {"kill": 4, "restart": 2, "lose": 4}
_DATABASE_FAULTS = {"slow": 4, "cut": 3, "stall": 2}


@dataclass(frozen=True, slots=True)
class ExplorerStep:
    """One step. The *picks* choose among what is there when it is taken."""

    number: int
    pause: float  # seconds before it
    actor: str  # account, group or gateway
    action: str
    picks: tuple[float, ...]

    def pick(self, number: int, among: int) -> int:
        """Return an index below *among*, by the pick of that number."""
        return int(self.picks[number] * among)


def draw_steps(
    seed: int, people: Sequence[str], groups: Sequence[str], gateways: Sequence[str], *, has_database: bool
) -> Iterator[ExplorerStep]:
    """Yield steps without an end; equal arguments give equal steps."""
    random = Random(seed)  # noqa: S311 - a seed is not a secret
    faults = {**_FAULTS, **(_DATABASE_FAULTS if has_database else {})}
    number = 0
    while True:
        number += 1
        pause = random.expovariate(1 / _PAUSE)
        is_fault = random.random() < _SHARE_OF_FAULTS
        actor = random.choice(gateways if is_fault else [*people, *groups])
        weights = faults if is_fault else _PEOPLE
        (action,) = random.choices(list(weights), list(weights.values()))
        picks = tuple(round(random.random(), 6) for _ in range(4))
        if actor in groups and action == "link":
            action = "talk"
        yield ExplorerStep(number, pause, actor, action, picks)
