"""How far each conversation was heard, so that a restart knows where to read on."""

from __future__ import annotations

import json
import time
from collections import OrderedDict

from gateway.ports import ChannelState

_NOTE = "marks"
_KEPT = 300  # conversations, the latest ones


def number(ts: str) -> tuple[int, str]:
    """Return what orders ts: they are ids, and as floats they would be rounded."""
    seconds, _, rest = ts.partition(".")
    return (int(seconds) if seconds.isdigit() else 0, rest.ljust(6, "0"))


class SlackReadCursors:
    """The newest ts taken from each place; a message that was not taken holds its place's mark back.

    A mark that is older than what was taken costs a second reading and nothing else, so that `save` can
    come later than the rows.
    """

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._marks: OrderedDict[str, str] = OrderedDict()
        self._missed: dict[str, dict[str, float]] = {}  # place -> ts -> when it was missed
        self._saved = ""
        self._stored: frozenset[str] = frozenset()

    async def load(self) -> None:
        """Read what an earlier run left; called before the first message."""
        if not self._marks:
            self._saved = await self._state.load(_NOTE) or "{}"
            self._marks = OrderedDict(json.loads(self._saved))
            self._stored = frozenset(self._marks)

    def advance(self, place: str, ts: str) -> None:
        """Say that a message is durable."""
        missed = self._missed.get(place)
        if missed is not None:
            missed.pop(ts, None)
            if not missed:
                del self._missed[place]
        known = self._marks.pop(place, "0")
        self._marks[place] = max(known, ts, key=number)
        while len(self._marks) > _KEPT:
            self._marks.popitem(last=False)

    def hold_back(self, place: str, ts: str) -> None:
        """Say that a message could not be taken; Slack may deliver it again, or not."""
        self._missed.setdefault(place, {})[ts] = time.monotonic()
        # A place that we know nothing of begins with what we missed.
        self._marks.setdefault(place, _before(ts))

    def knows(self, place: str) -> bool:
        """Say whether *place* has a mark."""
        return place in self._marks

    def is_overdue(self, seconds: float) -> bool:
        """Say whether something was missed so long ago that Slack will not bring it any more."""
        before = time.monotonic() - seconds
        return any(at < before for missed in self._missed.values() for at in missed.values())

    def places(self) -> list[tuple[str, str]]:
        """Return each place and the ts after which it is to be read, the latest place first."""
        return [(place, self._mark(place)) for place in reversed(self._marks)]

    def _mark(self, place: str) -> str:
        missed = self._missed.get(place)
        return _before(min([self._marks[place], *missed], key=number)) if missed else self._marks[place]

    async def save(self) -> None:
        """Store the marks if they changed; raises StoreUnavailable."""
        note = json.dumps({place: self._mark(place) for place in self._marks})
        if note != self._saved:
            places = frozenset(self._marks)
            await self._state.save(_NOTE, note)
            self._saved, self._stored = note, places

    async def save_new(self) -> None:
        """Store the marks if there is a place that no stored mark names: after a kill nobody would read it."""
        if not self._stored.issuperset(self._marks):
            await self.save()


def _before(ts: str) -> str:
    seconds, rest = number(ts)
    micros = seconds * 1_000_000 + int(rest) - 1
    return f"{micros // 1_000_000}.{micros % 1_000_000:06d}"
