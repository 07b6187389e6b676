"""Merge the versions of two scopes, and split those of one scope by account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import accumulate

from agent.memory.account_links.document_merge import (
    EntryOwnership,
    merge_texts,
    remove_entries,
    select_entries,
    trace_ownership,
)
from agent.memory.documents.document_changes import CONSOLIDATION, DREAM_CAUSE, TRACKED
from gateway.ports import DocumentChange, DocumentState

PERSONA = "SOUL.md"
_REVERTS = ("undo ", "dream restore ")  # causes of versions that restore entries of earlier authors


# -- versions ------------------------------------------------------------------------------------------


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
        merged[name] = (one or other) if name == PERSONA else merge_texts(one, other)
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
