"""Two documents as one, and one as two again: entries go where they came from, headings with what stands below them.

Pure. Whose an entry is was traced through every version since the beginning (`trace`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from agent.memory.editing.entry_matching import match_entries
from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, parse, render

Texts: TypeAlias = Mapping[str, str]  # by document


def merge_texts(first: str, second: str) -> str:
    """Return *first* with what *second* says beyond it, under the same headings. Joining twice is joining once."""
    if not first.strip() or not second.strip():
        return first if first.strip() else second
    entries = parse(first)
    known = {_place(entry) for entry in entries}
    added = False
    for entry in parse(second):
        if _place(entry) in known:
            continue
        known.add(_place(entry))
        entries.insert(_end_of(entries, entry), entry)
        added = True
    return render(entries) if added else first


def _place(entry: MemoryEntry) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return (entry.raw.strip(), entry.headings, tuple(each.strip() for each in entry.parents))


def _end_of(entries: list[MemoryEntry], new: MemoryEntry) -> int:
    """Return where *new* goes: behind the last one that stands under its headings and items, else at the end."""
    if new.kind is EntryKind.HEADING and not new.headings:
        return len(entries)
    parents = tuple(each.strip() for each in new.parents)
    for n in range(len(entries) - 1, -1, -1):
        each = entries[n]
        if parents and each.raw.split("\n")[0].strip() == parents[-1] and each.headings == new.headings:
            return n + 1
        if not parents and _titles(each)[: len(new.headings)] == new.headings and _is_above(each, new):
            return n + 1
    if new.headings:
        return len(entries)
    return next((n for n, each in enumerate(entries) if each.kind is EntryKind.HEADING), len(entries))


def _titles(entry: MemoryEntry) -> tuple[str, ...]:
    return (*entry.headings, entry.text) if entry.kind is EntryKind.HEADING else entry.headings


def _is_above(entry: MemoryEntry, new: MemoryEntry) -> bool:
    """Say whether *new* may follow *entry* without falling under another heading."""
    return _titles(entry) == new.headings or new.kind is EntryKind.HEADING


@dataclass(slots=True)
class EntryOwnership:
    """Who had each entry kept. `mixed` are those that say what somebody else had kept, in other words."""

    owners: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    mixed: set[tuple[str, str]] = field(default_factory=set)

    def alone(self, name: str, raw: str, identity: str) -> bool:
        """Say whether the entry is *identity*'s and nobody else's."""
        key = (name, raw.strip())
        return self.owners.get(key) == frozenset({identity}) and key not in self.mixed

    def shares(self, name: str, raw: str, identity: str) -> bool:
        """Say whether *identity* had this very entry kept, perhaps among others."""
        key = (name, raw.strip())
        return identity in self.owners.get(key, ()) and key not in self.mixed


def trace(versions: Iterable[tuple[Texts, str]], survivor: str = "") -> EntryOwnership:
    """Follow every entry through *versions* (all documents after a change, and who made it), the oldest first.

    An entry is of whoever brought it; what nobody brought ("": a change that was taken back, an edit by hand) is whose
    it was before, and *survivor*'s where it is new. One that says what another's said, reworded, is mixed.
    """
    whose = EntryOwnership()
    before: dict[str, list[MemoryEntry]] = {}
    for texts, who in versions:
        for name in {*texts, *before}:
            old, new = before.get(name, []), parse(texts.get(name, ""))
            _note(whose, name, old, new, who, survivor)
            before[name] = new
    return whose


def _note(
    whose: EntryOwnership, name: str, old: list[MemoryEntry], new: list[MemoryEntry], author: str, survivor: str
) -> None:
    had, has = {each.raw.strip() for each in old}, {each.raw.strip() for each in new}
    fresh = [each for each in new if each.raw.strip() not in had]
    lost = [each for each in old if each.raw.strip() not in has]
    heirs: dict[int, list[int]] = {}
    for n, m in match_entries(lost, fresh).items():
        heirs.setdefault(m, []).append(n)
    for m, entry in enumerate(fresh):
        key = (name, entry.raw.strip())
        is_new = key not in whose.owners
        if not author and not is_new:
            continue
        who = author or survivor
        whose.owners[key] = whose.owners.get(key, frozenset()) | {who}
        for n in heirs.get(m, ()):
            from_key = (name, lost[n].raw.strip())
            earlier = whose.owners.get(from_key, frozenset({who}))
            if is_new and (earlier != {who} or from_key in whose.mixed):
                whose.owners[key] |= earlier
                whose.mixed.add(key)


def select_entries(text: str, keeps: Callable[[str], bool]) -> str:
    """Return the entries of *text* whose raws *keeps* wants, with the headings and items above them."""
    entries = parse(text)
    kept = {n for n, each in enumerate(entries) if each.kind is not EntryKind.HEADING and keeps(each.raw)}
    if not kept:
        return ""
    for n in sorted(kept):
        kept |= _above(entries, n)
    return render([each for n, each in enumerate(entries) if n in kept])


def remove_entries(text: str, goes: Callable[[str], bool]) -> str:
    """Return *text* without the entries that *goes* says; a heading goes when nothing is left below it."""
    entries = parse(text)
    gone = {n for n, each in enumerate(entries) if goes(each.raw)}
    if not gone:
        return text
    for n in [n for n in range(len(entries)) if n not in gone]:
        gone -= {m for m in _above(entries, n) if entries[m].kind is EntryKind.HEADING}
    return render([each for n, each in enumerate(entries) if n not in gone])


def _above(entries: list[MemoryEntry], n: int) -> set[int]:
    """Return the indices of the headings that the entry stands under."""
    found: set[int] = set()
    wanted = entries[n].headings
    for m in range(n - 1, -1, -1):
        if not wanted:
            break
        if entries[m].kind is EntryKind.HEADING and _titles(entries[m]) == wanted:
            found.add(m)
            wanted = entries[m].headings
    return found
