"""Merge the histories of two scopes, and split that of one by account. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.memory.account_links.document_merge import EntryOwnership
from agent.memory.account_links.version_merge import split_document
from agent.memory.editing.staged_changes import MEMORY
from agent.memory.history.history_files import free_name
from agent.memory.history.line_keys import ARCHIVE_SUFFIX
from agent.memory.storage.transcript_lines import decode, encode
from gateway.ports.journal import Line
from gateway.ports.memory import MarkKind, ScopeHistory, StoredNote

OWNER_FIELD = "whose"  # the account, in an entry without a session
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}(?:\.archive)?\.md\Z")
_FLUSH = re.compile(r"(?=^## Flush at \d\d:\d\d \(session: .+\)$)", re.MULTILINE)
_SESSION = re.compile(r"^## Flush at \d\d:\d\d \(session: (.+)\)$|^- \*\*Session\*\*: (.+)$", re.MULTILINE)


def merge_histories(
    first: ScopeHistory, second: ScopeHistory, *, first_account: str, second_account: str
) -> ScopeHistory:
    """Return the history of both: entries by time with new cursors, those that Dream has processed before the others.

    Notes of one day are joined; another note with a name that is taken gets a number. The accounts, "" for a scope of
    several, own what names no session.
    """
    both = ((first, first_account), (second, second_account))
    dreamt, new = (
        [line for each, account in both for line in _entries(each, is_dreamt=is_dreamt, owner=account)]
        for is_dreamt in (True, False)
    )
    notes = {name: _owned(note, first_account) for name, note in first.notes.items()}
    for name, note in second.notes.items():
        there = notes.get(name)
        if there is None or there.body == note.body:
            notes[name] = there or _owned(note, second_account)
        elif _DAY.match(name):
            notes[name] = StoredNote(body=there.body.rstrip(b"\n") + b"\n\n" + note.body, owner=there.owner)
        else:
            notes[free_name(name, notes)] = _owned(note, second_account)
    marks = {kind: {**second.marks.get(kind, {}), **first.marks.get(kind, {})} for kind in MarkKind}
    return _history(
        dreamt, new, after=max(first.cursor, second.cursor), raws=[*first.raws, *second.raws], notes=notes, marks=marks
    )


@dataclass(frozen=True, slots=True)
class HistorySplit:
    """Selects what belongs to *account* alone. *account_of* returns the account of a session key."""

    account: str
    account_of: Callable[[str], str]
    ownership: EntryOwnership  # of the lines of archives

    def split(self, history: ScopeHistory) -> tuple[ScopeHistory, ScopeHistory]:
        """Return the history that stays, and the account's."""
        halves = tuple(self._half(history, is_moving=is_moving) for is_moving in (False, True))
        return halves[0], halves[1]

    def _half(self, history: ScopeHistory, *, is_moving: bool) -> ScopeHistory:
        dreamt, new = (
            [line for line in _entries(history, is_dreamt=is_dreamt) if self._moves(line) is is_moving]
            for is_dreamt in (True, False)
        )
        notes: dict[str, StoredNote] = {}
        for name, note in history.notes.items():
            half = self._select_text(name, note, is_moving=is_moving)
            if half.strip():
                notes[name] = StoredNote(body=half.encode("utf-8", "replace"), owner=note.owner)
        flushed = history.marks.get(MarkKind.FLUSHED, {})
        marks = {
            # Those of lines that a half lacks go with its next change of MEMORY.md. An unfinished Dream begins again.
            **{kind: history.marks.get(kind, {}) for kind in (MarkKind.KEYS, MarkKind.USED, MarkKind.IMPORTED)},
            MarkKind.FLUSHED: {key: cycle for key, cycle in flushed.items() if self._is_theirs(key) is is_moving},
        }
        raws = [raw for raw in history.raws if self._moves(decode(raw) or {}) is is_moving]
        return _history(dreamt, new, after=history.cursor, raws=raws, notes=notes, marks=marks)

    def _moves(self, line: Line) -> bool:
        session = str(line.get("session") or "")
        return self._is_theirs(session) if session else line.get(OWNER_FIELD) == self.account

    def _is_theirs(self, session: str) -> bool:
        return self.account_of(session) == self.account

    def _select_text(self, name: str, note: StoredNote, *, is_moving: bool) -> str:
        text = note.body.decode("utf-8", "replace")
        if name.endswith(ARCHIVE_SUFFIX):
            kept, given = split_document(MEMORY, text, self.ownership, self.account)
            return given if is_moving else kept
        sections = _FLUSH.split(text) if _DAY.match(name) else [text]
        return "".join(each for each in sections if self._section_moves(note, each) is is_moving)

    def _section_moves(self, note: StoredNote, text: str) -> bool:
        session = _SESSION.search(text)
        return self._is_theirs(session.group(1) or session.group(2)) if session else note.owner == self.account


def sessions_of(histories: Iterable[ScopeHistory]) -> dict[str, str]:
    """Return the session of each entry, by the entry's id."""
    lines = (decode(raw) or {} for history in histories for raw in history.entries)
    return {str(line.get("entry")): str(line.get("session") or "") for line in lines}


def _history(
    dreamt: Iterable[Line],
    new: Iterable[Line],
    *,
    after: int,
    raws: Sequence[bytes],
    notes: Mapping[str, StoredNote],
    marks: Mapping[MarkKind, Mapping[str, str]],
) -> ScopeHistory:
    """Return a history with the cursors following *after*, which keeps them unique; entries with equal ids once."""
    seen: set[str] = set()
    entries: list[bytes] = []
    dream_cursor = 0
    for n, group in enumerate((_by_time(dreamt), _by_time(new))):
        for line in group:
            entry = str(line.get("entry") or "")
            if entry and entry in seen:
                continue
            seen.add(entry)
            entries.append(encode({**line, "cursor": after + len(entries) + 1}))
        if n == 0 and entries:
            dream_cursor = after + len(entries)
    return ScopeHistory(
        entries=tuple(entries),
        raws=tuple(dict.fromkeys(raws)),  # those of a move that was interrupted are in both
        notes=notes,
        marks={kind: each for kind, each in marks.items() if each},
        cursor=after + len(entries),
        dream_cursor=dream_cursor or (after if entries else 0),
    )


def _entries(history: ScopeHistory, *, is_dreamt: bool, owner: str = "") -> list[dict[str, Any]]:
    """Return the entries that Dream has processed, or has not; *owner* owns those without a session and an owner."""
    lines = [dict(decode(raw) or {}) for raw in history.entries]
    mine = [line for line in lines if (_cursor(line) <= history.dream_cursor) is is_dreamt]
    for line in mine:
        if owner and not line.get("session") and not line.get(OWNER_FIELD):
            line[OWNER_FIELD] = owner
    return mine


def _owned(note: StoredNote, account: str) -> StoredNote:
    return StoredNote(body=note.body, owner=note.owner or account)


def _by_time(lines: Iterable[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: str(line.get("timestamp", "")))


def _cursor(line: Line) -> int:
    cursor = line.get("cursor")
    return cursor if isinstance(cursor, int) else 0
