"""Merge the documents of two scopes with every version, and split those of one scope by the owners of their entries.

Headings go with the entries below them.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, match_entries, parse, render
from agent.memory.storage.scope_documents import (
    CONSOLIDATION,
    DREAM_CAUSE,
    SOUL,
    TRACKED,
    map_documents,
    select_documents,
)
from gateway.ports.memory import DocumentChange, DocumentState

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments

_REVERTS = ("undo ", "dream restore ")  # causes of versions that restore entries of earlier authors
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


# -- documents with every version ------------------------------------------------------------------


async def move_documents(
    changes: SqlDocuments, move: str, source: str, target: str, *, source_account: str, target_account: str
) -> None:
    """Merge the documents of *source*, with every version, into those of *target*. Idempotent.

    The accounts are "" for scopes that have several. Of the home itself the persona stays.
    """
    names = set(TRACKED) if source else set(TRACKED) - {SOUL}  # every scope uses the home's own persona
    is_moved = False
    while not is_moved:
        was = await _numbers(changes, source, target)
        every, own = await changes.states(source), await changes.states(target)
        if await asyncio.to_thread(next, select_documents(every, names), None) is None:
            break
        merged = interleave_versions(
            own, select_documents(every, names), first_account=target_account, second_account=source_account
        )
        staying = () if source else select_documents(every, {SOUL})
        is_moved = await changes.replace({source: staying, target: merged}, was=was)
    await changes.set_epoch(target, move)


async def find_owners(
    changes: SqlDocuments, scope: str, account_of_entry: Callable[[str], str], survivor: str
) -> EntryOwnership:
    """Return the owners of the lines of a scope's documents; *account_of_entry* is called with a summary's id."""
    return await asyncio.to_thread(entry_owners, await changes.states(scope), account_of_entry, survivor)


async def divide_documents(
    changes: SqlDocuments,
    move: str,
    source: str,
    target: str,
    account_name: str,
    account_of_entry: Callable[[str], str],
    survivor: str,
) -> None:
    """Move the entries that belong only to *account_name* from *source* to *target*; mixed entries stay. Idempotent.

    What *target* has by now stays: another gateway may have answered the account before the move was resumed.
    """
    while await changes.epoch(source) != move:
        was = await _numbers(changes, source, target)
        states, own = await changes.states(source), await changes.states(target)
        ownership = await asyncio.to_thread(entry_owners, states, account_of_entry, survivor)
        staying = map_documents(states, partial(_staying_entries, ownership, account_name))
        moving = map_documents(states, partial(_moving_entries, ownership, account_name))
        merged = interleave_versions(moving, own, first_account=account_name, second_account=account_name)
        if not states or await changes.replace({source: staying, target: merged}, was=was, epoch=move):
            for scope in (source, target):
                await changes.set_epoch(scope, move)


async def _numbers(changes: SqlDocuments, *scopes: str) -> dict[str, int]:
    """Return the numbers of the newest changes. Read them before the states: a later change fails the replacement."""
    return {scope: head.number for scope, head in (await changes.heads(scopes)).items()}


# -- versions; pure --------------------------------------------------------------------------------


def interleave_versions(
    first: Iterable[DocumentState], second: Iterable[DocumentState], *, first_account: str, second_account: str
) -> Iterator[DocumentState]:
    """Yield the merged states of two histories in order of time; those of each history stay in their order.

    The author of a change without one is its history's account; "" for a history of several accounts. One state of each
    history is in memory.
    """
    accounts = (first_account, second_account)
    current: list[Mapping[str, str]] = [{}, {}]
    for _, side, state in heapq.merge(_in_time(first, 0), _in_time(second, 1), key=itemgetter(0, 1)):
        current[side] = state.texts
        change = replace(state.change, by=state.change.by or accounts[side])
        yield DocumentState(change=change, texts=merge_documents(*current))


def _in_time(states: Iterable[DocumentState], side: int) -> Iterator[tuple[datetime, int, DocumentState]]:
    # Gateways' clocks differ: a change may be older than the one before it, which must not become the newest text.
    latest = datetime.min.replace(tzinfo=UTC)
    for state in states:
        latest = max(latest, state.change.at)
        yield latest, side, state


def merge_documents(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    """Merge the documents of two scopes; the persona of the first is kept if there is one."""
    merged: dict[str, str] = {}
    for name in TRACKED:
        one, other = first.get(name, ""), second.get(name, "")
        merged[name] = (one or other) if name == SOUL else merge_texts(one, other)
    return {name: text for name, text in merged.items() if text}


def entry_owners(states: Iterable[DocumentState], account_of: Callable[[str], str], survivor: str) -> EntryOwnership:
    """Return the owners of every entry that the documents ever had; *account_of* returns a history entry's account.

    The lines of a summary belong to the account of the summarised chat, the lines of a Dream to the account of its
    chats, or to *survivor* if these belong to several accounts.
    """

    def author(change: DocumentChange) -> str:
        if change.why.startswith(_REVERTS):
            return ""
        if change.by:
            return change.by
        if change.why.startswith((CONSOLIDATION, DREAM_CAUSE)):
            accounts = {account_of(entry) or survivor for entry in change.why.split() if entry.startswith("e")}
            return accounts.pop() if len(accounts) == 1 else survivor
        return ""

    return trace_ownership(((each.texts, author(each.change)) for each in states), survivor)


def split_document(name: str, text: str, ownership: EntryOwnership, account_name: str) -> tuple[str, str]:
    """Return the entries that stay, and those of *account_name*; mixed entries stay."""
    return _staying_entries(ownership, account_name, name, text), _moving_entries(ownership, account_name, name, text)


def _staying_entries(ownership: EntryOwnership, account_name: str, name: str, text: str) -> str:
    return remove_entries(text, lambda raw: ownership.is_only_owner(name, raw, account_name))


def _moving_entries(ownership: EntryOwnership, account_name: str, name: str, text: str) -> str:
    return select_entries(text, lambda raw: ownership.is_owner(name, raw, account_name))
