"""Merge the versions and history entries of two scopes, and split those of one scope by account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from agent.memory.account_links.document_merge import (
    EntryOwnership,
    merge_texts,
    remove_entries,
    select_entries,
    trace_ownership,
)
from agent.memory.documents.version_store import CONSOLIDATION, DREAM_CAUSE, TRACKED, DocumentVersion
from agent.memory.history.history_log import CURSOR, DREAM_CURSOR, HISTORY_JSONL, read_cursor
from agent.memory.history.history_markdown import HistoryMarkdown
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode, encode
from gateway.ports import Line

Versioned: TypeAlias = Sequence[tuple[DocumentVersion, Mapping[str, bytes]]]
Change: TypeAlias = tuple[Mapping[str, bytes], str, str, datetime]  # documents, cause, person, time
PERSONA = "SOUL.md"
_REVERTS = ("undo ", "dream restore ")  # causes of versions that restore entries of earlier authors
OWNER_FIELD = "whose"  # the account, in an entry without a session


# -- versions ------------------------------------------------------------------------------------------


def interleave_versions(
    first: Versioned, second: Versioned, *, first_account: str, second_account: str
) -> Iterator[Change]:
    """Yield the merged states of two histories in order of time.

    The author of a change without one is its history's account; "" for a history of several accounts.
    """
    accounts = (first_account, second_account)
    versions = [(version, texts, 0) for version, texts in first] + [(version, texts, 1) for version, texts in second]
    current: list[Mapping[str, bytes]] = [{}, {}]
    for version, texts, side in sorted(versions, key=lambda each: each[0].at):
        current[side] = texts
        yield merge_documents(*current), version.why, version.by or accounts[side], version.at


def merge_documents(first: Mapping[str, bytes], second: Mapping[str, bytes]) -> dict[str, bytes]:
    """Merge the documents of two scopes; the persona of the first is kept if there is one."""
    merged: dict[str, bytes] = {}
    for name in TRACKED:
        one, other = _text(first.get(name)), _text(second.get(name))
        merged[name] = ((one or other) if name == PERSONA else merge_texts(one, other)).encode()
    return merged


def entry_owners(versions: Versioned, account_of: Callable[[str], str], survivor: str) -> EntryOwnership:
    """Return the owners of every entry that the documents ever had; *account_of* returns a history entry's account.

    The lines of a summary belong to the account of the summarised chat, the lines of a Dream to the account of its
    chats, or to *survivor* if these belong to several accounts.
    """

    def author(version: DocumentVersion) -> str:
        if version.why.startswith(_REVERTS):
            return ""
        if version.by:
            return version.by
        if version.why.startswith((CONSOLIDATION, DREAM_CAUSE)):
            accounts = {account_of(entry) or survivor for entry in version.why.split() if entry.startswith("e")}
            return accounts.pop() if len(accounts) == 1 else survivor
        return ""

    texts_by = (({name: _text(text) for name, text in texts.items()}, author(version)) for version, texts in versions)
    return trace_ownership(texts_by, survivor)


def split_document(name: str, text: str, ownership: EntryOwnership, account_name: str) -> tuple[str, str]:
    """Return the entries that stay, and those of *account_name*; mixed entries stay."""
    staying = remove_entries(text, lambda raw: ownership.is_only_owner(name, raw, account_name))
    return staying, select_entries(text, lambda raw: ownership.is_owner(name, raw, account_name))


def split_versions(
    versions: Versioned, ownership: EntryOwnership, account_name: str
) -> tuple[list[Change], list[Change]]:
    """Return the versions of the scope that stays, and those of *account_name*."""
    staying: list[Change] = []
    moving: list[Change] = []
    for version, texts in versions:
        halves = {name: split_document(name, _text(text), ownership, account_name) for name, text in texts.items()}
        for n, changes in enumerate((staying, moving)):
            documents = {name: each[n].encode() for name, each in halves.items()}
            changes.append((documents, version.why, version.by, version.at))
    return staying, moving


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")


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
