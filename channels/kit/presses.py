"""Button presses that wait for the turn that answers them.

They are kept in memory only: after a restart a button stays, and a second press is answered by the journal.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from cachetools import FIFOCache

from gateway.events import InboundMessage, MessagePart, turn_id

P = TypeVar("P")

_SIZE = 500


class PendingPresses(Generic[P]):
    """The data a platform needs to answer a press, by the turn that answers it."""

    def __init__(self) -> None:
        self._presses: FIFOCache[str, P] = FIFOCache(_SIZE)

    def hold(self, message: InboundMessage, press: P) -> None:
        """Keep *press*, whose *message* was admitted and stored."""
        self._presses[turn_id(message)] = press

    def get(self, part: MessagePart) -> P | None:
        """Return the press that *part* answers, if it is still pending."""
        return self._presses.get(part.turn)

    def take(self, part: MessagePart) -> P | None:
        """Return the press that *part* answers and forget it: the answer was delivered."""
        return self._presses.pop(part.turn, None)
