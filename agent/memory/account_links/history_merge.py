"""Versions and entries of two scopes as one history, and one history as two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from agent.memory.account_links.document_merge import EntryOwnership, merge_texts, remove_entries, select_entries, trace
from agent.memory.documents.version_store import CONSOLIDATION, TRACKED, DocumentVersion
from agent.memory.history.history_log import CURSOR, DREAM_CURSOR, HISTORY_JSONL, RAW_JSONL
from agent.memory.history.history_markdown import HistoryMarkdown
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode, encode
from gateway.ports import Line

Versioned: TypeAlias = Sequence[tuple[DocumentVersion, Mapping[str, bytes]]]
Change: TypeAlias = tuple[Mapping[str, bytes], str, str, datetime]  # documents, cause, person, time
VOICE = "SOUL.md"
DREAM = "dream: "  # begins the cause of a version that a Dream made; its entries follow
_TAKES_BACK = ("undo ", "dream restore ")  # what comes back is whose it was
WHOSE = "whose"  # in an entry that names no session


# -- versions ------------------------------------------------------------------------------------------


def interleave_versions(first: Versioned, second: Versioned, *, first_is: str, second_is: str) -> Iterator[Change]:
    """Yield the states of two histories as if they had been one, in the order of time.

    A change that names nobody is of the account its history belongs to, if that is one account ("" otherwise).
    """
    marked = [(version, texts, 0) for version, texts in first] + [(version, texts, 1) for version, texts in second]
    now: list[Mapping[str, bytes]] = [{}, {}]
    for version, texts, side in sorted(marked, key=lambda each: each[0].at):
        now[side] = texts
        yield merge_documents(*now), version.why, version.by or (first_is, second_is)[side], version.at


def merge_documents(first: Mapping[str, bytes], second: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the documents of two scopes as one's; the voice is the first one's where it has one."""
    found: dict[str, bytes] = {}
    for name in TRACKED:
        mine, theirs = _text(first.get(name)), _text(second.get(name))
        found[name] = ((mine or theirs) if name == VOICE else merge_texts(mine, theirs)).encode()
    return found


def entry_owners(versions: Versioned, account_of: Callable[[str], str], survivor: str) -> EntryOwnership:
    """Return who had every entry kept that ever stood there; *account_of* says whose an entry of the history is.

    A summary's lines are of the account whose chat it sums up, a Dream's of the account whose chats it was about, and
    the survivor's where those were several.
    """

    def author(version: DocumentVersion) -> str:
        if version.why.startswith(_TAKES_BACK):
            return ""
        if version.by:
            return version.by
        if version.why.startswith((CONSOLIDATION, DREAM)):
            accounts = {account_of(entry) or survivor for entry in version.why.split() if entry.startswith("e")}
            return accounts.pop() if len(accounts) == 1 else survivor
        return ""

    texts_by = (({name: _text(text) for name, text in texts.items()}, author(version)) for version, texts in versions)
    return trace(texts_by, survivor)


def split_document(name: str, text: str, who: EntryOwnership, identity: str) -> tuple[str, str]:
    """Return what stays of a document, and what goes with *identity*. What is mixed stays."""
    stays = remove_entries(text, lambda raw: who.alone(name, raw, identity))
    return stays, select_entries(text, lambda raw: who.shares(name, raw, identity))


def split_versions(versions: Versioned, who: EntryOwnership, identity: str) -> tuple[list[Change], list[Change]]:
    """Return the versions of who stays, and those of who goes."""
    stay: list[Change] = []
    go: list[Change] = []
    for version, texts in versions:
        both = {name: split_document(name, _text(text), who, identity) for name, text in texts.items()}
        stay.append(({name: each[0].encode() for name, each in both.items()}, version.why, version.by, version.at))
        go.append(({name: each[1].encode() for name, each in both.items()}, version.why, version.by, version.at))
    return stay, go


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")


# -- entries -------------------------------------------------------------------------------------------


def entries(folder: Path, disk: Disk) -> tuple[list[Line], list[Line]]:
    """Return the entries that Dream has read, and those it has not."""
    read = _number(disk, folder / DREAM_CURSOR)
    found = [line for line in map(decode, (disk.load(folder / HISTORY_JSONL) or b"").splitlines()) if line is not None]
    dreamt = [line for line in found if _cursor(line) <= read]
    return dreamt, [line for line in found if _cursor(line) > read]


def last_cursor(folder: Path, disk: Disk) -> int:
    """Return the highest cursor that was ever given out in *folder*."""
    dreamt, new = entries(folder, disk)
    notes = (_number(disk, folder / CURSOR), _number(disk, folder / DREAM_CURSOR))
    return max([*notes, *(_cursor(line) for line in (*dreamt, *new))])


def put_entries(folder: Path, disk: Disk, dreamt: Iterable[Line], new: Iterable[Line], after: int) -> None:
    """Write a history whose cursors follow *after*, so that none is given twice; of two equal ids one is written."""
    groups = [_in_time(dreamt), _in_time(new)]
    seen: set[str] = set()
    lines: list[dict[str, Any]] = []
    read = after
    for n, group in enumerate(groups):
        for line in group:
            entry = str(line.get("entry") or "")
            if entry and entry in seen:
                continue
            seen.add(entry)
            lines.append({**line, "cursor": after + len(lines) + 1})
        read = read if n else after + len(lines)
    if not lines:
        return
    disk.replace(folder / HISTORY_JSONL, b"".join(encode(line) for line in lines))
    disk.replace(folder / CURSOR, b"%d\n" % (after + len(lines)))
    if read > after:
        disk.replace(folder / DREAM_CURSOR, b"%d\n" % read)
    HistoryMarkdown(folder, disk).rebuild(
        [(str(each.get("timestamp", "")), str(each.get("content", ""))) for each in lines]
    )


def mark_owner(lines: Iterable[Line], identity: str) -> list[Line]:
    """Return the entries with *identity* where neither a session nor a mark says whose they are."""
    return [
        {**line, WHOSE: identity} if identity and not line.get("session") and not line.get(WHOSE) else line
        for line in lines
    ]


def raw_lines(folder: Path, disk: Disk) -> list[bytes]:
    """Return the raw archive's lines."""
    return (disk.load(folder / RAW_JSONL) or b"").splitlines(keepends=True)


def put_raw(folder: Path, disk: Disk, lines: Sequence[bytes]) -> None:
    """Write a raw archive, if there is anything."""
    if lines:
        disk.replace(folder / RAW_JSONL, b"".join(lines))


def _in_time(lines: Iterable[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: str(line.get("timestamp", "")))


def _cursor(line: Line) -> int:
    cursor = line.get("cursor")
    return cursor if isinstance(cursor, int) else 0


def _number(disk: Disk, path: Path) -> int:
    text = (disk.load(path) or b"").strip()
    return int(text) if text.isdigit() and len(text) < 17 else 0
