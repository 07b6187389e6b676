"""Merge the documents of two scopes with every version, and split those of one scope by account."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING

from agent.memory.account_links.document_merge import (
    EntryOwnership,
    merge_texts,
    remove_entries,
    select_entries,
    trace_ownership,
)
from agent.memory.documents.document_changes import CONSOLIDATION, DREAM_CAUSE, TRACKED, select_documents
from agent.memory.documents.file_documents import SOUL
from gateway.ports.memory import DocumentChange, DocumentState

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments


_REVERTS = ("undo ", "dream restore ")  # causes of versions that restore entries of earlier authors


async def move_documents(
    changes: SqlDocuments, move: str, source: str, target: str, *, source_account: str, target_account: str
) -> None:
    """Merge the documents of *source*, with every version, into those of *target*. Idempotent.

    The accounts are "" for scopes that have several. Of the home itself the persona stays.
    """
    names = set(TRACKED) if source else set(TRACKED) - {SOUL}  # every scope uses the home's own persona
    while moving := select_documents(every := await changes.states(source), names):
        staying = [] if source else select_documents(every, {SOUL})
        own = await changes.states(target)
        was = await _numbers(changes, source, target)
        merged = await asyncio.to_thread(
            interleave_versions, own, moving, first_account=target_account, second_account=source_account
        )
        is_current = _is_newest(own, was[target]) and _is_newest(every, was[source])
        if is_current and await changes.replace({source: staying, target: merged}, was=was):
            break
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
        states, own = await changes.states(source), await changes.states(target)
        was = await _numbers(changes, source, target)
        ownership = await asyncio.to_thread(entry_owners, states, account_of_entry, survivor)
        staying, moving = await asyncio.to_thread(split_versions, states, ownership, account_name)
        moving = await asyncio.to_thread(
            interleave_versions, moving, own, first_account=account_name, second_account=account_name
        )
        if not states or (
            _is_newest(states, was[source])
            and _is_newest(own, was[target])
            and await changes.replace({source: staying, target: moving}, was=was, epoch=move)
        ):
            for scope in (source, target):
                await changes.set_epoch(scope, move)


async def _numbers(changes: SqlDocuments, *scopes: str) -> dict[str, int]:
    return {scope: head.number for scope, head in (await changes.heads(scopes)).items()}


def _is_newest(states: Sequence[DocumentState], number: int) -> bool:
    """Return True if *number* is that of the newest of *states*."""
    return not states or states[-1].change.number == number


# -- versions; pure --------------------------------------------------------------------------------


def interleave_versions(
    first: Sequence[DocumentState], second: Sequence[DocumentState], *, first_account: str, second_account: str
) -> list[DocumentState]:
    """Return the merged states of two histories in order of time; those of each history stay in their order.

    The author of a change without one is its history's account; "" for a history of several accounts.
    """
    accounts = (first_account, second_account)
    current: list[Mapping[str, str]] = [{}, {}]
    merged: list[DocumentState] = []
    # Gateways' clocks differ: a change may be older than the one before it, which must not become the newest text.
    times = [(at, side, n) for side, each in enumerate((first, second)) for n, at in enumerate(_rising_times(each))]
    for _, side, n in sorted(times):
        state = (first, second)[side][n]
        current[side] = state.texts
        change = replace(state.change, by=state.change.by or accounts[side])
        merged.append(DocumentState(change=change, texts=merge_documents(*current)))
    return merged


def _rising_times(states: Sequence[DocumentState]) -> Iterable[datetime]:
    return accumulate((each.change.at for each in states), max)


def merge_documents(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    """Merge the documents of two scopes; the persona of the first is kept if there is one."""
    merged: dict[str, str] = {}
    for name in TRACKED:
        one, other = first.get(name, ""), second.get(name, "")
        merged[name] = (one or other) if name == SOUL else merge_texts(one, other)
    return {name: text for name, text in merged.items() if text}


def entry_owners(states: Sequence[DocumentState], account_of: Callable[[str], str], survivor: str) -> EntryOwnership:
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
    staying = remove_entries(text, lambda raw: ownership.is_only_owner(name, raw, account_name))
    return staying, select_entries(text, lambda raw: ownership.is_owner(name, raw, account_name))


def split_versions(
    states: Sequence[DocumentState], ownership: EntryOwnership, account_name: str
) -> tuple[list[DocumentState], list[DocumentState]]:
    """Return the history of the scope that stays, and that of *account_name*, each with the changes that changed it."""
    halves: tuple[list[DocumentState], list[DocumentState]] = ([], [])
    for state in states:
        split = {name: split_document(name, text, ownership, account_name) for name, text in state.texts.items()}
        for n, half in enumerate(halves):
            texts = {name: each[n] for name, each in split.items() if each[n]}
            if texts != (half[-1].texts if half else {}):
                half.append(DocumentState(change=state.change, texts=texts))
    return halves
