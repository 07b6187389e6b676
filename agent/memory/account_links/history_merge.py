"""Merge the versions and history entries of two scopes, and split those of one scope by account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.memory.account_links.document_merge import (
    EntryOwnership,
    merge_texts,
    remove_entries,
    select_entries,
    trace_ownership,
)
from agent.memory.documents.document_changes import CONSOLIDATION, DREAM_CAUSE, TRACKED
from agent.memory.history.history_log import CURSOR, DREAM_CURSOR, HISTORY_JSONL, read_cursor
from agent.memory.history.history_markdown import HistoryMarkdown
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode, encode
from gateway.ports import DocumentChange, DocumentState, Line

PERSONA = "SOUL.md"
_REVERTS = ("undo ", "dream restore ")  # causes of versions that restore entries of earlier authors
OWNER_FIELD = "whose"  # the account, in an entry without a session


# -- versions ------------------------------------------------------------------------------------------


def interleave_versions(
    first: Sequence[DocumentState], second: Sequence[DocumentState], *, first_account: str, second_account: str
) -> list[DocumentState]:
    """Return the merged states of two histories in order of time.

    The author of a change without one is its history's account; "" for a history of several accounts.
    """
    accounts = (first_account, second_account)
    current: list[Mapping[str, str]] = [{}, {}]
    merged: list[DocumentState] = []
    for state, side in sorted(
        [*((each, 0) for each in first), *((each, 1) for each in second)], key=lambda each: each[0].change.at
    ):
        current[side] = state.texts
        change = replace(state.change, by=state.change.by or accounts[side])
        merged.append(DocumentState(change=change, texts=merge_documents(*current)))
    return merged


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


# -- entries -------------------------------------------------------------------------------------------


def entries(folder: Path, disk: Disk) -> tuple[list[Line], list[Line]]:
    """Return the history entries that Dream has processed, and those it has not."""
    dream_cursor = read_cursor(folder / DREAM_CURSOR, disk)
    lines = [line for line in map(decode, (disk.load(folder / HISTORY_JSONL) or b"").splitlines()) if line is not None]
    dreamt = [line for line in lines if _cursor(line) <= dream_cursor]
    return dreamt, [line for line in lines if _cursor(line) > dream_cursor]


def last_cursor(folder: Path, disk: Disk) -> int:
    """Return the highest cursor that was ever assigned in *folder*."""
    dreamt, new = entries(folder, disk)
    cursors = (read_cursor(folder / CURSOR, disk), read_cursor(folder / DREAM_CURSOR, disk))
    return max([*cursors, *(_cursor(line) for line in (*dreamt, *new))])


def put_entries(folder: Path, disk: Disk, dreamt: Iterable[Line], new: Iterable[Line], after: int) -> None:
    """Write a history with the cursors following *after*, which keeps them unique; entries with equal ids once."""
    groups = [_by_time(dreamt), _by_time(new)]
    seen: set[str] = set()
    lines: list[dict[str, Any]] = []
    dream_cursor = after
    for n, group in enumerate(groups):
        for line in group:
            entry = str(line.get("entry") or "")
            if entry and entry in seen:
                continue
            seen.add(entry)
            lines.append({**line, "cursor": after + len(lines) + 1})
        dream_cursor = dream_cursor if n else after + len(lines)
    if not lines:
        return
    disk.replace(folder / HISTORY_JSONL, b"".join(encode(line) for line in lines))
    disk.replace(folder / CURSOR, b"%d\n" % (after + len(lines)))
    if dream_cursor > after:
        disk.replace(folder / DREAM_CURSOR, b"%d\n" % dream_cursor)
    HistoryMarkdown(folder, disk).rebuild(
        [(str(each.get("timestamp", "")), str(each.get("content", ""))) for each in lines]
    )


def mark_owner(lines: Iterable[Line], account_name: str) -> list[Line]:
    """Return the entries, with *account_name* as the owner of those that have neither a session nor an owner."""
    return [
        {**line, OWNER_FIELD: account_name}
        if account_name and not line.get("session") and not line.get(OWNER_FIELD)
        else line
        for line in lines
    ]


def _by_time(lines: Iterable[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: str(line.get("timestamp", "")))


def _cursor(line: Line) -> int:
    cursor = line.get("cursor")
    return cursor if isinstance(cursor, int) else 0
