"""Merge two documents, and split one by the owners of its entries; headings go with the entries below them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from agent.memory.editing.entry_matching import match_entries
from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, parse, render

Texts: TypeAlias = Mapping[str, str]  # by document


def merge_texts(first: str, second: str) -> str:
    """Return *first* with the entries that only *second* has, under the same headings. Idempotent."""
    if not first.strip() or not second.strip():
        return first if first.strip() else second
    entries = parse(first)
    known = {_position(entry) for entry in entries}
    is_changed = False
    for entry in parse(second):
        if _position(entry) in known:
            continue
        known.add(_position(entry))
        entries.insert(_insertion_index(entries, entry), entry)
        is_changed = True
    return render(entries) if is_changed else first


def _position(entry: MemoryEntry) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return (entry.raw.strip(), entry.headings, tuple(each.strip() for each in entry.parents))


def _insertion_index(entries: list[MemoryEntry], new: MemoryEntry) -> int:
    """Return the index after the last entry under the same headings and items, the end if none exists."""
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
    """Return True if *new* may follow *entry* without changing its heading."""
    return _titles(entry) == new.headings or new.kind is EntryKind.HEADING


@dataclass(slots=True)
class EntryOwnership:
    """Accounts that each entry belongs to. `mixed` entries reword an entry of another account."""

    owners: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    mixed: set[tuple[str, str]] = field(default_factory=set)

    def is_only_owner(self, name: str, raw: str, account_name: str) -> bool:
        """Return True if the entry belongs to *account_name* only."""
        key = (name, raw.strip())
        return self.owners.get(key) == frozenset({account_name}) and key not in self.mixed

    def is_owner(self, name: str, raw: str, account_name: str) -> bool:
        """Return True if *account_name* is one of the entry's owners, and the entry is not mixed."""
        key = (name, raw.strip())
        return account_name in self.owners.get(key, ()) and key not in self.mixed


def trace_ownership(versions: Iterable[tuple[Texts, str]], survivor: str = "") -> EntryOwnership:
    """Follow every entry through *versions* (all documents after a change, and its author), oldest first.

    An entry belongs to the author that added it. Without an author (a reverted change, a manual edit), it keeps its
    owners, and belongs to *survivor* if it is new. An entry that rewords another account's entry is mixed.
    """
    ownership = EntryOwnership()
    before: dict[str, list[MemoryEntry]] = {}
    for texts, author in versions:
        for name in {*texts, *before}:
            old, new = before.get(name, []), parse(texts.get(name, ""))
            _record_change(ownership, name, old, new, author, survivor)
            before[name] = new
    return ownership


def _record_change(
    ownership: EntryOwnership, name: str, old: list[MemoryEntry], new: list[MemoryEntry], author: str, survivor: str
) -> None:
    old_raws, new_raws = {each.raw.strip() for each in old}, {each.raw.strip() for each in new}
    added = [each for each in new if each.raw.strip() not in old_raws]
    removed = [each for each in old if each.raw.strip() not in new_raws]
    predecessors: dict[int, list[int]] = {}
    for n, m in match_entries(removed, added).items():
        predecessors.setdefault(m, []).append(n)
    for m, entry in enumerate(added):
        key = (name, entry.raw.strip())
        is_new = key not in ownership.owners
        if not author and not is_new:
            continue
        owner = author or survivor
        ownership.owners[key] = ownership.owners.get(key, frozenset()) | {owner}
        for n in predecessors.get(m, ()):
            old_key = (name, removed[n].raw.strip())
            earlier = ownership.owners.get(old_key, frozenset({owner}))
            if is_new and (earlier != {owner} or old_key in ownership.mixed):
                ownership.owners[key] |= earlier
                ownership.mixed.add(key)


def select_entries(text: str, should_keep: Callable[[str], bool]) -> str:
    """Return the entries of *text* for which *should_keep* is True, with the headings above them."""
    entries = parse(text)
    selected = {n for n, each in enumerate(entries) if each.kind is not EntryKind.HEADING and should_keep(each.raw)}
    if not selected:
        return ""
    for n in sorted(selected):
        selected |= _headings_above(entries, n)
    return render([each for n, each in enumerate(entries) if n in selected])


def remove_entries(text: str, should_remove: Callable[[str], bool]) -> str:
    """Return *text* without the entries for which *should_remove* is True; a heading stays while it has entries."""
    entries = parse(text)
    removed = {n for n, each in enumerate(entries) if should_remove(each.raw)}
    if not removed:
        return text
    for n in [n for n in range(len(entries)) if n not in removed]:
        removed -= _headings_above(entries, n)
    return render([each for n, each in enumerate(entries) if n not in removed])


def _headings_above(entries: list[MemoryEntry], n: int) -> set[int]:
    """Return the indices of the headings that the entry is under."""
    indices: set[int] = set()
    headings = entries[n].headings
    for m in range(n - 1, -1, -1):
        if not headings:
            break
        if entries[m].kind is EntryKind.HEADING and _titles(entries[m]) == headings:
            indices.add(m)
            headings = entries[m].headings
    return indices
