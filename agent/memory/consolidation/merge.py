"""Taking a consolidation's new MEMORY.md without its losses (MEMORY-SPEC.md, Consolidation; TRUST.md F8).

A consolidation adds and rewords. Nothing that was remembered goes because a model left it out: Dream and people
remove, by operations that name what they remove.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.memory.consolidation.entries import Entry, Kind, parse, render
from agent.memory.consolidation.place import Board, Node
from agent.memory.consolidation.succession import is_same, said, succeeds

MOST_REMOVED_SHARE = 0.25
MOST_REMOVED = 3
NOTHING_YET = "(empty)"  # what the prompt shows for an empty memory; a model may give it back


class Why(StrEnum):
    """Why a removal waits for review."""

    MANY = "many"  # more than a quarter of the entries, and more than three
    EMPTY = "empty"  # the answer says nothing
    OVER_BUDGET = "over budget"


@dataclass(frozen=True, slots=True)
class Left:
    """An entry of the old text that the new one leaves out, and the headings and items it stands under."""

    raw: str
    context: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What waits for a yes. Nothing of it was done; letting it lapse keeps what was there."""

    why: Why
    removals: tuple[Left, ...] = ()
    additions: tuple[str, ...] = ()  # what had no room even so


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What becomes of MEMORY.md. The strings are entries as they stand in the texts (`Entry.raw`)."""

    text: str
    added: tuple[str, ...] = ()
    reworded: tuple[tuple[str, str], ...] = ()  # (old, new); several old ones may have become one
    put_back: tuple[str, ...] = ()
    staged: Staged | None = None


def merge(current: str, proposed: str, *, budget: int) -> Merged:
    """Return *current* with what *proposed* adds and rewords; what it leaves out is put back in its place.

    *budget* is in characters. Additions stand also beyond it, up to once more the budget; what is beyond that waits
    with the removals. Pure, and near to linear in the length of the texts.
    """
    old = parse(current)
    new = parse("" if proposed.strip() == NOTHING_YET else proposed)
    if not new:
        left = [old[n] for n in _statements(old)]
        return Merged(text=current, staged=_stage(Why.EMPTY, left) if left else None)
    heirs = find_heirs(old, new)
    stated = _statements(old)
    lost = [n for n in stated if n not in heirs]
    added = _additions(old, new, heirs)
    nodes = [Node(entry) for entry in new]
    board = Board(old, nodes)
    for n, heir in heirs.items():
        board.found(n, nodes[heir])
    stumps = _stumps(old, new, lost, added)
    for n, stump in stumps.items():
        if new[stump].context == old[n].context:
            board.restore(n, nodes[stump])
        else:
            board.drop(nodes[stump])
    for n in lost:
        board.put_back(n)
    added = [n for n in added if n not in stumps.values()]
    text = _text(current, old, board.entries())
    limit = max(budget, len(current)) + budget
    fitting = _fitting(new, added, len(text) - limit)
    if len(text) > limit:
        text = render(board.entries(without={nodes[n] for n in added[fitting:]}))
    if len(text) > limit:  # it is the rewordings that are endless
        return Merged(text=current, staged=_stage(Why.OVER_BUDGET, [old[n] for n in lost], [new[n] for n in added]))
    overflow = [new[n] for n in added[fitting:]]
    why = _why(len(lost), len(stated), is_over=len(proposed) > budget)
    return Merged(
        text=text,
        added=tuple(new[n].raw for n in added[:fitting]),
        reworded=tuple(
            (old[n].raw, new[heirs[n]].raw) for n in stated if n in heirs and not is_same(old[n], new[heirs[n]])
        ),
        put_back=tuple(old[n].raw for n in lost),
        staged=_stage(why, [old[n] for n in lost], overflow) if why and (lost or overflow) else None,
    )


def _why(lost: int, stated: int, *, is_over: bool) -> Why | None:
    if is_over:
        return Why.OVER_BUDGET
    return Why.MANY if lost > MOST_REMOVED and lost > stated * MOST_REMOVED_SHARE else None


def _stage(why: Why, left: Sequence[Entry], additions: Sequence[Entry] = ()) -> Staged:
    return Staged(
        why=why,
        removals=tuple(Left(entry.raw, entry.context) for entry in left),
        additions=tuple(entry.raw for entry in additions),
    )


def _text(current: str, old: list[Entry], kept: list[Entry]) -> str:
    if [(each.raw, each.context) for each in old] == [(each.raw, each.context) for each in kept]:
        return current  # another blank line is no change
    return render(kept)


def _fitting(new: list[Entry], added: list[int], excess: int) -> int:
    """Return how many of the additions stay so that *excess* characters go; the last ones go first."""
    fitting = len(added)
    while fitting > 0 and excess > 0:
        fitting -= 1
        excess -= len(new[added[fitting]].raw) + 1
    return fitting


# -- who lives on where ----------------------------------------------------------------------------


def _statements(entries: Sequence[Entry]) -> list[int]:
    """Return the indices of what says something by itself; of headings, those with nothing under them."""
    found = []
    for n, entry in enumerate(entries):
        if entry.kind is Kind.RULE or not entry.text:
            continue
        if entry.kind is Kind.HEADING:
            below = entries[n + 1] if n + 1 < len(entries) else None
            if below is not None and (below.kind is not Kind.HEADING or below.level > entry.level):
                continue
        found.append(n)
    return found


def find_heirs(old: Sequence[Entry], new: Sequence[Entry]) -> dict[int, int]:
    """Return for each old entry the new one that it lives on in: the same under the same heading first."""
    index = _Index(new)
    heirs: dict[int, int] = {}
    for n, entry in enumerate(old):
        candidates = index.candidates(entry)
        fitting = [m for m in candidates if _fits(entry, new[m])]
        if fitting:
            heirs[n] = min(fitting, key=lambda m: _distance(entry, new[m]))
    return heirs


def _fits(old: Entry, new: Entry) -> bool:
    if old.kind is Kind.HEADING and new.kind is Kind.HEADING:
        return is_same(old, new) or succeeds(new, old)
    return succeeds(new, old)


def _distance(old: Entry, new: Entry) -> tuple[bool, bool, bool, int]:
    return (new.kind is not old.kind, not is_same(old, new), new.context != old.context, len(new.raw))


class _Index:
    """Finds the few new entries that may hold all words of an old one, by the words' first three letters."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._by_start: defaultdict[str, set[int]] = defaultdict(set)
        self._by_raw: defaultdict[str, list[int]] = defaultdict(list)
        for n, entry in enumerate(entries):
            self._by_raw[entry.raw.strip()].append(n)
            for text in (entry.text, *entry.context):
                for word in said(text).words:
                    self._by_start[word[:3]].add(n)

    def candidates(self, entry: Entry) -> list[int]:
        words = said(entry.text).carrying or said(entry.text).words
        if entry.kind is Kind.FENCE or not words:
            return self._by_raw.get(entry.raw.strip(), [])
        return sorted(set.intersection(*(self._by_start.get(word[:3], set()) for word in words)))


def _additions(old: Sequence[Entry], new: Sequence[Entry], heirs: dict[int, int]) -> list[int]:
    """Return the indices of new entries that say something of which nothing stood in the old text."""
    taken = set(heirs.values())
    already = _Index(old)
    return [
        m
        for m in _statements(new)
        if m not in taken and not any(is_same(new[m], old[n]) for n in already.candidates(new[m]))
    ]


def _stumps(old: list[Entry], new: list[Entry], lost: list[int], added: list[int]) -> dict[int, int]:
    """Return for lost entries the new one that is but a piece of them: a cut line, or half of what was known."""
    found: dict[int, int] = {}
    open_stumps = [m for m in added if new[m].kind is not Kind.HEADING]
    for n in lost:
        for m in open_stumps:
            if old[n].kind is new[m].kind and _is_piece(new[m], old[n]):
                found[n] = m
                open_stumps.remove(m)
                break
    return found


def _is_piece(piece: Entry, whole: Entry) -> bool:
    """Say whether *piece* says nothing that *whole* does not say, where it stands included."""
    known = {word for text in whole.context for word in said(text).words}
    if not piece.text or not all(word in known for text in piece.context for word in said(text).words):
        return False
    return whole.text.startswith(piece.text) or succeeds(whole, piece)
