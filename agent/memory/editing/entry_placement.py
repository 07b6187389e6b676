"""Putting an entry back where it stood: under its heading, under its parent, behind the one that was before it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from agent.memory.editing.memory_entries import EntryKind, MemoryEntry


@dataclass(eq=False, slots=True)
class PlacedEntry:
    """An entry of the text that is being made. Nodes are told apart by identity: texts may repeat."""

    entry: MemoryEntry


class MergedDocument:
    """A text that is being made of a proposed one, into which entries of an old one are put back."""

    def __init__(self, old: list[MemoryEntry], nodes: list[PlacedEntry]) -> None:
        """Begin with the proposed text; say with `found` which old entries are in it."""
        self._old = old
        self._nodes = list(nodes)
        self._at: dict[int, PlacedEntry] = {}  # by the index of the old entry
        self._homes = _homes(old)

    def entries(self, without: Collection[PlacedEntry] = ()) -> list[MemoryEntry]:
        """Return the text as it stands, some nodes left out."""
        return [node.entry for node in self._nodes if node not in without]

    def note_successor(self, n: int, node: PlacedEntry) -> None:
        """Say that *node* is where old entry *n* lives on. What holds others must still be able to."""
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
            if home is not None:  # "Allergies" says nothing without the name it stands under
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
        """Take out nodes that say again, or in part, what stands elsewhere."""
        if nodes:
            self._nodes = [each for each in self._nodes if each not in nodes]

    def _insert(self, position: int, n: int, *, gap: int) -> None:
        node = PlacedEntry(replace(self._nested(n), gap=gap if position else 0))
        self._nodes.insert(position, node)
        self._at[n] = node

    def _nested(self, n: int) -> MemoryEntry:
        """Return old entry *n*, indented so that it is nested in the item it belongs to, wherever that stands now."""
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
        """Return where the nearest older sibling ends that is still here; the beginning when there is none."""
        inside = {id(node): position for position, node in enumerate(self._nodes[start:stop], start)}
        for earlier in range(n - 1, -1, -1):
            if self._homes[earlier] == self._homes[n] and earlier in self._at:
                position = inside.get(id(self._at[earlier]))
                if position is not None:
                    return self._past_nested(self._subtree(position), stop, self._homes[n])
        return start

    def _past_nested(self, position: int, stop: int, home: int | None) -> int:
        """Return the first place from *position* on that is not inside an item deeper than *home*'s own entries.

        A sibling may live on in an item that is nested elsewhere; what stands behind it there must stay nested.
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
    """Return for each entry the index of the item or heading it stands directly under."""
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
