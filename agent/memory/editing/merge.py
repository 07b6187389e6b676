"""Taking a consolidation's new MEMORY.md without its losses (docs/memory.md, How it grows).

A consolidation adds and rewords. Nothing that was remembered goes because a model left it out: Dream and people
remove, by operations that name what they remove.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from agent.memory.editing.entry_matching import (
    AnalyzedEntry,
    WordIndex,
    analyzed_replaces,
    extract_words,
    is_same,
    match_entries,
    statements,
)
from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, parse, render

BUDGET = 32_000  # characters of MEMORY.md, about 8,000 tokens
MOST_REMOVED_SHARE = 0.25
MOST_REMOVED = 3
_ENDLESS = 4  # budgets: a longer text is not parsed
NOTHING_YET = "(empty)"  # shown in the prompt for an empty memory; a model may return it


class ReviewReason(StrEnum):
    """Why a change needs approval, as stored with it."""

    MANY = "many"  # it removes more than a quarter of the entries, and more than three
    EMPTY = "empty"  # it leaves nothing
    OVER_BUDGET = "over budget"
    UNTRUSTED = "untrusted"  # it comes from content written by third parties
    PERSONA = "soul"  # a group proposes a change of SOUL.md
    TOO_LARGE = "too large"  # the document is far over its budget
    BUSY = "busy"  # other writers won every compare-and-set


@dataclass(frozen=True, slots=True)
class OmittedEntry:
    """An entry that the new text omits, and its headings and parent items."""

    raw: str
    context: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRemoval:
    """Changes of a merge that were not made and need approval; if it expires, nothing changes."""

    why: ReviewReason
    removals: tuple[OmittedEntry, ...] = ()
    additions: tuple[str, ...] = ()  # beyond the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """Result of a merge. The strings are entries as in the texts (`MemoryEntry.raw`)."""

    text: str
    added: tuple[str, ...] = ()
    reworded: tuple[tuple[str, str], ...] = ()  # (old, new); several old ones may have become one
    put_back: tuple[str, ...] = ()
    staged: StagedRemoval | None = None


def merge(current: str, proposed: str, *, budget: int) -> MergeResult:
    """Return *current* with the additions and rewordings of *proposed*; entries that it omits are put back in place.

    *budget* is in characters. Additions may exceed it by up to the budget again; the rest is staged with the removals.
    Pure; the time is nearly linear in the length of the texts.
    """
    if len(proposed) > _ENDLESS * max(budget, len(current)):
        return MergeResult(text=current, staged=StagedRemoval(why=ReviewReason.OVER_BUDGET, additions=(proposed,)))
    old = parse(current)
    new = parse("" if proposed.strip() == NOTHING_YET else proposed)
    if not new:
        entries = [old[n] for n in statements(old)]
        return MergeResult(text=current, staged=_stage(ReviewReason.EMPTY, entries) if entries else None)
    successors = match_entries(old, new)
    stated = statements(old)
    omitted = [n for n in stated if n not in successors]
    added = _additions(old, new, successors)
    nodes = [PlacedEntry(entry) for entry in new]
    document = MergedDocument(old, nodes)
    for n, successor in successors.items():
        document.note_successor(n, nodes[successor])
    repeated = _repeated(new, added)
    document.drop({nodes[n] for n in repeated})
    added = [n for n in added if n not in repeated]
    fragments = _fragments(old, new, omitted, added)
    document.drop({nodes[fragment] for n, fragment in fragments.items() if new[fragment].context != old[n].context})
    for n, fragment in fragments.items():
        if new[fragment].context == old[n].context:
            document.restore(n, nodes[fragment])
    for n in omitted:
        document.put_back(n)
    pieces = set(fragments.values())
    added = [n for n in added if n not in pieces]
    text = _text(current, old, document.entries())
    limit = max(budget, len(current)) + budget
    fitting = _fitting(new, added, len(text) - limit)
    if len(text) > limit:
        text = render(document.entries(excluded={nodes[n] for n in added[fitting:]}))
    if len(text) > limit:  # it is the rewordings that are endless
        return MergeResult(
            text=current, staged=_stage(ReviewReason.OVER_BUDGET, [old[n] for n in omitted], [new[n] for n in added])
        )
    overflow = [new[n] for n in added[fitting:]]
    why = _why(len(omitted), len(stated), is_over=len(proposed) > budget)
    return MergeResult(
        text=text,
        added=tuple(new[n].raw for n in added[:fitting]),
        reworded=tuple(
            (old[n].raw, new[successors[n]].raw)
            for n in stated
            if n in successors and not is_same(old[n], new[successors[n]])
        ),
        put_back=tuple(old[n].raw for n in omitted),
        staged=_stage(why, [old[n] for n in omitted], overflow) if why and (omitted or overflow) else None,
    )


def _why(omitted: int, stated: int, *, is_over: bool) -> ReviewReason | None:
    if is_over:
        return ReviewReason.OVER_BUDGET
    return ReviewReason.MANY if exceeds_removal_limit(omitted, stated) else None


def exceeds_removal_limit(removed: int, entries: int) -> bool:
    """Return True if removing so many of the entries needs approval."""
    return removed > MOST_REMOVED and removed > entries * MOST_REMOVED_SHARE


def _stage(why: ReviewReason, entries: Sequence[MemoryEntry], additions: Sequence[MemoryEntry] = ()) -> StagedRemoval:
    return StagedRemoval(
        why=why,
        removals=tuple(OmittedEntry(entry.raw, entry.context) for entry in entries),
        additions=tuple(entry.raw for entry in additions),
    )


def _text(current: str, old: list[MemoryEntry], entries: list[MemoryEntry]) -> str:
    if [(each.raw, each.context) for each in old] == [(each.raw, each.context) for each in entries]:
        return current  # blank lines alone differ
    return render(entries)


def _fitting(new: list[MemoryEntry], added: list[int], excess: int) -> int:
    """Return the number of additions to keep so that the text is *excess* characters shorter; the last go first."""
    fitting = len(added)
    while fitting > 0 and excess > 0:
        fitting -= 1
        excess -= len(new[added[fitting]].raw) + 1
    return fitting


def _additions(old: Sequence[MemoryEntry], new: Sequence[MemoryEntry], successors: dict[int, int]) -> list[int]:
    """Return the indices of new entries whose statement is missing in the old text."""
    taken = set(successors.values())
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


def _fragments(old: list[MemoryEntry], new: list[MemoryEntry], omitted: list[int], added: list[int]) -> dict[int, int]:
    """Return for lost entries the new one that is but a piece of them: a cut line, or half of what was known."""
    found: dict[int, int] = {}
    index = WordIndex([old[n] for n in omitted])
    texts = [old[n].text for n in omitted]
    for m in added:
        if new[m].kind is EntryKind.HEADING:
            continue
        piece = AnalyzedEntry(new[m])
        cut = [k for k, text in enumerate(texts) if text.startswith(piece.text)]
        for k in dict.fromkeys([*cut, *index.candidates(piece)]):
            whole = index.readings[k]
            if omitted[k] not in found and whole.entry.kind is new[m].kind and _is_piece(piece, whole):
                found[omitted[k]] = m
                break
    return found


def _is_piece(piece: AnalyzedEntry, whole: AnalyzedEntry) -> bool:
    """Return True if *whole* contains all of *piece*, not counting words that only its headings contain."""
    if not piece.text or not all(word in whole.around for word in piece.around):
        return False
    if whole.text.startswith(piece.text):
        return True
    alone = AnalyzedEntry(replace(whole.entry, headings=(), parents=()))
    return analyzed_replaces(whole, piece) and all(map(alone.says, piece.said.carrying))


# -- putting entries back where they were ------------------------------------------------------------


@dataclass(eq=False, slots=True)
class PlacedEntry:
    """An entry of the merged document. Compared by identity, because texts may repeat."""

    entry: MemoryEntry


class MergedDocument:
    """A text that is being made of a proposed one, into which entries of an old one are put back."""

    def __init__(self, old: list[MemoryEntry], nodes: list[PlacedEntry]) -> None:
        """Begin with the proposed text; say with `found` which old entries are in it."""
        self._old = old
        self._nodes = list(nodes)
        self._at: dict[int, PlacedEntry] = {}  # by the index of the old entry
        self._homes = _homes(old)

    def entries(self, excluded: Collection[PlacedEntry] = ()) -> list[MemoryEntry]:
        """Return the entries, except *excluded*."""
        return [node.entry for node in self._nodes if node not in excluded]

    def note_successor(self, n: int, node: PlacedEntry) -> None:
        """Record that *node* replaces old entry *n*. Only a heading can replace a heading."""
        if self._old[n].kind is not EntryKind.HEADING or node.entry.kind is EntryKind.HEADING:
            self._at[n] = node

    def restore(self, n: int, node: PlacedEntry) -> None:
        """Put old entry *n* in the place of a node that says a part of it."""
        node.entry = replace(self._old[n], gap=node.entry.gap)
        self._at[n] = node

    def put_back(self, n: int) -> None:
        """Put old entry *n* back; the headings it needs come back with it."""
        if n in self._at:
            return
        entry = self._old[n]
        home = self._homes[n]
        if entry.kind is EntryKind.HEADING:
            if home is not None:  # "Allergies" is meaningless without the name above it
                self.put_back(home)
            self._insert(self._section_after(n), n, gap=max(entry.gap, 1))
            return
        if home is not None:
            if home in self._at and self._at[home].entry.kind not in (EntryKind.HEADING, EntryKind.ITEM):
                del self._at[home]
            self.put_back(home)
        start, stop = self._inside(home)
        position = self._behind_sibling(n, start, stop)
        self._insert(position, n, gap=self._gap(position, start, entry))

    def drop(self, nodes: Collection[PlacedEntry]) -> None:
        """Remove nodes that repeat other entries, as a whole or in part."""
        if nodes:
            self._nodes = [each for each in self._nodes if each not in nodes]

    def _insert(self, position: int, n: int, *, gap: int) -> None:
        node = PlacedEntry(replace(self._nested(n), gap=gap if position else 0))
        self._nodes.insert(position, node)
        self._at[n] = node

    def _nested(self, n: int) -> MemoryEntry:
        """Return old entry *n*, indented to match the item that it is nested in now."""
        entry, home = self._old[n], self._homes[n]
        if home is None or not entry.parents or self._at[home].entry.kind is not EntryKind.ITEM:
            return entry
        holder = self._at[home].entry
        shift = max(holder.depth - self._old[home].depth, 0)
        raw = "\n".join(" " * shift + line if line else line for line in entry.raw.split("\n"))
        return replace(entry, raw=raw, depth=entry.depth + shift, parents=(*holder.parents, holder.raw))

    def _gap(self, position: int, start: int, entry: MemoryEntry) -> int:
        """Return the blank lines before what is put in; at the beginning of a list it takes those of the first."""
        if position > start or position == len(self._nodes):
            before = self._nodes[position - 1].entry.kind if position else EntryKind.RULE
            return (
                0
                if before is entry.kind is EntryKind.ITEM
                else min(max(entry.gap, int(before is not EntryKind.HEADING)), 1)
            )
        follower = self._nodes[position]
        gap = follower.entry.gap
        if follower.entry.kind is entry.kind is EntryKind.ITEM:
            follower.entry = replace(follower.entry, gap=0)
        elif not gap:
            follower.entry = replace(follower.entry, gap=1)
        return gap

    def _inside(self, home: int | None) -> tuple[int, int]:
        """Return the stretch of nodes that stand directly under a heading, an item, or nothing."""
        start = 0
        if home is not None:
            holder = self._at[home]
            start = self._index(holder) + 1
            if holder.entry.kind is EntryKind.ITEM:
                return start, self._subtree(start - 1)
        stop = start
        while stop < len(self._nodes) and self._nodes[stop].entry.kind is not EntryKind.HEADING:
            stop += 1
        return start, stop

    def _behind_sibling(self, n: int, start: int, stop: int) -> int:
        """Return the position after the nearest older sibling that is still present, or *start*."""
        inside = {id(node): position for position, node in enumerate(self._nodes[start:stop], start)}
        for earlier in range(n - 1, -1, -1):
            if self._homes[earlier] == self._homes[n] and earlier in self._at:
                position = inside.get(id(self._at[earlier]))
                if position is not None:
                    return self._past_nested(self._subtree(position), stop, self._homes[n])
        return start

    def _past_nested(self, position: int, stop: int, home: int | None) -> int:
        """Return the first position from *position* on that is not inside an item deeper than *home*'s own entries.

        A sibling may have been replaced by an item nested elsewhere; the entries nested there must stay nested.
        """
        holder = self._at[home].entry if home is not None else None
        level = len(holder.parents) + 1 if holder is not None and holder.kind is EntryKind.ITEM else 0
        while position < stop and len(self._nodes[position].entry.parents) > level:
            position += 1
        return position

    def _section_after(self, n: int) -> int:
        """Return the end of the nearest earlier section of the same level that is still here, else of the text."""
        level = self._old[n].level
        for earlier in range(n - 1, -1, -1):
            entry = self._old[earlier]
            if entry.kind is not EntryKind.HEADING or earlier not in self._at:
                continue
            if entry.level <= level:
                return self._section_end(self._index(self._at[earlier]), level)
        return len(self._nodes)

    def _section_end(self, position: int, level: int) -> int:
        stop = position + 1
        while stop < len(self._nodes):
            entry = self._nodes[stop].entry
            if entry.kind is EntryKind.HEADING and entry.level <= level:
                break
            stop += 1
        return stop

    def _subtree(self, position: int) -> int:
        """Return where the node at *position* ends, with the items nested in it."""
        entry = self._nodes[position].entry
        stop = position + 1
        if entry.kind is EntryKind.ITEM:
            while stop < len(self._nodes) and entry.raw in self._nodes[stop].entry.parents:
                stop += 1
        return stop

    def _index(self, node: PlacedEntry) -> int:
        return next(n for n, each in enumerate(self._nodes) if each is node)


def _homes(entries: list[MemoryEntry]) -> list[int | None]:
    """Return for each entry the index of the item or heading directly above it."""
    homes: list[int | None] = []
    headings: list[int] = []
    for n, entry in enumerate(entries):
        if entry.kind is EntryKind.HEADING:
            headings = [each for each in headings if entries[each].level < entry.level]
        home = headings[-1] if headings else None
        if entry.parents:
            home = next((m for m in range(n - 1, -1, -1) if entries[m].raw == entry.parents[-1]), home)
        homes.append(home)
        if entry.kind is EntryKind.HEADING:
            headings.append(n)
    return homes
