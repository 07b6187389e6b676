"""What a kill would leave at each call to a platform: the home, and the platform's own state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tests.fakes.inprocess_gateway import InProcessGateway

S = TypeVar("S")


@dataclass
class KillSnapshot(Generic[S]):
    """Everything that outlives a kill at one moment."""

    home: Path
    server: S


class KillSnapshots(Generic[S]):
    """Takes a copy of both at each call that is wanted."""

    def __init__(self, copy_server: Callable[[], S], folder: Path, wanted: Iterable[str]) -> None:
        self.moments: dict[str, KillSnapshot[S]] = {}
        self.parlour: InProcessGateway | None = None
        self._copy_server = copy_server
        self._folder = folder
        self._wanted = set(wanted)
        self._counts: dict[tuple[str, str], int] = {}

    def see(self, method: str, when: str) -> None:
        """Note a call."""
        number = self._counts[method, when] = self._counts.get((method, when), 0) + 1
        if f"{when} {method} {number}" in self._wanted:
            self.take(f"{when} {method} {number}")

    def take(self, name: str) -> None:
        """Keep what a kill now would leave."""
        assert self.parlour is not None
        home = self.parlour.kill(self._folder / name.replace(" ", "-"))
        self.moments[name] = KillSnapshot(home, self._copy_server())
