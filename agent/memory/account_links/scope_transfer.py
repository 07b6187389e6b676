"""Move the history and the files of a memory scope to another one; remove answers from separated conversations.

Everything is idempotent; plain functions block. The caller holds the exclusive locks of both scopes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.base.disk import Disk
from agent.base.scopes import quote, scope_folder
from agent.base.transcript_lines import FORGOTTEN, decode, encode, kind_of, parse_time, without_arguments
from agent.memory.account_links.document_merge import EntryOwnership, split_document
from agent.memory.editing.staged_changes import MEMORY
from agent.memory.history.history_files import ARCHIVE_SUFFIX, free_name, is_history_file
from agent.memory.storage.scope_documents import TRACKED
from gateway.ports.access import ScopeMove
from gateway.ports.journal import Line
from gateway.ports.memory import FileKind, MarkKind, ScopeHistory, StoredNote

if TYPE_CHECKING:
    from gateway.store.files import SqlFiles
    from gateway.store.transcripts import SqlTranscripts

OWNER_FIELD = "whose"  # the account, in an entry without a session
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}(?:\.archive)?\.md\Z")
_FLUSH = re.compile(r"(?=^## Flush at \d\d:\d\d \(session: .+\)$)", re.MULTILINE)
_SESSION = re.compile(r"^## Flush at \d\d:\d\d \(session: (.+)\)$|^- \*\*Session\*\*: (.+)$", re.MULTILINE)
_CONTENTS = ("sessions", "files")
# Rebuilt when they are needed; an interrupted export must be requested again.
_DERIVED = ("exports", *(f"{each}.db{end}" for each in ("index", "files") for end in ("", "-wal", "-shm", "-journal")))
_MEMORY = ("memory", ".memory-new", ".memory-old")
# Written from the rows, of an earlier release, or without text.
_MIRRORED = frozenset({"MEMORY.md", ".mirror", ".lock", "epoch.txt", ".move", ".of.json"})
_OWNERS_FILE = ".of.json"
_TOP = ("USER.md", "SOUL.md")
_DIGEST = re.compile(rb"\b[0-9a-f]{64}\b")
# Fields that a user's line keeps after unlinking; recalled memory, for example, is not the user's own.
_USER_FIELDS = frozenset(
    {"kind", "i", "turn", "role", "content", "timestamp", "by", "mid", "head", "indented", "origin", "tokens", "files"}
    | {"quoted"}
)


def merge_scope_files(home: Path, disk: Disk, move: ScopeMove, *, accounts: tuple[str, str] = ("", "")) -> None:
    """Move all files but the mirror's from *move.source* to *move.target*, and remove the source folder.

    *accounts* are those of the two scopes, "" for one of several: an unlink gives back the texts that were set aside.
    """
    source, target = scope_folder(home, move.source), scope_folder(home, move.target)
    for each in (source, target):
        _finish_swap(disk, each)
    _merge_set_aside(disk, source / "memory", target / "memory", accounts)
    for name in _CONTENTS:
        for path in _tree(source / name):
            if name == "sessions" and path.suffix == ".jsonl":
                disk.remove(path)  # the turns are in *target*, where the mirror writes them
                continue
            _move_file(disk, path, target / path.relative_to(source))
    for name in (*_DERIVED, *_MEMORY, *_CONTENTS, *(_TOP if move.source else ("USER.md",))):
        _delete(source / name)
    if move.source and source.is_dir():  # other files in the scope's folder; those in the home itself stay
        for path in _tree(source):
            _move_file(disk, path, target / path.relative_to(source))
        shutil.rmtree(source)
        disk.sync_folder(source.parent)


def split_scope_files(home: Path, disk: Disk, move: ScopeMove, ownership: EntryOwnership) -> None:
    """Move the files of *move.account* that are in no mirror from *move.source* to *move.target*.

    These are corrupt lines of its conversations, and texts that were set aside. *ownership* tells whose lines are in
    copies of documents: call this before the documents are split.
    """
    source, target = scope_folder(home, move.source), scope_folder(home, move.target)
    for each in (source, target):
        _finish_swap(disk, each)
    _split_set_aside(disk, source / "memory", target / "memory", move.account.name if move.account else "", ownership)
    names = {f"{quote(key)}.jsonl" for key in move.keys}
    for path in sorted((source / "sessions").glob("*.corrupt")):
        if path.name.removesuffix(".corrupt") in names:
            _move_file(disk, path, target / "sessions" / path.name)
    for name in _DERIVED:
        _delete(source / name)


def _set_aside(memory: Path) -> Iterator[Path]:
    """Yield the files beside the mirror's, in order: copies after conflicts, edited and unreadable texts."""
    for path in _tree(memory):
        first = path.relative_to(memory).parts[0]
        if first not in _MIRRORED and not first.startswith(".git") and not is_history_file(first):
            yield path


def _merge_set_aside(disk: Disk, source: Path, target: Path, accounts: tuple[str, str]) -> None:
    owners = {str(path.relative_to(target)): accounts[1] for path in _set_aside(target) if accounts[1]}
    owners |= _owners(disk, target)
    theirs = _owners(disk, source)
    for path in _set_aside(source):
        name = path.relative_to(source)
        free = _free_path(disk, path, target / name)
        owners[str(free.relative_to(target))] = theirs.get(str(name), accounts[0])
        disk.replace(target / _OWNERS_FILE, encode(dict(sorted(owners.items()))))  # before a kill, and a second look
        _move_file(disk, path, free)


def _split_set_aside(disk: Disk, source: Path, target: Path, account: str, ownership: EntryOwnership) -> None:
    owners = _owners(disk, source)
    for path in _set_aside(source):
        name = path.relative_to(source)
        document = f"{path.name.partition('.conflict-')[0]}.md"
        if document in TRACKED and ".conflict-" in path.name:
            text = (disk.load(path) or b"").decode("utf-8", "replace")
            kept, given = split_document(document, text, ownership, account)
            if given:
                disk.replace(target / name, given.encode("utf-8", "replace"))
                if kept:
                    disk.replace(path, kept.encode("utf-8", "replace"))
                else:
                    disk.remove(path)
        elif owners.get(str(name)) == account:
            _move_file(disk, path, target / name)


def _owners(disk: Disk, memory: Path) -> dict[str, str]:
    """Return the accounts of files that were set aside before a link, by name."""
    owners = decode(disk.load(memory / _OWNERS_FILE) or b"{}")
    return {str(name): str(account) for name, account in (owners or {}).items()}


def _finish_swap(disk: Disk, scope: Path) -> None:
    """Complete the exchange of folders that a move of an earlier release was killed in."""
    memory, new, old = (scope / name for name in _MEMORY)
    if not memory.exists() and old.exists():
        disk.rename(new if disk.load(new / ".move") is not None else old, memory)
    for folder in (new, old):
        shutil.rmtree(folder, ignore_errors=True)


async def split_stored_files(
    files: SqlFiles, move: ScopeMove, needed: Collection[str], staying: Collection[str]
) -> None:
    """Move the attachments that conversations of *move.account* name, by digest, and copy those of both sides.

    *needed* are the digests that lines of *move.target* name, and *staying* those that lines of *move.source* name.
    Texts of prompts and results of tools are removed: they may have data of either account. Idempotent.
    """
    for file in await files.files(move.source, FileKind.ATTACHMENT):
        if file.name in needed and file.name not in staying:
            await files.move(move.source, move.target, {file: file.name})
        elif file.name in needed and (data := await files.load(move.source, file)) is not None:
            await files.put(move.target, FileKind.ATTACHMENT, data, at=file.at)
    await files.remove(move.source, FileKind.TEXT, FileKind.RESULT)


def blank_answer(raw: bytes, since: datetime | None) -> bytes:
    """Return an answer, a tool call or a memory change from *since* on without its words; any other line unchanged.

    It may contain data of either account.
    """
    line = decode(raw)
    if line is None or since is None:
        return raw
    blank = _remove_answer(line)
    at = parse_time(line.get("timestamp"))
    if blank is None or blank == line or (at is not None and at < since):
        return raw
    return encode(blank)


def _remove_answer(line: Line) -> dict[str, Any] | None:
    """Return *line* without what may come from the memory; None for a line that has no such content."""
    kind = kind_of(line)
    if kind == "delta":
        return {**line, "text": "", "added": [], "removed": []}
    if kind == "command":
        return {**line, "reply": FORGOTTEN if line.get("reply") else ""}
    if kind == "notice":
        return {**line, "content": FORGOTTEN if line.get("content") else ""}
    if kind != "message":
        return None
    if line.get("role") == "user":
        return {name: value for name, value in line.items() if name in _USER_FIELDS}
    fields = _USER_FIELDS - {"files", "quoted"}
    blank = {name: value for name, value in line.items() if name in fields}
    blank["content"] = FORGOTTEN if line.get("content") else ""
    if calls := line.get("tool_calls"):
        blank["tool_calls"] = [without_arguments(call) for call in calls]
    return blank | {name: line[name] for name in ("tool_call_id", "name") if name in line}


async def find_digests(scope: str, transcripts: SqlTranscripts) -> Collection[str]:
    """Return the sha256 digests in the lines of *scope*, which may be those of files."""
    digests: set[str] = set()
    after: tuple[str, int] | None = None
    while turns := await transcripts.scan(scope, after=after):
        digests |= {each.decode() for turn in turns for each in _DIGEST.findall(turn.body)}
        after = (str(turns[-1].key), turns[-1].seq)
    return digests


def _tree(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def _free_path(disk: Disk, path: Path, target: Path) -> Path:
    """Return *target*, or the first numbered name, where no other file is than one that is equal to *path*."""
    n, free = 2, target
    while free.exists() and disk.load(free) != disk.load(path):
        free = target.with_name(f"{target.name}.{n}")
        n += 1
    return free


def _move_file(disk: Disk, path: Path, target: Path) -> None:
    """Move a file to *target*, or to a numbered name if another file is there; drop it if that file is equal."""
    disk.make_folder(target.parent)
    free = _free_path(disk, path, target)
    if free.exists():
        disk.remove(path)
        return
    path.rename(free)
    for folder in (free.parent, path.parent):
        disk.sync_folder(folder)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# -- histories -------------------------------------------------------------------------------------


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
