"""Read cursors: the newest ts received from each conversation, from which a restart catches up."""

from __future__ import annotations

import json
import time

from cachetools import FIFOCache

from gateway.ports import ChannelState

_NOTE = "marks"
_KEPT = 300  # conversations, the latest ones


def number(ts: str) -> tuple[int, str]:
    """Return a sort key of a ts: floats would round it."""
    seconds, _, rest = ts.partition(".")
    return (int(seconds) if seconds.isdigit() else 0, rest.ljust(6, "0"))


class SlackReadCursors:
    """The newest accepted ts of each conversation; a message that failed holds its cursor back.

    An old cursor only causes a second reading, so `save` may come later than the journal's commit.
    """

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._marks: FIFOCache[str, str] = FIFOCache(_KEPT)
        self._missed: dict[str, dict[str, float]] = {}  # conversation -> ts -> time of the failure
        self._saved = ""
        self._stored: frozenset[str] = frozenset()

    async def load(self) -> None:
        """Load the cursors of an earlier run, which may have been another worker's, before the first message."""
        self._saved = await self._state.load(_NOTE) or "{}"
        stored = json.loads(self._saved)
        for place, ts in stored.items():
            self._marks[place] = max(self._marks.get(place, ts), ts, key=number)
        self._stored = frozenset(stored)

    def advance(self, place: str, ts: str) -> None:
        """Record that a message is durable."""
        missed = self._missed.get(place)
        if missed is not None:
            missed.pop(ts, None)
            if not missed:
                del self._missed[place]
        known = self._marks.pop(place, "0")
        self._marks[place] = max(known, ts, key=number)

    def hold_back(self, place: str, ts: str) -> None:
        """Record that a message could not be accepted; Slack may or may not redeliver it."""
        self._missed.setdefault(place, {})[ts] = time.monotonic()
        # A conversation without a cursor starts with the missed message.
        self._marks.setdefault(place, _before(ts))

    def has_cursor(self, place: str) -> bool:
        """Return True if *place* has a cursor."""
        return place in self._marks

    def is_overdue(self, seconds: float) -> bool:
        """Return True if a message was missed more than *seconds* ago: Slack will not redeliver it."""
        before = time.monotonic() - seconds
        return any(at < before for missed in self._missed.values() for at in missed.values())

    def places(self) -> list[tuple[str, str]]:
        """Return each conversation and the ts after which to read it, the latest conversation first."""
        return [(place, self._mark(place)) for place in reversed(list(self._marks))]

    def _mark(self, place: str) -> str:
        missed = self._missed.get(place)
        return _before(min([self._marks[place], *missed], key=number)) if missed else self._marks[place]

    async def save(self) -> None:
        """Store the cursors if they changed; raises StoreUnavailable."""
        note = json.dumps({place: self._mark(place) for place in self._marks})
        if note != self._saved:
            places = frozenset(self._marks)
            await self._state.save(_NOTE, note)
            self._saved, self._stored = note, places

    async def save_new(self) -> None:
        """Store the cursors if a conversation has no stored one: after a kill it would not be read."""
        if not self._stored.issuperset(self._marks):
            await self.save()


def _before(ts: str) -> str:
    seconds, rest = number(ts)
    micros = seconds * 1_000_000 + int(rest) - 1
    return f"{micros // 1_000_000}.{micros % 1_000_000:06d}"
