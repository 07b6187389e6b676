"""Taking a consolidation's new MEMORY.md without its losses (MEMORY-SPEC.md, Consolidation; TRUST.md F8).

A consolidation adds and rewords. Nothing that was remembered goes because a model left it out: Dream and people
remove, by operations that name what they remove.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from agent.memory.editing.entry_matching import AnalyzedEntry, analyzed_replaces, extract_words, is_same
from agent.memory.editing.entry_placement import MergedDocument, PlacedEntry
from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, parse, render

BUDGET = 32_000  # characters of MEMORY.md, about 8,000 tokens
MOST_REMOVED_SHARE = 0.25
MOST_REMOVED = 3
_ENDLESS = 4  # budgets: a longer text is no memory, and is not looked into
NOTHING_YET = "(empty)"  # what the prompt shows for an empty memory; a model may give it back


class ReviewReason(StrEnum):
    """Why a removal waits for review."""

    MANY = "many"  # more than a quarter of the entries, and more than three
    EMPTY = "empty"  # the answer says nothing
    OVER_BUDGET = "over budget"


@dataclass(frozen=True, slots=True)
class OmittedEntry:
    """An entry of the old text that the new one leaves out, and the headings and items it stands under."""

    raw: str
    context: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRemoval:
    """What waits for a yes. Nothing of it was done; letting it lapse keeps what was there."""

    why: ReviewReason
    removals: tuple[OmittedEntry, ...] = ()
    additions: tuple[str, ...] = ()  # what had no room even so


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What becomes of MEMORY.md. The strings are entries as they stand in the texts (`Entry.raw`)."""

    text: str
    added: tuple[str, ...] = ()
    reworded: tuple[tuple[str, str], ...] = ()  # (old, new); several old ones may have become one
    put_back: tuple[str, ...] = ()
    staged: StagedRemoval | None = None


def merge(current: str, proposed: str, *, budget: int) -> MergeResult:
    """Return *current* with what *proposed* adds and rewords; what it leaves out is put back in its place.

    *budget* is in characters. Additions stand also beyond it, up to once more the budget; what is beyond that waits
    with the removals. Pure, and near to linear in the length of the texts.
    """
    if len(proposed) > _ENDLESS * max(budget, len(current)):
        return MergeResult(text=current, staged=StagedRemoval(why=ReviewReason.OVER_BUDGET, additions=(proposed,)))
    old = parse(current)
    new = parse("" if proposed.strip() == NOTHING_YET else proposed)
    if not new:
        left = [old[n] for n in statements(old)]
        return MergeResult(text=current, staged=_stage(ReviewReason.EMPTY, left) if left else None)
    heirs = match_entries(old, new)
    stated = statements(old)
    lost = [n for n in stated if n not in heirs]
    added = _additions(old, new, heirs)
    nodes = [PlacedEntry(entry) for entry in new]
    board = MergedDocument(old, nodes)
    for n, heir in heirs.items():
        board.note_successor(n, nodes[heir])
    repeated = _repeated(new, added)
    board.drop({nodes[n] for n in repeated})
    added = [n for n in added if n not in repeated]
    stumps = _stumps(old, new, lost, added)
    board.drop({nodes[stump] for n, stump in stumps.items() if new[stump].context != old[n].context})
    for n, stump in stumps.items():
        if new[stump].context == old[n].context:
            board.restore(n, nodes[stump])
    for n in lost:
        board.put_back(n)
    pieces = set(stumps.values())
    added = [n for n in added if n not in pieces]
    text = _text(current, old, board.entries())
    limit = max(budget, len(current)) + budget
    fitting = _fitting(new, added, len(text) - limit)
    if len(text) > limit:
        text = render(board.entries(without={nodes[n] for n in added[fitting:]}))
    if len(text) > limit:  # it is the rewordings that are endless
        return MergeResult(
            text=current, staged=_stage(ReviewReason.OVER_BUDGET, [old[n] for n in lost], [new[n] for n in added])
        )
    overflow = [new[n] for n in added[fitting:]]
    why = _why(len(lost), len(stated), is_over=len(proposed) > budget)
    return MergeResult(
        text=text,
        added=tuple(new[n].raw for n in added[:fitting]),
        reworded=tuple(
            (old[n].raw, new[heirs[n]].raw) for n in stated if n in heirs and not is_same(old[n], new[heirs[n]])
        ),
        put_back=tuple(old[n].raw for n in lost),
        staged=_stage(why, [old[n] for n in lost], overflow) if why and (lost or overflow) else None,
    )


def _why(lost: int, stated: int, *, is_over: bool) -> ReviewReason | None:
    if is_over:
        return ReviewReason.OVER_BUDGET
    return ReviewReason.MANY if lost > MOST_REMOVED and lost > stated * MOST_REMOVED_SHARE else None


def _stage(why: ReviewReason, left: Sequence[MemoryEntry], additions: Sequence[MemoryEntry] = ()) -> StagedRemoval:
    return StagedRemoval(
        why=why,
        removals=tuple(OmittedEntry(entry.raw, entry.context) for entry in left),
        additions=tuple(entry.raw for entry in additions),
    )


def _text(current: str, old: list[MemoryEntry], kept: list[MemoryEntry]) -> str:
    if [(each.raw, each.context) for each in old] == [(each.raw, each.context) for each in kept]:
        return current  # another blank line is no change
    return render(kept)


def _fitting(new: list[MemoryEntry], added: list[int], excess: int) -> int:
    """Return how many of the additions stay so that *excess* characters go; the last ones go first."""
    fitting = len(added)
    while fitting > 0 and excess > 0:
        fitting -= 1
        excess -= len(new[added[fitting]].raw) + 1
    return fitting


# -- who lives on where ----------------------------------------------------------------------------


def statements(entries: Sequence[MemoryEntry]) -> list[int]:
    """Return the indices of what says something by itself; of headings, those with nothing under them."""
    found = []
    for n, entry in enumerate(entries):
        if entry.kind is EntryKind.RULE or not entry.text:
            continue
        if entry.kind is EntryKind.HEADING:
            below = entries[n + 1] if n + 1 < len(entries) else None
            if below is not None and (below.kind is not EntryKind.HEADING or below.level > entry.level):
                continue
        found.append(n)
    return found


def match_entries(old: Sequence[MemoryEntry], new: Sequence[MemoryEntry]) -> dict[int, int]:
    """Return for each old entry the new one that it lives on in: the same under the same heading first."""
    index = _WordIndex(new)
    heirs: dict[int, int] = {}
    for n, entry in enumerate(old):
        known = index.same(entry)
        if known is not None:
            heirs[n] = known
            continue
        reading = AnalyzedEntry(entry)
        fitting = [m for m in index.candidates(reading) if analyzed_replaces(index.readings[m], reading)]
        if fitting:
            heirs[n] = min(fitting, key=lambda m: _distance(entry, new[m]))
    return heirs


def _distance(old: MemoryEntry, new: MemoryEntry) -> tuple[bool, bool, bool, int]:
    return (new.kind is not old.kind, not is_same(old, new), new.context != old.context, len(new.raw))


class _WordIndex:
    """Finds the few entries that may hold all words of another one: names as they are, others by their beginnings."""

    def __init__(self, entries: Sequence[MemoryEntry]) -> None:
        self.readings = [AnalyzedEntry(entry) for entry in entries]
        self._same: dict[tuple[EntryKind, str, tuple[str, ...]], int] = {}
        self._by_word: defaultdict[str, set[int]] = defaultdict(set)
        self._by_raw: defaultdict[str, list[int]] = defaultdict(list)
        for n, reading in enumerate(self.readings):
            entry = reading.entry
            self._same.setdefault((entry.kind, entry.raw, entry.context), n)
            self._by_raw[entry.raw.strip()].append(n)
            for word in reading.have:
                self._by_word[word].add(n)
                self._by_word[f"{word[:3]} "].add(n)

    def same(self, entry: MemoryEntry) -> int | None:
        """Return where this very entry stands under the same headings."""
        return self._same.get((entry.kind, entry.raw, entry.context))

    def candidates(self, reading: AnalyzedEntry) -> list[int]:
        """Return the entries worth comparing, in their order."""
        own = reading.said
        if reading.entry.kind is EntryKind.FENCE or not own.words:
            return self._by_raw.get(reading.entry.raw.strip(), [])
        # The first word is often capitalised for no reason, and may be inflected.
        keys = [*own.exact[1:], *(f"{word[:3]} " for word in own.carrying or own.words)]
        return sorted(set.intersection(*(self._by_word.get(key, set()) for key in keys)))


def _additions(old: Sequence[MemoryEntry], new: Sequence[MemoryEntry], heirs: dict[int, int]) -> list[int]:
    """Return the indices of new entries that say something of which nothing stood in the old text."""
    taken = set(heirs.values())
    already = {extract_words(entry.text).words for entry in old}
    codes = {entry.raw for entry in old if entry.kind is EntryKind.FENCE}
    return [
        m
        for m in statements(new)
        if m not in taken
        and (
            new[m].raw not in codes
            if new[m].kind is EntryKind.FENCE
            else extract_words(new[m].text).words not in already
        )
    ]


def _repeated(new: Sequence[MemoryEntry], added: list[int]) -> set[int]:
    """Return the additions that say again, in the same place, what another one says."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    found = set()
    for m in added:
        key = (new[m].raw, new[m].context)
        if key in seen and new[m].kind is not EntryKind.HEADING:
            found.add(m)
        seen.add(key)
    return found


def _stumps(old: list[MemoryEntry], new: list[MemoryEntry], lost: list[int], added: list[int]) -> dict[int, int]:
    """Return for lost entries the new one that is but a piece of them: a cut line, or half of what was known."""
    found: dict[int, int] = {}
    index = _WordIndex([old[n] for n in lost])
    texts = [old[n].text for n in lost]
    for m in added:
        if new[m].kind is EntryKind.HEADING:
            continue
        piece = AnalyzedEntry(new[m])
        cut = [k for k, text in enumerate(texts) if text.startswith(piece.text)]
        for k in dict.fromkeys([*cut, *index.candidates(piece)]):
            whole = index.readings[k]
            if lost[k] not in found and whole.entry.kind is new[m].kind and _is_piece(piece, whole):
                found[lost[k]] = m
                break
    return found


def _is_piece(piece: AnalyzedEntry, whole: AnalyzedEntry) -> bool:
    """Return True if *whole* says all of *piece* in its own words; what only its headings say is no statement."""
    if not piece.text or not all(word in whole.around for word in piece.around):
        return False
    if whole.text.startswith(piece.text):
        return True
    alone = AnalyzedEntry(replace(whole.entry, headings=(), parents=()))
    return analyzed_replaces(whole, piece) and all(map(alone.says, piece.said.carrying))
