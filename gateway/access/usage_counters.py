"""Counters of turns, tokens and money by name, and the notices sent of them. Caps are judged by these.

Money is counted like tokens, in micro-dollars under separate names (`cost_names`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from gateway.events import SessionKey
from gateway.ports.access import CountedEntry, TokenCount
from gateway.ports.journal import CapNotice
from gateway.store.usage import CapUsage

WINDOW = timedelta(minutes=10)
HOUSE = "house"
TOLD_IN = 5  # most chats with a notice of one window
_SWEEP_AT = 10_000  # names; then those that nothing was counted of lately go


@lru_cache(maxsize=4_096)
def counter_names(person: str, chat: str, *, is_own: bool) -> tuple[str, ...]:
    """Return the names of the counters of a turn of *person* in *chat* (a session key)."""
    try:
        parent = str(SessionKey.parse(chat).parent)
    except ValueError:  # erased person: the installation's totals stay right
        parent = ""
    found = [f"person/{person}"] if person else []
    if parent:
        found += [f"chat/{parent}", *([f"own/{parent}"] if is_own else [])]
    return (*found, HOUSE)


def cost_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names under which the micro-dollars of *names* are counted."""
    return tuple(f"usd/{each}" for each in names)


class UsageCounters:
    """Counters by name. Nothing here grows with what was said before the running windows."""

    def __init__(self) -> None:
        self._turns: dict[str, dict[str, datetime]] = {}  # turns in the order in which they began
        self._spent: dict[str, int] = {}  # since `day` began
        self._held: dict[str, int] = {}  # reserved by running calls
        self._notices: dict[str, dict[str, tuple[CapNotice, str]]] = {}  # by chat, with the turn that tells it there
        self.day: datetime | None = None  # when the running day ends

    def restore(self, usage: CapUsage) -> None:
        """Take over what the journal knows."""
        for each in sorted(usage.turns, key=lambda turn: turn.at):
            self.begin(counter_names(each.person, each.chat, is_own=each.is_own), each.turn, each.at)
        for row in usage.tokens:
            names = counter_names(row.person, row.chat, is_own=row.is_own)
            self.spend(names, row.tokens)
            if row.cost:
                self.spend(cost_names(names), row.cost)
        for notice in usage.notices:
            self.mark_notified(notice, "", notice.until)

    def open_day(self, until: datetime) -> None:
        """Begin a new day that ends at *until*; the same one again changes nothing."""
        if self.day != until:
            self.day = until
            self._spent.clear()

    # -- turns ----------------------------------------------------------------------------------------

    def begin(self, names: Iterable[str], turn: str, at: datetime) -> None:
        """Count a turn once. Turns of the whole installation are not listed: they have no cap."""
        for name in names:
            if name != HOUSE:
                turns = self._turns.setdefault(name, {})
                _expire(turns, at)
                turns.setdefault(turn, at)
        if len(self._turns) > _SWEEP_AT:
            self._sweep(at)

    def is_counted(self, names: Iterable[str], turn: str) -> bool:
        """Return True if *turn* began within the last ten minutes."""
        return any(turn in self._turns.get(name, ()) for name in names)

    def times_before(self, names: Sequence[str], turn: str, now: datetime) -> Sequence[datetime]:
        """Return when the turns began that stand between *turn* and its beginning, in order.

        A turn that is counted already (it was killed, and is taken up again) is judged by those before it alone, so
        that it is let in again exactly as it was. A new one is judged by all of the last ten minutes, and by those
        of a gateway whose clock is ahead; later times are a wrong clock's.
        """
        turns = [each for name in names for each in self._turns.get(name, {}).items()]
        own = next(((at, turn) for found, at in turns if found == turn), None)
        first, end = (now - WINDOW, (now + WINDOW, "")) if own is None else (own[0] - WINDOW, own)
        return sorted(at for found, at in turns if first < at and (at, found) < end)

    # -- tokens and micro-dollars ---------------------------------------------------------------------

    def spend(self, names: Iterable[str], amount: int) -> None:
        """Count the amount of a finished call."""
        for name in names:
            self._spent[name] = self._spent.get(name, 0) + amount

    def hold(self, names: Iterable[str], amount: int) -> None:
        """Reserve *amount*, or with a negative number release it."""
        for name in names:
            self._spent.setdefault(name, 0)  # what was reserved has to be stored again when it is released
            held = self._held.pop(name, 0) + amount
            if held:
                self._held[name] = held

    def amount(self, names: Iterable[str]) -> int:
        """Return the sum of the spent and reserved amounts."""
        return sum(self._spent.get(name, 0) + self._held.get(name, 0) for name in names)

    def filter_used(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of *names* that have a spent or reserved amount today."""
        return tuple(name for name in names if name in self._spent)

    def token_counts(self, names: Iterable[str]) -> tuple[TokenCount, ...]:
        """Return the spent and reserved amounts of each of *names*."""
        return tuple(TokenCount(name, self._spent.get(name, 0), self._held.get(name, 0)) for name in names)

    # -- counts that gateways share -------------------------------------------------------------------

    def all_tokens(self) -> tuple[TokenCount, ...]:
        """Return the spent and reserved amounts of each name."""
        return self.token_counts(self._spent)

    def all_turns(self) -> tuple[CountedEntry, ...]:
        """Return the turns under each name."""
        return tuple(CountedEntry(name, turn, at) for name, turns in self._turns.items() for turn, at in turns.items())

    # -- notices --------------------------------------------------------------------------------------

    def notified_window(self, name: str, limit: int, now: datetime, *, longest: timedelta) -> CapNotice | None:
        """Return the current window of *name* with a notification in any chat.

        A window longer than *longest* was written by a wrong clock and is ignored.
        """
        found = self._window(name)
        if found is None or found.limit != limit:
            return None
        if not now < found.until <= now + longest:
            del self._notices[name]
            return None
        return found

    def needs_notice(self, name: str, chat: str, turn: str) -> bool:
        """Return True if *chat* has no notification of the current window, or *turn* sends it."""
        places = self._notices.get(name, {})
        return places[chat][1] == turn if chat in places else len(places) < TOLD_IN

    def mark_notified(self, notice: CapNotice, turn: str, now: datetime) -> None:
        """Note a notification and the turn that sends it: a retry of the turn sends it again."""
        last = self._window(notice.name)
        if last is None or (last.until, last.limit) != (notice.until, notice.limit):
            self._notices[notice.name] = {}
        self._notices[notice.name][notice.chat] = (notice, turn)
        if len(self._notices) > _SWEEP_AT:
            running = {name for name in self._notices if (each := self._window(name)) is not None and each.until > now}
            self._notices = {name: each for name, each in self._notices.items() if name in running}

    def _window(self, name: str) -> CapNotice | None:
        return next((notice for notice, _ in self._notices.get(name, {}).values()), None)

    def _sweep(self, now: datetime) -> None:
        for turns in self._turns.values():
            _expire(turns, now)
        self._turns = {name: turns for name, turns in self._turns.items() if turns}


def _expire(turns: dict[str, datetime], now: datetime) -> None:
    """Take out what is older than the window, or of a clock that ran ahead; each turn is taken out once."""
    while turns:
        first = next(iter(turns))
        if now - WINDOW < turns[first] <= now + WINDOW:
            return
        del turns[first]
